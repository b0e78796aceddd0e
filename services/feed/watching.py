"""One watcher's stream: catch up, then live; ordered, resumable, with bookmarks between."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from services.feed.cursors import Cursor
from services.feed.heads import Watch
from services.feed.store import Page

BOOKMARK_SECONDS = 30.0
CHECK_SECONDS = 0.5


@dataclass(frozen=True)
class Batch:
    """Changes after one seq, through another."""

    after: int
    page: Page


@dataclass(frozen=True)
class Mark:
    """All at or below the cursor was sent."""

    cursor: Cursor


async def follow(
    start: Cursor,
    watch: Watch,
    read: Callable[[Cursor], Awaitable[Page]],
    admitted: Callable[[], Awaitable[None]],
    draining: Callable[[], bool],
) -> AsyncIterator[Batch | Mark]:
    """Yields batches and bookmarks from `start` on, for ever; ends with a bookmark when `draining`.

    `admitted` raises when the caller may no longer read; it is asked before each read and twice a second.
    """
    cursor = start
    marked = -math.inf
    while True:
        await admitted()
        watch.bell.clear()
        page = await read(cursor)
        if page.through > cursor.seq:
            yield Batch(cursor.seq, page)
            cursor = Cursor(cursor.epoch, page.through, page.nonce)
            marked = -math.inf
            if page.more:
                continue
        if draining():
            yield Mark(cursor)
            return
        if time.monotonic() - marked >= BOOKMARK_SECONDS:
            yield Mark(cursor)
            marked = time.monotonic()
        while not watch.bell.is_set() and not draining() and time.monotonic() - marked < BOOKMARK_SECONDS:
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await watch.bell.wait()
            except TimeoutError:
                await admitted()
