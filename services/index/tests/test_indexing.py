"""The order of the follower's steps, which is what makes an erasure final and a kill harmless."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import pytest

from services.index.embedding import Urgency
from services.index.flight import InFlight
from services.index.following import Change, Seen
from services.index.indexing import Follower, TermWork, VectorWork, erase
from services.index.terms import TermKeys

BANK = "project:order"
KEYS = TermKeys(b"k" * 32)


class Parts:
    """Store, turn, vectors and embedding in one, writing down what was asked of them."""

    def __init__(self, changes: Sequence[Change], live_later: set[str]) -> None:
        self.log: list[Any] = []
        self.points: set[str] = set()
        self._changes = tuple(changes)
        self._live = live_later
        self.failing = ""
        self.moved = False

    def _note(self, what: str, *more: object) -> None:
        if what == self.failing:
            raise OSError(what)
        self.log.append((what, *more))

    @contextlib.asynccontextmanager
    async def turn(self, kind: str, bank: str) -> AsyncIterator["Parts"]:
        yield self

    @contextlib.asynccontextmanager
    async def claim(self, through: int) -> AsyncIterator[bool]:
        self._note("claim")
        yield not self.moved
        if not self.moved:
            self._note("save", through)

    async def page(self, limit: int) -> tuple[tuple[Change, ...], int, bool]:
        return self._changes, self._changes[-1].seq, False

    async def live(self, bank: str, ids: Sequence[str]) -> set[str]:
        self._note("live")
        return self._live & set(ids)

    async def settled(self, bank: str) -> None:
        self._note("settled")

    async def purged(self, erasure_id: str, bank: str, ids: Sequence[str]) -> int:
        self._note("purged")
        return len(ids)

    async def exists(self) -> bool:
        return True

    async def present(self, bank: str, ids: Sequence[str]) -> set[str]:
        return self.points & set(ids)

    async def put(self, bank: str, points: Sequence[Any]) -> None:
        ids = {point[0] if isinstance(point, tuple) else point.id for point in points}
        self._note("put", sorted(ids))
        self.points |= ids

    async def delete(self, bank: str, ids: Sequence[str], *, wait: bool) -> None:
        self._note("delete", ids, wait)
        self.points -= set(ids)

    async def embed(self, texts: Sequence[str], urgency: Urgency) -> list[Seen]:
        assert urgency == Urgency.FOLLOW
        if texts:
            self._note("embed", list(texts))
        return [Seen(np.ones(3, dtype=np.float32), True)] * len(texts)


def follower(parts: Any, in_flight: InFlight | None = None) -> Follower:
    return Follower(parts, VectorWork(parts, parts, parts, in_flight or InFlight(), 3))


def ahead(parts: Any, in_flight: InFlight, hinted: list[str]) -> Follower:
    return Follower(parts, TermWork(parts, parts, parts, in_flight, KEYS), hinted.append)


def change(name: str, seq: int = 1) -> Change:
    return Change(seq, name, "upsert", "synced", "fact", f"text of {name}")


async def test_what_was_erased_while_its_vector_was_made_is_not_written() -> None:
    parts = Parts([change("gone"), change("kept", 2), Change(3, "old", "erase")], live_later={"kept"})
    assert not await follower(parts).follow(BANK)
    assert [step[0] for step in parts.log] == ["embed", "claim", "live", "put", "delete", "save"]
    assert parts.log[4] == ("delete", ("old",), False) and parts.points == {"kept"}


async def test_where_another_went_on_meanwhile_nothing_is_written() -> None:
    parts = Parts([change("a")], live_later={"a"})
    parts.moved = True
    assert await follower(parts).follow(BANK)
    assert [step[0] for step in parts.log] == ["embed", "claim"] and not parts.points


@pytest.mark.parametrize("failing", ["embed", "claim", "put", "live", "delete"])
async def test_whatever_fails_saves_no_cursor_and_is_done_again(failing: str) -> None:
    parts, in_flight = Parts([change("a"), Change(2, "b", "erase")], live_later={"a"}), InFlight()
    parts.points, parts.failing = {"b"}, failing
    with pytest.raises(OSError, match=failing):
        await follower(parts, in_flight).follow(BANK)
    assert "save" not in [step[0] for step in parts.log]
    parts.failing = ""
    await follower(parts, in_flight).follow(BANK)
    assert parts.points == {"a"} and parts.log[-1] == ("save", 2)


async def test_a_text_that_was_just_checked_is_not_embedded_twice_and_then_let_go() -> None:
    parts, in_flight = Parts([change("a"), change("b", 2)], live_later={"a", "b"}), InFlight()
    in_flight.put(BANK, "a", "text of a", {}, Seen(np.ones(3, dtype=np.float32), True))
    await follower(parts, in_flight).follow(BANK)
    assert parts.log[0] == ("embed", ["text of b"]) and len(in_flight) == 0


async def test_an_erasure_waits_for_the_bank_then_for_the_files_and_spares_the_living() -> None:
    parts: Any = Parts([change("a")], live_later={"alive"})
    parts.points = {"a", "alive"}
    assert await erase(parts, (parts, parts), InFlight(), "erasure", BANK, ["a", "b", "alive"]) == 2
    assert parts.log == [("settled",), ("live",), *[("delete", ["a", "b"], True)] * 2, ("purged",)]
    assert parts.points == {"alive"}


async def test_a_big_page_is_worked_off_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.index.indexing.PAGE_CHARACTERS", 30)
    parts = Parts([change(name, seq) for seq, name in enumerate("abcdef", 1)], live_later=set("abcdef"))
    assert await follower(parts).follow(BANK)
    assert parts.points == {"a", "b", "c"} and parts.log[-1] == ("save", 3)


async def test_terms_ask_no_model_keep_the_same_order_and_tell_the_vectors() -> None:
    parts, in_flight, hinted = (
        Parts([change("a"), change("gone", 2)], live_later={"a"}),
        InFlight(),
        list[str](),
    )
    terms = KEYS.of(BANK, "text of a")
    in_flight.put(BANK, "a", "text of a", terms)
    assert not await ahead(parts, in_flight, hinted).follow(BANK)
    assert parts.log == [("claim",), ("live",), ("put", ["a"]), ("delete", (), False), ("save", 2)]
    assert in_flight.alike(BANK, terms, 0.9) == [] and hinted == [BANK]


@pytest.mark.parametrize("failing", ["claim", "put", "live", "delete"])
async def test_terms_that_fail_stay_in_flight_and_tell_nobody(failing: str) -> None:
    parts, in_flight, hinted = Parts([change("a")], live_later={"a"}), InFlight(), list[str]()
    terms, parts.failing = KEYS.of(BANK, "text of a"), failing
    in_flight.put(BANK, "a", "text of a", terms)
    with pytest.raises(OSError, match=failing):
        await ahead(parts, in_flight, hinted).follow(BANK)
    assert len(in_flight.alike(BANK, terms, 0.9)) == 1 and not hinted
