"""Follows every bank: what is live gets a vector, what is forgotten or erased loses it."""

import asyncio
import logging
import time
from collections.abc import Sequence

from kit.errors import from_driver
from services.index.embedding import Embedding, Urgency
from services.index.following import Change, InFlight, Seen, affordable, plan
from services.index.store import Claim, Store
from services.index.vectors import Point, Vectors

log = logging.getLogger("teamlore.index")
POLL_SECONDS = 0.25
RETRY_SECONDS, PAUSE_SECONDS = 1.0, 5.0
PAGE, PAGE_CHARACTERS = 64, 6_000
"""What is followed of one bank before the others have their turn, in changes and in characters to be embedded."""


class Follower:
    """Carries changes into the collection. To be killed anywhere only repeats work: the cursor is saved last."""

    def __init__(
        self, store: Store, vectors: Vectors, embedding: Embedding, in_flight: InFlight, dimension: int
    ) -> None:
        self._store = store
        self._vectors = vectors
        self._embedding = embedding
        self._in_flight = in_flight
        self._dimension = dimension
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
            await self._prepare()
            self._ready = True
        now = time.monotonic()
        banks, self._hinted = self._hinted, set()
        if now >= self._next_poll:
            banks |= set(await self._store.behind())
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

    async def _prepare(self) -> None:
        """Makes the collection where there is none. The cursors go back first: a kill in between repeats both."""
        if not await self._vectors.exists():
            await self._store.start_over()
            await self._vectors.create(self._dimension)
        await self._vectors.create_indexes()

    async def follow(self, bank: str) -> bool:
        """Works off one page of a bank; whether there is more. Raises Refusal and what database and engine raise."""
        async with self._store.claim(bank) as claim:
            return claim is not None and await self._work_off(bank, claim)

    async def _work_off(self, bank: str, claim: Claim) -> bool:
        changes, through, more = await claim.page(PAGE)
        kept = affordable(changes, PAGE_CHARACTERS)
        if len(kept) < len(changes):
            changes, through, more = kept, kept[-1].seq, True
        todo = plan(changes)
        present = await self._vectors.present(bank, [change.id for change in todo.index])
        missing = [change for change in todo.index if change.id not in present]
        rows = await self._vectors_of(bank, missing)
        points = [
            Point(change.id, change.lane, change.derivation, row)
            for change, row in zip(missing, rows, strict=True)
        ]
        await self._vectors.put(bank, points)
        # What was read may have been forgotten or erased since. Whoever purges an erasure waits for this claim (see
        # `erase`), so its delete comes after this put; and should this process die here, the cursor is not saved
        # and the next follower meets the tombstone's change. Looking again keeps the time short until then.
        written = [point.id for point in points]
        live = await self._store.live(bank, written)
        gone = [memory_id for memory_id in written if memory_id not in live]
        # Without waiting for the files: an erasure is done only when `erase` has waited for them.
        await self._vectors.delete(bank, [*todo.delete, *gone], wait=False)
        await claim.save(through)
        # Only now, when a query finds the point: one who looks here first and there second misses nothing.
        self._in_flight.drop(bank, [change.id for change in changes])
        return more

    async def _vectors_of(self, bank: str, changes: Sequence[Change]) -> list[Seen]:
        """A vector each; a text that was just checked is not embedded twice."""
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
        return [rows[position] for position in range(len(changes))]


async def erase(
    store: Store, vectors: Vectors, in_flight: InFlight, erasure_id: str, bank: str, ids: Sequence[str]
) -> int:
    """Destroys the vectors of buried memories; counts those that this erasure is purged of by this call.

    The order against the followers of all replicas is kept by the lock on the bank's cursor row. A follower that
    read a memory before its tombstone holds that lock until its vector is written: this call waits for it and deletes
    after it. A follower that comes later reads the tombstone and writes nothing. The delete waits for the files,
    also for the bytes of points that a follower has hidden already, and is repeated in full when the call is.
    A memory that is live keeps its vector, whoever asks: nothing would bring it back.
    """

    async def destroy() -> list[str]:
        live = await store.live(bank, ids)
        buried = [memory_id for memory_id in ids if memory_id not in live]
        in_flight.drop(bank, buried)
        if await vectors.exists():
            await vectors.delete(bank, buried, wait=True)
        return buried

    return await store.erase(erasure_id, bank, destroy)
