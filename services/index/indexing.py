"""Follows every bank: what is live gets its terms and then its vector, what is forgotten or erased loses both.

The terms run ahead, because they cost nothing: a memory can be met as a near-duplicate long before the model comes to it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from kit.errors import from_driver
from services.index.embedding import Embedding, Urgency
from services.index.flight import InFlight
from services.index.following import Change, Seen, affordable, plan
from services.index.store import TERMS, VECTORS, Store, Turn
from services.index.term_points import TermPoints
from services.index.terms import TermKeys, Terms
from services.index.vectors import Point, Vectors

log = logging.getLogger("teamlore.index")
POLL_SECONDS = 0.25
RETRY_SECONDS, PAUSE_SECONDS = 1.0, 5.0
PAGE, PAGE_CHARACTERS = 64, 6_000
"""What is followed of one bank before the others have their turn, in changes and in characters to be embedded."""
TERMS_PAGE = 256
"""Changes whose terms are written at once; none of it waits for the model."""


class Points(Protocol):
    """One of the two collections."""

    async def exists(self) -> bool:
        """Whether the collection is there."""
        ...

    async def present(self, bank: str, ids: Sequence[str]) -> set[str]:
        """Which of these memories have a point."""
        ...

    async def delete(self, bank: str, ids: Sequence[str], *, wait: bool) -> None:
        """Removes points; with `wait` their bytes are gone too."""
        ...


class Work(Protocol):
    """What one follower does of each bank."""

    kind: str
    page: int

    @property
    def points(self) -> Points:
        """The collection it writes."""
        ...

    async def prepare(self) -> None:
        """Makes the collection where there is none. The cursors go back first: a kill in between repeats both."""
        ...

    def affordable(self, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        """The first of these changes, as many as are done at once; at least one."""
        ...

    async def make(self, bank: str, changes: Sequence[Change]) -> Mapping[str, Any]:
        """Makes what is written of each of these memories, by id; it may take long."""
        ...

    async def put(self, bank: str, made: Sequence[tuple[str, Any]]) -> None:
        """Writes points that were made."""
        ...

    def done(self, bank: str, ids: Sequence[str]) -> None:
        """Told of what is on disk, or away from it, and saved: a query finds it now."""
        ...


class TermWork:
    """The terms of memories."""

    kind, page = TERMS, TERMS_PAGE

    def __init__(
        self, store: Store, points: TermPoints, former: TermPoints, in_flight: InFlight, keys: TermKeys
    ) -> None:
        """`former` is the collection of an earlier version, which is removed."""
        self.points = points
        self._former = former
        self._store = store
        self._in_flight = in_flight
        self._keys = keys

    async def prepare(self) -> None:
        """Makes the collection."""
        if not await self.points.exists():
            await self._store.start_over(TERMS)
            await self.points.create()
        await self.points.create_indexes()
        await self._former.remove()

    def affordable(self, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        """All."""
        return changes

    async def make(self, bank: str, changes: Sequence[Change]) -> Mapping[str, Terms]:
        """Keyed terms; those of a text that was just checked are known."""
        terms = {change.id: self._in_flight.terms(bank, change.id, change.text or "") for change in changes}
        unknown = {change.id: change.text or "" for change in changes if terms[change.id] is None}
        made = await asyncio.to_thread(
            lambda: {memory_id: self._keys.of(bank, text) for memory_id, text in unknown.items()}
        )
        return {memory_id: held or made[memory_id] for memory_id, held in terms.items()}

    async def put(self, bank: str, made: Sequence[tuple[str, Terms]]) -> None:
        """Writes them."""
        await self.points.put(bank, made)

    def done(self, bank: str, ids: Sequence[str]) -> None:
        """What is found in the collection need not be in flight."""
        self._in_flight.settle(bank, ids)


class VectorWork:
    """The vectors of memories."""

    kind, page = VECTORS, PAGE

    def __init__(
        self, store: Store, points: Vectors, embedding: Embedding, in_flight: InFlight, dimension: int
    ) -> None:
        self.points = points
        self._store = store
        self._embedding = embedding
        self._in_flight = in_flight
        self._dimension = dimension

    async def prepare(self) -> None:
        """Makes the collection."""
        if not await self.points.exists():
            await self._store.start_over(VECTORS)
            await self.points.create(self._dimension)
        await self.points.create_indexes()

    def affordable(self, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        """What the model does in a fraction of a second."""
        return affordable(changes, PAGE_CHARACTERS)

    async def make(self, bank: str, changes: Sequence[Change]) -> Mapping[str, Point]:
        """Vectors; a text that was just checked is not embedded twice."""
        rows: dict[int, Seen] = {}
        unknown: list[int] = []
        for position, change in enumerate(changes):
            held = self._in_flight.get(bank, change.id, change.text or "")
            if held is None:
                unknown.append(position)
            else:
                rows[position] = held
        embedded = await self._embedding.embed(
            [changes[position].text or "" for position in unknown], Urgency.FOLLOW
        )
        rows.update(zip(unknown, embedded, strict=True))
        return {
            change.id: Point(change.id, change.lane, change.derivation, rows[position])
            for position, change in enumerate(changes)
        }

    async def put(self, bank: str, made: Sequence[tuple[str, Point]]) -> None:
        """Writes them."""
        await self.points.put(bank, [point for _, point in made])

    def done(self, bank: str, ids: Sequence[str]) -> None:
        """What has a vector has terms, too."""
        self._in_flight.drop(bank, ids)


class Follower:
    """Carries changes into one collection. To be killed anywhere only repeats work: the cursor is saved last."""

    def __init__(self, store: Store, work: Work, then: Callable[[str], None] = lambda bank: None) -> None:
        """`then` is told of each bank in which something was done."""
        self._store = store
        self._work = work
        self._then = then
        self._bell = asyncio.Event()
        self._hinted: set[str] = set()
        self._paused: dict[str, float] = {}
        self._next_poll = 0.0
        self._ready = False

    def hint(self, bank: str) -> None:
        """Notes that a bank's head may have moved."""
        self._hinted.add(bank)
        self._bell.set()

    async def run(self) -> None:
        """Follows for ever; whatever fails is logged and tried again."""
        while True:
            self._bell.clear()
            try:
                await self._round()
            except Exception as error:
                refusal = from_driver(error)
                log.warning("following waits: %s", refusal.message if refusal else "a defect", exc_info=error)
                self._ready = False
                await asyncio.sleep(RETRY_SECONDS)
                continue
            try:
                async with asyncio.timeout(max(0.0, self._next_poll - time.monotonic())):
                    await self._bell.wait()
            except TimeoutError:
                continue

    async def _round(self) -> None:
        """One page of each bank that is behind; a bank that fails by itself holds up no other."""
        if not self._ready:
            await self._work.prepare()
            self._ready = True
        now = time.monotonic()
        banks, self._hinted = self._hinted, set()
        if now >= self._next_poll:
            banks |= set(await self._store.behind(self._work.kind))
            self._next_poll = now + POLL_SECONDS
            self._paused = {bank: until for bank, until in self._paused.items() if until > now}
        for bank in sorted(banks - self._paused.keys()):
            try:
                if await self.follow(bank):
                    self.hint(bank)
            except Exception as error:
                refusal = from_driver(error)
                if refusal is not None and refusal.reason == "DEPENDENCY_UNAVAILABLE":
                    raise
                log.error(
                    "a bank cannot be followed now: %s",
                    refusal.message if refusal else "a defect",
                    exc_info=error,
                )
                self._paused[bank] = time.monotonic() + PAUSE_SECONDS

    async def follow(self, bank: str) -> bool:
        """Works off one page of a bank; whether there is more. Raises Refusal and what database and engine raise."""
        async with self._store.turn(self._work.kind, bank) as turn:
            more = turn is not None and await self._work_off(bank, turn)
        if turn is not None:
            self._then(bank)
        return more

    async def _work_off(self, bank: str, turn: Turn) -> bool:
        changes, through, more = await turn.page(self._work.page)
        kept = self._work.affordable(changes)
        if len(kept) < len(changes):
            changes, through, more = kept, kept[-1].seq, True
        todo = plan(changes)
        points = self._work.points
        present = await points.present(bank, [change.id for change in todo.index])
        made = await self._work.make(bank, [change for change in todo.index if change.id not in present])
        # What takes long is behind us: whoever purges an erasure waits for this claim (see `erase`).
        async with turn.claim(through) as claimed:
            if not claimed:
                return True
            # What was read may have been forgotten or erased since. Who buries it after this look purges it after the
            # claim, and its tombstone is still to be followed.
            live = await self._store.live(bank, list(made))
            await self._work.put(bank, [(memory_id, one) for memory_id, one in made.items() if memory_id in live])
            # Without waiting for the files: an erasure is done only when `erase` has waited for them.
            await points.delete(bank, todo.delete, wait=False)
        # Only now, when a query finds the point: one who looks here first and there second misses nothing.
        self._work.done(bank, [change.id for change in changes])
        return more


async def erase(
    store: Store,
    collections: Sequence[Points],
    in_flight: InFlight,
    erasure_id: str,
    bank: str,
    ids: Sequence[str],
) -> int:
    """Destroys the vectors and the terms of buried memories; counts those that this erasure is purged of by this call.

    The order against the followers of all replicas is kept by the locks on the bank's two cursor rows. A follower that
    saw a memory live holds its lock from that look until it has written: this call waits for it, once, and deletes after
    it. A follower that looks later sees that the memory is buried and writes nothing. Nothing is held meanwhile, so
    that erasures of one bank share the engine's rewrites, and a slow rewrite stops no follower. The delete waits for
    the files, also for the bytes of points that a follower has hidden already, and is repeated in full when the call is.
    A memory that is live keeps its points, whoever asks: nothing would bring it back.
    """
    await store.settled(bank)
    live = await store.live(bank, ids)
    buried = [memory_id for memory_id in ids if memory_id not in live]
    in_flight.drop(bank, buried)
    for points in collections:
        if await points.exists():
            await points.delete(bank, buried, wait=True)
    return await store.purged(erasure_id, bank, buried)
