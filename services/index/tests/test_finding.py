"""What a candidate repeats, by what the follower has written and by what is still on its way to it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from services.index.embedding import Urgency
from services.index.finding import Candidate, Finder
from services.index.following import LANES, Hit, InFlight, Seen, Vector
from services.index.store import Memory

BANK = "project:finding"


class Parts:
    """Store, vectors and embedding in one; every text has the same vector, and those in `cut` were not seen whole."""

    def __init__(self, stored: dict[str, str], cut: set[str]) -> None:
        self._stored = stored
        self._cut = cut
        self.flying: dict[str, str] = {}

    async def embed(self, texts: Sequence[str], urgency: Urgency) -> list[Seen]:
        self.urgency = urgency
        return [Seen(np.array([1, 0], dtype=np.float32), text not in self._cut) for text in texts]

    async def nearest(
        self,
        bank: str,
        queries: Sequence[Vector],
        limit: int,
        threshold: float = 0,
        *,
        whole_only: bool = False,
        lanes: Sequence[str] = LANES,
    ) -> list[list[Hit]]:
        near = [own for own, text in self._stored.items() if not (whole_only and text in self._cut)]
        return [[Hit(own, 1.0) for own in near] for _ in queries]

    async def min_lane(self, bank: str) -> str:
        return LANES[0]

    async def texts(self, bank: str, ids: Sequence[str]) -> dict[str, str]:
        return {own: self._stored.get(own, self.flying.get(own, "")) for own in ids}

    async def memories(self, bank: str, ids: Sequence[str], limit: int) -> list[Memory]:
        return [Memory(own, "user:alice", "synced", self._stored[own], ()) for own in ids]


async def test_a_search_comes_before_a_check() -> None:
    parts: Any = Parts({"a": "other words"}, set())
    asked = Finder(parts, parts, parts, InFlight())
    assert [memory.id for memory, _ in await asked.search(BANK, "which", 10)] == ["a"]
    assert parts.urgency == Urgency.QUERY
    assert await repeats(asked, ("b", "other")) == ["a"] and parts.urgency == Urgency.CHECK


async def repeats(finder: Finder, *candidates: tuple[str, str]) -> list[str]:
    answers = await finder.near_duplicates(BANK, [Candidate(*one) for one in candidates], 0.95)
    return [answer.id if answer else "" for answer in answers]


def finder(stored: dict[str, str], cut: set[str]) -> Finder:
    parts: Any = Parts(stored, cut)
    return Finder(parts, parts, parts, InFlight())


async def test_what_another_push_has_just_checked_is_repeated_by_equal_words_or_when_both_are_whole() -> None:
    asked = finder({}, {"cut one", "cut two"})
    assert await repeats(asked, ("a", "cut one"), ("b", "whole")) == ["", ""]
    assert await repeats(asked, ("c", "cut two"), ("d", "cut one"), ("e", "whole too")) == ["", "a", "b"]


async def test_what_is_stored_is_repeated_by_equal_words_or_when_both_are_whole() -> None:
    stored = {"a": "cut one", "b": "cut  two\n"}
    asked = finder(stored, {"cut one", "cut two", "cut  two\n", "cut three"})
    assert await repeats(asked, ("c", "cut two"), ("d", "cut three"), ("e", "whole")) == ["b", "", ""]
    asked = finder(stored | {"w": "whole"}, {"cut one", "cut two", "cut  two\n", "cut three"})
    assert await repeats(asked, ("f", "whole too"), ("g", "cut three")) == ["w", ""]


async def test_what_denies_a_text_repeats_it_neither_in_the_store_nor_in_flight_nor_in_the_batch() -> None:
    yes, no, again = "We deploy on Fridays.", "We don't deploy on Fridays.", "We never deploy on Fridays"
    asked = finder({"stored": yes}, set())
    assert await repeats(asked, ("a", no), ("b", again), ("c", yes)) == ["", "a", "stored"]
    parts: Any = Parts({}, set())
    asked = Finder(parts, parts, parts, InFlight())
    assert await repeats(asked, ("a", yes)) == [""]
    parts.flying["a"] = yes
    assert await repeats(asked, ("b", no), ("c", yes)) == ["", "a"]
