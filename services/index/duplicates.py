"""Looks for near-duplicates: words propose, the model decides, and only a row that Postgres has, and that is recalled, is ever
named: what replaced or contradicted one says is said anew where it is pushed again.

A record that shares too few terms with any other is answered without the model, so that its push need not wait for it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from teamlore_embedder.polarity import Reading, differs

from kit.texts import normalised
from services.index.embedding import Embedding, Urgency
from services.index.flight import InFlight
from services.index.following import Hit, Seen, decide, near
from services.index.store import Store
from services.index.term_points import TermPoints
from services.index.terms import EQUAL, TermKeys, Terms, bound
from services.index.vectors import Vectors

ALIKE = 10
"""Stored memories that a record is compared with at most, those that share most. Of the same call it is compared with
all earlier ones that share enough: ten that repeat the eleventh would hide it."""
MOST_READ = 2 * ALIKE
"""So many are read before the model is asked; of the rest only those that the model finds near."""
NEIGHBOURS = 5
SAME_VECTOR, OPENED = 0.999, 20
"""Where terms are not asked, a text that was not seen whole is compared, word by word, with so many stored ones of the
same vector: many short texts of an unknown script have one, and an equal beyond them is stored once more."""


@dataclass(frozen=True)
class Candidate:
    """A text that is about to be stored."""

    id: str
    text: str


@dataclass
class _Asked:
    """One candidate on its way to an answer."""

    id: str
    text: str
    terms: Terms
    rivals: list[str] = field(default_factory=list)
    """Ids that the model has to compare it with."""
    hits: list[Hit] = field(default_factory=list)


class Duplicates:
    """Tells what a candidate repeats, within one bank."""

    def __init__(
        self,
        store: Store,
        vectors: Vectors,
        points: TermPoints,
        embedding: Embedding,
        in_flight: InFlight,
        keys: TermKeys,
    ) -> None:
        self._store = store
        self._vectors = vectors
        self._points = points
        self._embedding = embedding
        self._in_flight = in_flight
        self._keys = keys

    async def find(self, bank: str, candidates: Sequence[Candidate], threshold: float) -> list[Hit | None]:
        """What each candidate nearly repeats, in request order.

        A text that the model did not see whole neither is nor has a near-duplicate; it repeats only its equal.
        """
        asked = await asyncio.to_thread(
            lambda: [_Asked(one.id, one.text, self._keys.of(bank, one.text)) for one in candidates]
        )
        least = bound(threshold)
        with self._embedding.checking():
            if least is not None and await self._store.covered(bank):
                answers = await self._by_terms(bank, asked, least, threshold)
            else:
                answers = await self._by_vectors(bank, asked, threshold)
        self._in_flight.drop(
            bank, [one.id for one, answer in zip(asked, answers, strict=True) if answer is not None]
        )
        return answers

    async def _by_terms(
        self, bank: str, asked: Sequence[_Asked], least: float, threshold: float
    ) -> list[Hit | None]:
        # Put at once, so that a push that runs beside this one meets these as soon as they are stored.
        for one in asked:
            self._in_flight.put(bank, one.id, one.text, one.terms)
        # In this order: the follower writes a point before it lets go of what is in flight.
        flying = [self._in_flight.alike(bank, one.terms, least) for one in asked]
        indexed = await self._points.alike(bank, [one.terms for one in asked], least, ALIKE)
        position = {one.id: at for at, one in enumerate(asked)}
        alike = [
            [
                *_best([hit for hit in [*here, *there] if hit.id not in position]),
                *(hit for hit in here if position.get(hit.id, len(asked)) < at),
            ]
            for at, (here, there) in enumerate(zip(flying, indexed, strict=True))
        ]
        if not any(alike):
            return [None] * len(asked)
        others = {hit.id for hits in alike for hit in hits} - position.keys()
        texts = await self._store.texts(bank, sorted(others))
        await asyncio.to_thread(_sift, asked, alike, texts)
        await self._compare(bank, asked, texts)
        return await self._decide(bank, asked, texts, threshold)

    async def _compare(self, bank: str, asked: Sequence[_Asked], texts: dict[str, str]) -> None:
        """Asks the model about those that have rivals, and about rivals that have no vector yet."""
        own = {one.id: one.text for one in asked}
        rivals = {rival for one in asked for rival in one.rivals}
        todo = {one.id: one.text for one in asked if one.rivals or one.id in rivals}
        words = {rival: texts[rival] for rival in rivals - own.keys()} | todo
        seen = {
            name: held
            for name, text in words.items()
            if (held := self._in_flight.get(bank, name, text)) is not None
        }
        seen |= await self._see(bank, {name: text for name, text in todo.items() if name not in seen})
        whole = [one for one in asked if one.rivals and seen[one.id].whole]
        absent = {
            one.id: [rival for rival in one.rivals if rival not in seen and rival not in own] for one in whole
        }
        put = [one for one in whole if absent[one.id]]
        stored = await self._vectors.among(bank, [(seen[one.id].vector, absent[one.id]) for one in put])
        for one, cosines in zip(put, stored, strict=True):
            one.hits += [Hit(rival, cosine) for rival, (cosine, entire) in cosines.items() if entire]
            absent[one.id] = [rival for rival in absent[one.id] if rival not in cosines]
        unknown = {rival: texts[rival] for one in put for rival in absent[one.id]}
        seen |= await self._see(bank, unknown)
        for one in whole:
            flying = [rival for rival in one.rivals if rival in seen and seen[rival].whole]
            one.hits += [Hit(rival, float(seen[one.id].vector @ seen[rival].vector)) for rival in flying]

    async def _see(self, bank: str, texts: dict[str, str]) -> dict[str, Seen]:
        """What the model makes of these texts, by id; kept for the follower, so that none is embedded twice."""
        rows = await self._embedding.embed(list(texts.values()), Urgency.CHECK)
        seen = dict(zip(texts, rows, strict=True))
        for memory_id, row in seen.items():
            self._in_flight.see(bank, memory_id, texts[memory_id], row)
        return seen

    async def _by_vectors(self, bank: str, asked: Sequence[_Asked], threshold: float) -> list[Hit | None]:
        """The same without terms: all candidates are embedded and compared with all that the bank holds."""
        seen = await self._embedding.embed([one.text for one in asked], Urgency.CHECK)
        known, vectors = self._in_flight.of_bank(bank)
        equals = [
            [] if row.whole else self._in_flight.equal(bank, one.text)
            for one, row in zip(asked, seen, strict=True)
        ]
        for one, row in zip(asked, seen, strict=True):
            self._in_flight.put(bank, one.id, one.text, one.terms, row)
        whole = [(one, row.vector) for one, row in zip(asked, seen, strict=True) if row.whole]
        rows = [row for _, row in whole]
        for one, found in zip(asked, equals, strict=True):
            one.hits += [Hit(own, 1.0) for own in found]
        flying = await asyncio.to_thread(near, rows, known, vectors, threshold)
        indexed = await self._vectors.nearest(bank, rows, NEIGHBOURS, threshold, whole_only=True)
        among = near(rows, [one.id for one, _ in whole], rows, threshold)
        for (one, _), here, there, beside in zip(whole, indexed, flying, among, strict=True):
            one.hits += [*here, *there, *beside]
        await self._add_equals(bank, asked, seen)
        own = {one.id for one in asked}
        texts = await self._store.texts(bank, sorted({hit.id for one in asked for hit in one.hits} - own))
        return await self._decide(bank, asked, texts, threshold)

    async def _add_equals(self, bank: str, asked: Sequence[_Asked], seen: Sequence[Seen]) -> None:
        """Adds to each candidate that was not seen whole the stored memories with its very words.

        The vector, which is the same, only proposes them: their texts are opened and compared.
        """
        cut = [(one, row.vector) for one, row in zip(asked, seen, strict=True) if not row.whole]
        proposed = await self._vectors.nearest(bank, [row for _, row in cut], OPENED, SAME_VECTOR)
        texts = await self._store.texts(bank, sorted({hit.id for hits in proposed for hit in hits}))
        for (one, _), hits in zip(cut, proposed, strict=True):
            same = normalised(one.text)
            one.hits += [
                Hit(hit.id, 1.0) for hit in hits if hit.id in texts and normalised(texts[hit.id]) == same
            ]

    async def _decide(
        self, bank: str, asked: Sequence[_Asked], texts: dict[str, str], threshold: float
    ) -> list[Hit | None]:
        """Names what is recalled now: it may have been forgotten, or replaced, while the model was asked."""
        recalled = await self._store.recalled(bank, sorted(texts))
        self._in_flight.drop(bank, texts.keys() - recalled)
        return await asyncio.to_thread(
            decide,
            [one.id for one in asked],
            [one.text for one in asked],
            [one.hits for one in asked],
            {memory_id: text for memory_id, text in texts.items() if memory_id in recalled},
            threshold,
        )


def _best(hits: Sequence[Hit]) -> list[Hit]:
    """The best of these, each id once."""
    once = {hit.id: hit for hit in sorted(hits, key=lambda hit: hit.score)}
    return sorted(once.values(), key=lambda hit: -hit.score)[:ALIKE]


def _sift(asked: Sequence[_Asked], alike: Sequence[Sequence[Hit]], texts: dict[str, str]) -> None:
    """Leaves to the model what words alone do not decide: not an equal text, and none that denies or is gone.

    What equals a stored memory needs no model. An equal candidate of the same call may yet repeat something itself.
    """
    words = {memory_id: Reading(text) for memory_id, text in texts.items()}
    for one, hits in zip(asked, alike, strict=True):
        own = Reading(one.text)
        for rank, hit in enumerate(hits):
            if (other := words.get(hit.id)) is None:
                continue
            if hit.score >= EQUAL and normalised(other.text) == normalised(one.text):
                one.hits.append(Hit(hit.id, 1.0))
            elif rank >= MOST_READ or not differs(own, other):
                one.rivals.append(hit.id)
        if any(hit.id in texts for hit in one.hits):
            one.rivals = []
        words.setdefault(one.id, own)
