"""The rules of the index, without a database and without an engine."""

import numpy as np
import pytest

from services.index.following import Change, Hit, Vector, affordable, decide, near, plan


def unit(*numbers: float) -> Vector:
    row = np.array(numbers, dtype=np.float32)
    return np.asarray(row / np.linalg.norm(row), dtype=np.float32)


def upsert(seq: int, name: str, text: str | None) -> Change:
    return Change(seq, name, "upsert", "synced", "fact", text)


X, Y = unit(1, 0, 0), unit(0, 1, 0)
NEAR_X = unit(1, 0.1, 0)


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


def test_near_gives_only_what_reaches_the_threshold() -> None:
    found = near([X, Y], ["x", "y"], [NEAR_X, Y], 0.9)
    assert [[hit.id for hit in hits] for hits in found] == [["x"], ["y"]]
    assert near([X], [], [], 0.9) == [[]]


SAME = "We use SQS."


def names(answers: list[Hit | None]) -> list[str | None]:
    return [answer and answer.id for answer in answers]


def decided(
    hits: dict[str, list[tuple[str, float]]],
    live: set[str] = frozenset(),
    threshold: float = 0.95,  # type: ignore[assignment]
) -> list[str | None]:
    """The same text under each id, and what each was compared with."""
    found = [[Hit(*one) for one in each] for each in hits.values()]
    return names(decide(list(hits), [SAME] * len(hits), found, dict.fromkeys(live, SAME), threshold))


def test_equal_texts_reach_a_threshold_of_one() -> None:
    assert decided({"a": [], "b": [("a", 1 - 1e-6)]}, threshold=1.0) == [None, "a"]


def test_a_candidate_repeats_an_earlier_one_but_never_one_that_is_a_duplicate_itself() -> None:
    near_a_later_one = {
        "a": [("b", 0.96)],
        "b": [("a", 0.96)],
        "c": [("b", 0.96)],
        "d": [("b", 0.99), ("c", 1.0)],
    }
    assert decided(near_a_later_one) == [None, "a", None, "c"]


@pytest.mark.parametrize(("live", "named"), [({"far", "gone"}, "gone"), ({"far"}, "far"), (set(), None)])
def test_a_stored_memory_counts_only_while_it_is_live(live: set[str], named: str | None) -> None:
    assert decided({"own": [("far", 0.96), ("gone", 0.99)]}, live) == [named]


def test_a_candidate_never_repeats_itself() -> None:
    assert decided({"own": [("own", 1.0)]}, {"own"}) == [None]


def test_of_equals_the_stored_memory_is_named() -> None:
    assert decided({"a": [], "b": [("a", 1.0), ("stored", 1.0)]}, {"stored"}) == [None, "stored"]


def test_what_denies_a_text_does_not_repeat_it_however_near() -> None:
    texts = ["We deploy on Fridays.", "We never deploy on Fridays.", "We deploy on Fridays"]
    hits = [[], [Hit("a", 0.99)], [Hit("b", 0.999), Hit("a", 0.98)]]
    assert names(decide(["a", "b", "c"], texts, hits, {}, 0.95)) == [None, None, "a"]
