"""Wakes watchers: one poll for all watched banks, made quick by hints from Postgres after a commit.

Watchers of one bank that stand at the same place read once for all of them.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

POLL_SECONDS = 0.25
T = TypeVar("T")


@dataclass(eq=False)
class Watch:
    """One watcher's bell; rings when the bank's head may have moved."""

    bell: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class _Bank:
    """Who watches a bank, the head that the poll saw last, and by place the reads that are under way."""

    watches: set[Watch] = field(default_factory=set)
    known: int | None = None
    reads: dict[Hashable, asyncio.Task[Any]] = field(default_factory=dict)


class Heads:
    """Knows which banks are watched. `read` gives the heads of banks, in one query."""

    def __init__(self, read: Callable[[Sequence[str]], Awaitable[Mapping[str, int]]]) -> None:
        self._read = read
        self._banks: dict[str, _Bank] = {}

    @contextlib.contextmanager
    def watching(self, bank: str) -> Iterator[Watch]:
        """Takes part in the poll for as long as the block runs."""
        watch = Watch()
        watched = self._banks.setdefault(bank, _Bank())
        watched.watches.add(watch)
        try:
            yield watch
        finally:
            watched.watches.discard(watch)
            if not watched.watches:
                del self._banks[bank]

    async def shared(self, bank: str, place: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """What `read` gives, or what a watcher of the bank at the same place is reading since the last ring.

        A read that began before a ring may lack what the ring is for, so nobody joins it any more. Nothing is kept once
        it is read. Whoever goes away takes the read from nobody else.
        """
        reads = self._banks[bank].reads
        task = reads.get(place)
        if task is None:
            task = reads[place] = asyncio.ensure_future(read())
            task.add_done_callback(lambda done: _forget(reads, place, done))
        result: T = await asyncio.shield(task)
        return result

    def hint(self, bank: str) -> None:
        """Rings at once; the watcher reads for itself."""
        watched = self._banks.get(bank)
        if watched is not None:
            watched.reads = {}
            for watch in watched.watches:
                watch.bell.set()

    async def poll_once(self) -> None:
        """Reads the heads of watched banks and rings where one moved. Raises what `read` raises."""
        banks = list(self._banks)
        if not banks:
            return
        for bank, head in (await self._read(banks)).items():
            watched = self._banks.get(bank)
            if watched is not None and watched.known != head:
                watched.known = head
                self.hint(bank)

    def ring_all(self) -> None:
        """Rings every bell, so that streams look at whether they must end."""
        for bank in list(self._banks):
            self.hint(bank)


def _forget(reads: dict[Hashable, asyncio.Task[Any]], place: Hashable, done: asyncio.Task[Any]) -> None:
    if reads.get(place) is done:
        del reads[place]
    if not done.cancelled():
        done.exception()  # all who waited for it may have gone
