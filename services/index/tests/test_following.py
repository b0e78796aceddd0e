"""The rules of the index, without a database and without an engine."""

import numpy as np
import pytest

from services.index.following import Change, Hit, InFlight, Seen, Vector, affordable, decide, near, plan


def unit(*numbers: float) -> Vector:
    row = np.array(numbers, dtype=np.float32)
    return np.asarray(row / np.linalg.norm(row), dtype=np.float32)


def seen(*rows: Vector, whole: bool = True) -> list[Seen]:
    return [Seen(row, whole) for row in rows]


def upsert(seq: int, name: str, text: str | None) -> Change:
    return Change(seq, name, "upsert", "synced", "fact", text)


X, Y = unit(1, 0, 0), unit(0, 1, 0)
NEAR_X = unit(1, 0.1, 0)
(SEEN,) = seen(X)


def test_a_page_indexes_what_is_live_and_deletes_what_is_buried() -> None:
    todo = plan(
        [upsert(1, "a", "one"), upsert(2, "b", None), Change(3, "c", "forget"), Change(4, "d", "erase")]
    )
    assert [change.id for change in todo.index] == ["a"]
    assert todo.delete == ("c", "d")


def test_a_superseded_step_is_left_to_the_step_that_took_its_place() -> None:
    todo = plan([upsert(1, "a", None), Change(2, "a", "status", "synced", "fact", "one")])
    assert [(change.id, change.text) for change in todo.index] == [("a", "one")]
    assert plan([upsert(1, "a", None), Change(2, "a", "erase")]).delete == ("a",)


def test_the_last_step_of_an_id_decides() -> None:
    todo = plan([Change(1, "a", "forget"), upsert(2, "a", "again")])
    assert ([change.id for change in todo.index], todo.delete) == (["a"], ())


def test_a_page_is_cut_where_the_model_has_enough_to_do() -> None:
    changes = (
        upsert(1, "a", "x" * 300),
        upsert(2, "b", None),
        upsert(3, "c", "y" * 9000),
        upsert(4, "d", "z"),
    )
    assert [change.id for change in affordable(changes, 1600)] == ["a", "b", "c"]
    assert [change.id for change in affordable(changes, 1599)] == ["a", "b"]
    assert [change.id for change in affordable(changes, 0)] == ["a"]
    assert affordable(changes, 10**6) is changes and affordable((), 1) == ()


def test_an_in_flight_vector_belongs_to_bank_id_and_text() -> None:
    cache = InFlight()
    cache.put("bank-a", "id", "words", SEEN)
    assert cache.get("bank-a", "id", "words") is SEEN
    assert cache.get("bank-a", "id", "other words") is None
    assert cache.get("bank-b", "id", "words") is None
    assert cache.of_bank("bank-b") == ([], [])
    cache.drop("bank-b", ["id"])
    assert cache.of_bank("bank-a")[0] == ["id"]
    cache.drop("bank-a", ["id", "unknown"])
    assert (cache.get("bank-a", "id", "words"), len(cache)) == (None, 0)


def test_in_flight_is_bounded_by_count_and_by_age() -> None:
    now = [0.0]
    cache = InFlight(capacity=2, seconds=10, clock=lambda: now[0])
    cache.put("bank", "a", "a", SEEN)
    cache.put("bank", "b", "b", SEEN)
    cache.put("bank", "a", "a", SEEN)
    cache.put("bank", "c", "c", SEEN)
    assert cache.of_bank("bank")[0] == ["a", "c"]
    now[0] = 10.0
    assert (cache.of_bank("bank"), len(cache)) == (([], []), 0)


def test_near_gives_only_what_reaches_the_threshold() -> None:
    found = near([X, Y], ["x", "y"], [NEAR_X, Y], 0.9)
    assert [[hit.id for hit in hits] for hits in found] == [["x"], ["y"]]
    assert near([X], [], [], 0.9) == [[]]


def test_equal_texts_reach_a_threshold_of_one() -> None:
    row = unit(*np.random.default_rng(7).normal(size=384))
    assert [hit and hit.id for hit in decide(["a", "b"], SAME[:2], seen(row, row), [[], []], {}, 1.0)] == [
        None,
        "a",
    ]


SAME = ["We use SQS."] * 4


def names(answers: list[Hit | None]) -> list[str | None]:
    return [answer and answer.id for answer in answers]


def test_a_candidate_repeats_an_earlier_one_but_never_one_that_is_a_duplicate_itself() -> None:
    # b repeats a; c is near b only, and b will not be stored.
    a, b, c = unit(1, 0, 0), unit(1, 0.3, 0), unit(1, 0.6, 0)
    assert float(a @ c) < 0.95 < min(float(a @ b), float(b @ c))
    rows, nothing = seen(a, b, c, c), [[], [], [], []]
    assert names(decide(["a", "b", "c", "d"], SAME, rows, nothing, {}, 0.95)) == [None, "a", None, "c"]


@pytest.mark.parametrize(("live", "named"), [({"far", "gone"}, "gone"), ({"far"}, "far"), (set(), None)])
def test_a_stored_memory_counts_only_while_it_is_live(live: set[str], named: str | None) -> None:
    stored = [[Hit("far", 0.96), Hit("gone", 0.99)]]
    assert names(decide(["own"], SAME, seen(X), stored, dict.fromkeys(live, SAME[0]), 0.95)) == [named]


def test_a_candidate_never_repeats_itself() -> None:
    assert names(decide(["own"], SAME, seen(X), [[Hit("own", 1.0)]], {"own": SAME[0]}, 0.95)) == [None]


def test_of_equals_the_stored_memory_is_named() -> None:
    answers = decide(["a", "b"], SAME, seen(Y, Y), [[], [Hit("stored", 1.0)]], {"stored": SAME[0]}, 0.95)
    assert names(answers) == [None, "stored"]


def test_what_was_not_seen_whole_neither_is_nor_has_a_near_duplicate() -> None:
    for one, other in ((True, False), (False, True), (False, False)):
        both = [*seen(X, whole=one), *seen(X, whole=other)]
        assert names(decide(["a", "b"], SAME, both, [[], []], {}, 0.95)) == [None, None]
    cache = InFlight()
    cache.put("bank", "cut", "ฉันชอบกาแฟ", Seen(X, False))
    cache.put("bank", "whole", "words", Seen(X, True))
    assert cache.of_bank("bank")[0] == ["whole"]
    assert cache.equal("bank", " ฉันชอบกาแฟ\n") == ["cut"]
    assert cache.equal("bank", "ฐานข้อมูล") == cache.equal("other", "ฉันชอบกาแฟ") == []
