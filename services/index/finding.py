"""Finds memories by meaning. A vector proposes; only a row that is live in Postgres now is ever answered."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from kit.texts import normalised
from services.index.embedding import Embedding, Urgency
from services.index.following import LANES, Hit, InFlight, Seen, decide, near
from services.index.store import Memory, Store
from services.index.vectors import Vectors

NEIGHBOURS = 5
SAME_VECTOR, OPENED = 0.999, 20
"""A text that was not seen whole is compared, word by word, with so many stored ones of the same vector: many short
texts of an unknown script have one, and an equal beyond them is stored once more."""


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

    async def near_duplicates(
        self, bank: str, candidates: Sequence[Candidate], threshold: float
    ) -> list[Hit | None]:
        """What each candidate nearly repeats, in request order.

        A text that the model did not see whole neither is nor has a near-duplicate; it repeats only its equal.
        """
        ids = [candidate.id for candidate in candidates]
        seen = await self._embedding.embed([candidate.text for candidate in candidates], Urgency.CHECK)
        known, vectors = self._in_flight.of_bank(bank)
        equals = [
            [] if one.whole else self._in_flight.equal(bank, candidate.text)
            for candidate, one in zip(candidates, seen, strict=True)
        ]
        # Put at once, so that a push that runs beside this one meets these as soon as they are stored.
        for candidate, one in zip(candidates, seen, strict=True):
            self._in_flight.put(bank, candidate.id, candidate.text, one)
        whole = [position for position, one in enumerate(seen) if one.whole]
        rows = [seen[position].vector for position in whole]
        stored: list[list[Hit]] = [[Hit(own, 1.0) for own in found] for found in equals]
        # In this order: the follower writes a point before it drops the vector in flight.
        flying = await asyncio.to_thread(near, rows, known, vectors, threshold)
        indexed = await self._vectors.nearest(bank, rows, NEIGHBOURS, threshold, whole_only=True)
        for position, here, there in zip(whole, indexed, flying, strict=True):
            stored[position] = [*here, *there]
        for position, found in (await self._equals(bank, candidates, seen)).items():
            stored[position] += found
        live = await self._store.texts(bank, sorted({hit.id for hits in stored for hit in hits}))
        texts = [candidate.text for candidate in candidates]
        answers = await asyncio.to_thread(decide, ids, texts, seen, stored, live, threshold)
        self._in_flight.drop(
            bank, [own for own, answer in zip(ids, answers, strict=True) if answer is not None]
        )
        return answers

    async def _equals(
        self, bank: str, candidates: Sequence[Candidate], seen: Sequence[Seen]
    ) -> dict[int, list[Hit]]:
        """For each candidate that was not seen whole the stored memories with its very words.

        The vector, which is the same, only proposes them: their texts are opened and compared.
        """
        cut = [position for position, one in enumerate(seen) if not one.whole]
        if not cut:
            return {}
        proposed = await self._vectors.nearest(
            bank, [seen[position].vector for position in cut], OPENED, SAME_VECTOR
        )
        ids = sorted({hit.id for hits in proposed for hit in hits})
        words = {memory.id: memory.text for memory in await self._store.memories(bank, ids, len(ids))}
        words = {memory_id: normalised(text) for memory_id, text in words.items()}
        return {
            position: [
                Hit(hit.id, 1.0) for hit in hits if words.get(hit.id) == normalised(candidates[position].text)
            ]
            for position, hits in zip(cut, proposed, strict=True)
        }
