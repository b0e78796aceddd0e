"""When tokens were last used: noted at each exchange, written in batches, so that no exchange waits for it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from kit.errors import LOST

_EVERY_SECONDS = 2.0
_AGAIN_SECONDS = 60.0
_MOST = 50_000


class LastUsed:
    """Collects tokens that were used; each is written once a minute at most, however many processes there are."""

    def __init__(self, write: Callable[[Sequence[str]], Awaitable[None]]) -> None:
        self._write = write
        self._written: dict[str, float] = {}
        self._due: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def note(self, token_id: str) -> None:
        """Notes a use; never waits, never fails."""
        if time.monotonic() - self._written.get(token_id, float("-inf")) >= _AGAIN_SECONDS:
            self._due.add(token_id)

    def start(self) -> None:
        """Begins to write in the background."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Writes what is left and ends."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.flush()

    async def flush(self) -> None:
        """Writes what was noted. What cannot be written is dropped: the next use notes it again."""
        due, self._due = self._due, set()
        if not due:
            return
        now = time.monotonic()
        if len(self._written) + len(due) > _MOST:
            self._written = {key: at for key, at in self._written.items() if now - at < _AGAIN_SECONDS}
        try:
            await self._write(sorted(due))
        except LOST:
            return
        self._written.update(dict.fromkeys(due, now))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            await self.flush()
