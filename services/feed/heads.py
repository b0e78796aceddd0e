"""Wakes watchers: one poll for all watched banks, made quick by hints from Postgres after a commit."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

POLL_SECONDS = 0.25


@dataclass(eq=False)
class Watch:
    """One watcher's bell; rings when the bank's head may have moved."""

    bell: asyncio.Event = field(default_factory=asyncio.Event)


class Heads:
    """Knows which banks are watched. `read` gives the heads of banks, in one query."""

    def __init__(self, read: Callable[[Sequence[str]], Awaitable[Mapping[str, int]]]) -> None:
        self._read = read
        self._watches: dict[str, set[Watch]] = {}
        self._known: dict[str, int] = {}

    @contextlib.contextmanager
    def watching(self, bank: str) -> Iterator[Watch]:
        """Takes part in the poll for as long as the block runs."""
        watch = Watch()
        self._watches.setdefault(bank, set()).add(watch)
        try:
            yield watch
        finally:
            self._watches[bank].discard(watch)
            if not self._watches[bank]:
                del self._watches[bank]
                self._known.pop(bank, None)

    def hint(self, bank: str) -> None:
        """Rings at once; the watcher reads for itself."""
        for watch in self._watches.get(bank, ()):
            watch.bell.set()

    async def poll_once(self) -> None:
        """Reads the heads of watched banks and rings where one moved. Raises what `read` raises."""
        banks = list(self._watches)
        if not banks:
            return
        for bank, head in (await self._read(banks)).items():
            if self._known.get(bank) != head:
                self._known[bank] = head
                self.hint(bank)

    def ring_all(self) -> None:
        """Rings every bell, so that streams look at whether they must end."""
        for bank in list(self._watches):
            self.hint(bank)
