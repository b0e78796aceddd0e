"""One watcher's stream: catch up, then live; ordered, resumable, with bookmarks between."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from services.feed.cursors import Cursor
from services.feed.heads import Watch
from services.feed.store import Page

BOOKMARK_SECONDS = 30.0
CHECK_SECONDS = 0.5


async def follow(
    start: Cursor | None,
    watch: Watch,
    read: Callable[[Cursor | None], Awaitable[Page]],
    admitted: Callable[[], Awaitable[None]],
    draining: Callable[[], bool],
) -> AsyncIterator[Page | Cursor]:
    """Yields pages with changes, and cursors as bookmarks, from `start` on, for ever; ends with a bookmark when `draining`.

    `admitted` raises when the caller may no longer read; it is asked before each read and twice a second.
    """
    cursor = start
    marked = -math.inf
    while True:
        await admitted()
        watch.bell.clear()
        page = await read(cursor)
        cursor = page.end
        if page.end.seq > page.start.seq:
            yield page
            marked = -math.inf
            if page.more:
                continue
        if draining():
            yield cursor
            return
        if time.monotonic() - marked >= BOOKMARK_SECONDS:
            yield cursor
            marked = time.monotonic()
        while not watch.bell.is_set() and not draining() and time.monotonic() - marked < BOOKMARK_SECONDS:
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await watch.bell.wait()
            except TimeoutError:
                await admitted()
