"""Rules of the index: what a page of changes asks for, and what is a near-duplicate."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from teamlore_embedder.polarity import Reading, differs

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
    hits: Sequence[Sequence[Hit]],
    live: Mapping[str, str],
    threshold: float,
) -> list[Hit | None]:
    """What each candidate nearly repeats: the nearest stored memory or earlier candidate, or None.

    `hits` gives of each candidate what it was compared with. A stored memory counts only while it is in `live`, which
    gives the texts, another candidate only when it stands earlier and repeats nothing itself (it will not be stored).
    Nothing repeats its own id, or what it denies. Of equals the stored one is named.
    """
    own_words = {memory_id: Reading(text) for memory_id, text in zip(ids, texts, strict=True)}
    live_words = {memory_id: Reading(text) for memory_id, text in live.items()}
    answers: dict[str, Hit | None] = {}
    for own, found in zip(ids, hits, strict=True):
        near = [hit for hit in found if hit.id != own and hit.score >= threshold - ROUNDING]
        # The nearest first: reading words takes longer than comparing vectors.
        near.sort(key=lambda hit: (-hit.score, hit.id not in live))
        answers[own] = None
        for hit in near:
            words = live_words.get(hit.id)
            if words is None and hit.id in answers and answers[hit.id] is None:
                words = own_words[hit.id]
            if words is not None and not differs(own_words[own], words):
                answers[own] = hit
                break
    return [answers[own] for own in ids]
