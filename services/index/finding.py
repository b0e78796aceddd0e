"""Finds memories by meaning. A vector proposes; only a row that is live in Postgres now is ever answered."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from services.index.embedding import Embedding
from services.index.following import LANES, Hit, InFlight, decide, near
from services.index.store import Memory, Store
from services.index.vectors import Vectors

NEIGHBOURS = 5


@dataclass(frozen=True)
class Candidate:
    """A text that is about to be stored."""

    id: str
    text: str


LARGEST_ANSWER_BYTES = 2_500_000
"""An answer must stay below gRPC's 4 MiB; farther hits are left out."""


class Finder:
    """Answers questions and looks for near-duplicates, each within one bank."""

    def __init__(self, store: Store, vectors: Vectors, embedding: Embedding, in_flight: InFlight) -> None:
        self._store = store
        self._vectors = vectors
        self._embedding = embedding
        self._in_flight = in_flight

    async def search(self, bank: str, query: str, limit: int) -> list[tuple[Memory, float]]:
        """The live memories nearest to the query, best first. A stale vector costs recall, never leaks."""
        # Asked for by lane already: else nearer ones that the bank does not serve would crowd out those it does.
        lanes = LANES[LANES.index(await self._store.min_lane(bank)) :]
        rows = await self._embedding.embed([query])
        (hits,) = await self._vectors.nearest(bank, rows, 2 * limit + 16, lanes=lanes)
        scores = {hit.id: hit.score for hit in hits}
        found: list[tuple[Memory, float]] = []
        size = 0
        for memory in await self._store.memories(bank, list(scores), limit):
            size += len(memory.text.encode())
            if found and size > LARGEST_ANSWER_BYTES:
                break
            found.append((memory, scores[memory.id]))
        return found

    async def near_duplicates(
        self, bank: str, candidates: Sequence[Candidate], threshold: float
    ) -> list[Hit | None]:
        """What each candidate nearly repeats, in request order."""
        ids = [candidate.id for candidate in candidates]
        rows = await self._embedding.embed([candidate.text for candidate in candidates])
        known, vectors = self._in_flight.of_bank(bank)
        # Put at once, so that a push that runs beside this one meets these as soon as they are stored.
        for candidate, row in zip(candidates, rows, strict=True):
            self._in_flight.put(bank, candidate.id, candidate.text, row)
        # In this order: the follower writes a point before it drops the vector in flight.
        flying = await asyncio.to_thread(near, rows, known, vectors, threshold)
        indexed = await self._vectors.nearest(bank, rows, NEIGHBOURS, threshold)
        stored = [[*here, *there] for here, there in zip(indexed, flying, strict=True)]
        live = await self._store.live(bank, sorted({hit.id for hits in stored for hit in hits}))
        answers = decide(ids, rows, stored, live, threshold)
        self._in_flight.drop(
            bank, [own for own, answer in zip(ids, answers, strict=True) if answer is not None]
        )
        return answers
