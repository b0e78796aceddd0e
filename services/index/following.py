"""Rules of the index: what a page of changes asks for, which vectors are in flight, and what is a near-duplicate."""

import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kit.texts import normalised
from services.index.polarity import Reading, differs

Vector = npt.NDArray[np.float32]
"""One unit vector, or a matrix whose rows are unit vectors."""

LANES = ("synced", "capture", "entry")
"""How a memory came in, the least reviewed first."""


@dataclass(frozen=True)
class Seen:
    """What the model made of a text, and whether it saw all of it."""

    vector: Vector
    whole: bool
    """False where different texts may have this very vector, so that it makes nothing a near-duplicate."""


ROUNDING = 1e-5
"""What float32 may take from the cosine of two equal texts, so that a threshold of 1 can be reached."""


@dataclass(frozen=True)
class Change:
    """One change of a bank; `text` is None unless it is the newest step of a live memory."""

    seq: int
    id: str
    kind: str
    lane: str = ""
    derivation: str = ""
    text: str | None = None


@dataclass(frozen=True)
class Hit:
    """A memory, or a candidate of the same call, and the cosine to it."""

    id: str
    score: float


@dataclass(frozen=True)
class Plan:
    """What a page asks for: memories whose vectors must be there, and ids whose vectors must not."""

    index: tuple[Change, ...]
    delete: tuple[str, ...]


def plan(changes: Iterable[Change]) -> Plan:
    """What to do for a page; the last step of an id within it decides.

    A superseded step asks for nothing: the step that took its place stands later in the log.
    """
    index: dict[str, Change] = {}
    delete: dict[str, None] = {}
    for change in changes:
        if change.text is not None:
            index[change.id] = change
            delete.pop(change.id, None)
        elif change.kind in ("forget", "erase"):
            delete[change.id] = None
            index.pop(change.id, None)
    return Plan(tuple(index.values()), tuple(delete))


SEEN_CHARACTERS = 1300
"""About what 256 tokens hold: a longer text takes the model no longer."""


def affordable(changes: tuple[Change, ...], characters: int) -> tuple[Change, ...]:
    """The first of these changes that together cost the model so many characters; at least one of them."""
    spent = 0
    for count, change in enumerate(changes):
        spent += min(len(change.text or ""), SEEN_CHARACTERS)
        if count and spent > characters:
            return changes[:count]
    return changes


@dataclass(frozen=True)
class _Held:
    mark: bytes
    seen: Seen
    until: float


class InFlight:
    """Vectors of texts that were just checked and may not be indexed yet; least lately put ones leave first.

    A vector belongs to (bank, id) *and* text: an id that another push won with other words does not get it.
    What is held of a text is a hash of its normalised form under a key of this process, in memory only.
    """

    def __init__(
        self, capacity: int = 20_000, seconds: float = 600.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._capacity = capacity
        self._seconds = seconds
        self._clock = clock
        self._key = os.urandom(32)
        self._order: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._banks: dict[str, dict[str, _Held]] = {}

    def __len__(self) -> int:
        return len(self._order)

    def _mark(self, text: str) -> bytes:
        return hashlib.blake2b(normalised(text).encode(), key=self._key, digest_size=16).digest()

    def put(self, bank: str, memory_id: str, text: str, seen: Seen) -> None:
        """Holds a vector for a while."""
        self._forget(bank, memory_id)
        self._banks.setdefault(bank, {})[memory_id] = _Held(
            self._mark(text), seen, self._clock() + self._seconds
        )
        self._order[(bank, memory_id)] = None
        self._prune()

    def get(self, bank: str, memory_id: str, text: str) -> Seen | None:
        """What was seen of this very text under this id."""
        self._prune()
        held = self._banks.get(bank, {}).get(memory_id)
        return held.seen if held is not None and held.mark == self._mark(text) else None

    def drop(self, bank: str, ids: Iterable[str]) -> None:
        """Lets go of vectors that are indexed, refused or erased."""
        for memory_id in ids:
            self._forget(bank, memory_id)

    def of_bank(self, bank: str) -> tuple[list[str], list[Vector]]:
        """Ids and vectors of one bank, as they are now, of texts that were seen whole."""
        self._prune()
        held = {own: one.seen for own, one in self._banks.get(bank, {}).items() if one.seen.whole}
        return list(held), [seen.vector for seen in held.values()]

    def equal(self, bank: str, text: str) -> list[str]:
        """Ids of one bank under which this very text is held."""
        self._prune()
        mark = self._mark(text)
        return [own for own, held in self._banks.get(bank, {}).items() if held.mark == mark]

    def _forget(self, bank: str, memory_id: str) -> None:
        if (bank, memory_id) not in self._order:
            return
        del self._order[(bank, memory_id)]
        held = self._banks[bank]
        del held[memory_id]
        if not held:
            del self._banks[bank]

    def _prune(self) -> None:
        now = self._clock()
        while self._order:
            bank, memory_id = next(iter(self._order))
            if len(self._order) <= self._capacity and self._banks[bank][memory_id].until > now:
                return
            self._forget(bank, memory_id)


def near(
    queries: Sequence[Vector], ids: Sequence[str], vectors: Sequence[Vector], threshold: float
) -> list[list[Hit]]:
    """For each of the queries the ids whose vectors are at least that near."""
    if not ids or not len(queries):
        return [[] for _ in queries]
    scores = np.stack(queries) @ np.stack(vectors).T
    return [
        [Hit(ids[int(column)], float(row[column])) for column in np.flatnonzero(row >= threshold - ROUNDING)]
        for row in scores
    ]


def decide(
    ids: Sequence[str],
    texts: Sequence[str],
    seen: Sequence[Seen],
    stored: Sequence[Sequence[Hit]],
    live: Mapping[str, str],
    threshold: float,
) -> list[Hit | None]:
    """What each candidate nearly repeats: the nearest stored memory or earlier candidate, or None.

    A stored memory counts only while it is in `live`, which gives the texts, an earlier candidate only when it repeats
    nothing itself (it will not be stored) and both were seen whole. Nothing repeats its own id, or what it denies. Of
    equals the stored one is named.
    """
    vectors = np.stack([one.vector for one in seen])
    scores = vectors @ vectors.T
    own_words = [Reading(text) for text in texts]
    live_words = {memory_id: Reading(text) for memory_id, text in live.items()}
    answers: list[Hit | None] = []
    for row, own in enumerate(ids):
        hits = [(hit, live_words[hit.id]) for hit in stored[row] if hit.id in live]
        hits += [
            (Hit(ids[earlier], float(scores[row, earlier])), own_words[earlier])
            for earlier in range(row)
            if answers[earlier] is None and seen[row].whole and seen[earlier].whole
        ]
        hits = [pair for pair in hits if pair[0].id != own and pair[0].score >= threshold - ROUNDING]
        # The nearest first: reading words takes longer than comparing vectors.
        hits.sort(key=lambda pair: -pair[0].score)
        answers.append(next((hit for hit, words in hits if not differs(own_words[row], words)), None))
    return answers
