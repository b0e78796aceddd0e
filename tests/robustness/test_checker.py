"""The checker finds nothing in a right history and names each fault of a broken one."""

import pytest

from tests.robustness.checker import (
    KINDS,
    Acknowledged,
    Batch,
    Cut,
    Digest,
    Event,
    Fault,
    Mark,
    Step,
    Stored,
    check,
    in_order_of_commit,
    replay,
    term,
)

# a 1, b 2, c 3, then b hidden 4 and erased 5, d 6; the first step of b, superseded, is left out.
RIGHT: list[Event] = [
    Mark(0),
    Batch(0, 3, (Step(1, "a"), Step(3, "c"))),
    Mark(3),
    Cut(),
    Mark(3),
    Batch(3, 5, (Step(4, "b", deleted=True), Step(5, "b", deleted=True))),
    Batch(5, 6, (Step(6, "d"),)),
    Mark(6),
]
WRITTEN = Acknowledged(stored=["a", "b", "c", "d"], hidden=["b"], erased=["b"])
LIVE = {"a": 1, "c": 3, "d": 6}


def digest_of(live: dict[str, int], seq: int = 6) -> Digest:
    return Digest(seq, len(live), sum(term(i, s) for i, s in live.items()) % 2**64)


def with_event(number: int, *events: Event) -> list[Event]:
    return [*RIGHT[:number], *events, *RIGHT[number + 1 :]]


def test_a_right_history_has_no_fault() -> None:
    assert check(WRITTEN, RIGHT, digest_of(LIVE)) == []


def test_every_step_may_be_sent_and_all_superseded_ones_left_out() -> None:
    every = with_event(1, Batch(0, 3, (Step(1, "a"), Step(2, "b"), Step(3, "c"))))
    least = with_event(5, Batch(3, 5, (Step(5, "b", deleted=True),)))
    assert check(WRITTEN, every, digest_of(LIVE)) == check(WRITTEN, least, digest_of(LIVE)) == []


def test_nothing_at_all_is_a_right_history() -> None:
    assert check(Acknowledged(), [Mark(0)], Digest(0, 0, 0)) == []


BROKEN: dict[str, tuple[str, list[Event]]] = {
    "a number twice in one batch": (
        "repeat",
        with_event(1, Batch(0, 3, (Step(1, "a"), Step(1, "a"), Step(3, "c")))),
    ),
    "a batch again after a cut": (
        "repeat",
        with_event(4, Batch(0, 3, (Step(1, "a"), Step(3, "c")))),
    ),
    "two steps in the wrong order": (
        "out of order",
        with_event(1, Batch(0, 3, (Step(3, "c"), Step(1, "a")))),
    ),
    "a step beyond the end of its range": (
        "outside its range",
        with_event(1, Batch(0, 2, (Step(1, "a"), Step(3, "c"))), Batch(2, 3, ())),
    ),
    "a step before the beginning of its range": (
        "outside its range",
        with_event(5, Batch(3, 3, ()), Batch(3, 5, (Step(3, "c"), Step(5, "b", deleted=True)))),
    ),
    "a range that begins late": (
        "ranges do not join",
        with_event(5, Batch(4, 5, (Step(5, "b", deleted=True),))),
    ),
    "a range that begins early": (
        "ranges do not join",
        with_event(5, Batch(2, 5, (Step(4, "b", deleted=True), Step(5, "b", deleted=True)))),
    ),
    "a range that ends before it begins": (
        "ranges do not join",
        with_event(4, Batch(3, 2, ())),
    ),
    "a bookmark ahead of what was sent": (
        "bookmark early",
        with_event(1, Batch(0, 1, (Step(1, "a"),)), Mark(2), Batch(1, 3, (Step(3, "c"),))),
    ),
    "a step below a bookmark": (
        "bookmark early",
        with_event(1, Batch(0, 3, (Step(1, "a"),)), Mark(3), Batch(3, 3, (Step(3, "c"),))),
    ),
    "a last write that never came": (
        "acknowledged write missing",
        [*RIGHT[:6], Batch(5, 6, ()), Mark(6)],
    ),
    "a memory whose every step was left out": (
        "acknowledged write missing",
        with_event(5, Batch(3, 5, ())),
    ),
    "a write passed over": (
        "gap",
        with_event(1, Batch(0, 3, (Step(3, "c"),))),
    ),
    "a tombstone passed over": (
        "acknowledged write missing",
        [Batch(0, 3, (Step(1, "a"), Step(2, "b"), Step(3, "c"))), Batch(3, 6, (Step(6, "d"),)), Mark(6)],
    ),
    "a step that nobody wrote": (
        "never written",
        with_event(1, Batch(0, 3, (Step(1, "a"), Step(2, "x"), Step(3, "c")))),
    ),
    "an erased memory that returns": (
        "back from the dead",
        [*RIGHT, Batch(6, 7, (Step(7, "b"),)), Mark(7)],
    ),
    "a stream that ends early": ("not at the head", RIGHT[:-2]),
    "a stream without its last bookmark": ("not at the head", RIGHT[:-1]),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_stream_is_named(what: str) -> None:
    kind, events = BROKEN[what]
    assert kind in {fault.kind for fault in check(WRITTEN, events, digest_of(LIVE))}


def test_a_number_that_no_write_took_is_a_gap_and_nothing_else() -> None:
    """Two writes, both seen, and a number between them: only the count of the writes tells."""
    events: list[Event] = [Batch(0, 3, (Step(1, "a"), Step(3, "c"))), Mark(3)]
    faults = check(Acknowledged(stored=["a", "c"]), events, digest_of({"a": 1, "c": 3}, 3))
    assert faults == [Fault("gap", "2 was passed over and nothing superseded it")]


def test_a_number_left_out_above_the_step_that_superseded_it_is_a_gap() -> None:
    """The first step of b cannot stand at 3 when its tombstone has 2."""
    events: list[Event] = [Batch(0, 4, (Step(1, "a"), Step(2, "b", deleted=True), Step(4, "c"))), Mark(4)]
    written = Acknowledged(stored=["a", "b", "c"], erased=["b"])
    faults = check(written, events, digest_of({"a": 1, "c": 4}, 4))
    assert {fault.kind for fault in faults} == {"gap", "acknowledged write missing"}


def test_two_writes_with_one_number_are_named() -> None:
    """A number can be seen once only, so the second write that took it has none."""
    events: list[Event] = [Batch(0, 2, (Step(1, "a"), Step(2, "b", deleted=True))), Mark(2)]
    written = Acknowledged(stored=["a", "b"], erased=["b"])
    faults = check(written, events, digest_of({"a": 1}, 2))
    assert faults == [Fault("acknowledged write missing", "1 superseded steps have no number")]


def test_a_deletion_that_never_came_is_named_as_such() -> None:
    events: list[Event] = [Batch(0, 2, (Step(1, "b"),)), Mark(2)]
    faults = check(Acknowledged(stored=["b"], erased=["b"]), events, Digest(2, 0, 0))
    assert Fault("acknowledged write missing", "b: its deletion never came") in faults


def test_a_repeat_is_a_repeat_and_nothing_else() -> None:
    again = (Step(4, "b", deleted=True), Step(4, "b", deleted=True), Step(5, "b", deleted=True))
    assert check(WRITTEN, with_event(5, Batch(3, 5, again)), digest_of(LIVE)) == [
        Fault("repeat", "4 in (3, 5]")
    ]


def test_numbers_left_out_are_matched_in_any_order_of_writing() -> None:
    """The first steps of x and y stood at 5 and 1."""
    steps = (Step(2, "a"), Step(3, "y", deleted=True), Step(4, "c"), Step(6, "x", deleted=True))
    written = Acknowledged(stored=["a", "c", "x", "y"], erased=["x", "y"])
    assert check(written, [Batch(0, 6, steps), Mark(6)], digest_of({"a": 2, "c": 4})) == []


@pytest.mark.parametrize(
    "digest",
    [
        digest_of({"a": 1, "c": 3}),
        digest_of({"a": 1, "c": 3, "d": 5}),
        Digest(6, 3, digest_of(LIVE).sum + 1),
        Digest(6, 4, digest_of(LIVE).sum),
    ],
)
def test_another_digest_is_named(digest: Digest) -> None:
    assert [fault.kind for fault in check(WRITTEN, RIGHT, digest)] == ["digest unequal"]


def test_what_was_never_answered_may_have_been_done_or_not() -> None:
    maybe = Acknowledged(stored=["a", "c"], maybe=["b", "d", "x", "b"], maybe_dead={"b"})
    assert check(maybe, [*RIGHT[:6], *RIGHT[6:]], digest_of(LIVE)) != []
    maybe.maybe.append("b")
    assert check(maybe, RIGHT, digest_of(LIVE)) == []
    died = Acknowledged(stored=["a", "b", "c", "d"], maybe=["b", "b"], maybe_dead={"b"})
    assert check(died, RIGHT, digest_of(LIVE)) == []
    died.maybe_dead.clear()
    assert {fault.kind for fault in check(died, RIGHT, digest_of(LIVE))} == {"acknowledged write missing"}


def test_a_changed_standing_is_one_more_step_of_a_live_memory() -> None:
    events: list[Event] = [Batch(0, 3, (Step(2, "b"), Step(3, "a"))), Mark(3)]
    written = Acknowledged(stored=["a", "b"], changed=["a"])
    assert check(written, events, digest_of({"b": 2, "a": 3}, 3)) == []
    written.changed.clear()
    assert {fault.kind for fault in check(written, events, digest_of({"b": 2, "a": 3}, 3))} == {"gap"}


def test_what_was_told_first_has_the_lower_number() -> None:
    mirror, _ = replay([Batch(0, 3, (Step(1, "a"), Step(2, "b"), Step(3, "c")))])
    right = [Stored("a", 0.0, 1.0), Stored("b", 0.5, 2.0), Stored("c", 1.5, 1.8)]
    assert in_order_of_commit(right, mirror) == []
    wrong = [Stored("a", 2.1, 3.0), Stored("b", 0.5, 2.0), Stored("c", 1.5, 2.2)]
    assert in_order_of_commit(wrong, mirror) == [
        Fault("later before earlier", "a has 1, but 2 was told before it was asked for")
    ]


def test_each_kind_is_proven_here() -> None:
    assert {kind for kind, _ in BROKEN.values()} | {"digest unequal", "later before earlier"} == set(KINDS)
