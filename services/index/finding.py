"""Finds memories by meaning. A vector proposes; only a row that is live in Postgres now is ever answered."""

from services.index.embedding import Embedding, Urgency
from services.index.following import LANES
from services.index.store import Memory, Store
from services.index.vectors import Vectors

LARGEST_ANSWER_BYTES = 2_500_000
"""An answer must stay below gRPC's 4 MiB; farther hits are left out."""


class Finder:
    """Answers questions, each within one bank."""

    def __init__(self, store: Store, vectors: Vectors, embedding: Embedding) -> None:
        self._store = store
        self._vectors = vectors
        self._embedding = embedding

    async def search(self, bank: str, query: str, limit: int) -> list[tuple[Memory, float]]:
        """The live memories nearest to the query, best first. A stale vector costs recall, never leaks."""
        # Asked for by lane already: else nearer ones that the bank does not serve would crowd out those it does.
        lanes = LANES[LANES.index(await self._store.min_lane(bank)) :]
        (seen,) = await self._embedding.embed([query], Urgency.QUERY)
        (hits,) = await self._vectors.nearest(bank, [seen.vector], 2 * limit + 16, lanes=lanes)
        scores = {hit.id: hit.score for hit in hits}
        found: list[tuple[Memory, float]] = []
        size = 0
        for memory in await self._store.memories(bank, list(scores), limit):
            size += len(memory.text.encode())
            if found and size > LARGEST_ANSWER_BYTES:
                break
            found.append((memory, scores[memory.id]))
        return found
