"""What laptops keep, are told and show: a right end passes, each broken one is named."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.robustness.checker import Acknowledged
from tests.robustness.history import Operation
from tests.robustness.keeping import KINDS, Copy, kept
from tests.robustness.laptops import told

BANK = "project:shared"
ANNA, BERT = "anna", "bert"


def operation(process: str, what: str, start: float, ids: list[str], text: str = "", **answer: Any) -> Operation:
    return Operation(process, what, BANK, start, ids, start + 0.5, answer, text=text)


@dataclass
class World:
    """Anna saved x1 and c1; Bert the words of x1 as y1, and g1, which is erased for everyone. Of c1 a status was told."""

    operations: list[Operation] = field(
        default_factory=lambda: [
            operation(ANNA, "add", 1, [], "the same words", id="x1"),
            operation(ANNA, "add", 2, [], "of Anna alone", id="c1"),
            operation(BERT, "add", 3, [], "the same  words", id="y1"),
            operation(BERT, "add", 4, [], "to be gone", id="g1"),
            operation(BERT, "sync", 5, [], duplicates={"y1": "x1"}),
            operation(BERT, "laptop erase", 6, ["g1"], erasure_id="e1"),
            operation(ANNA, "status", 7, ["c1"], version=2, status="suspect"),
            operation(ANNA, "status", 8, ["c1"], version=3, status="contradicted"),
        ]
    )
    texts: dict[str, str] = field(default_factory=lambda: {"x1": "the same words", "c1": "of Anna alone"})
    standing: dict[str, tuple[int, str]] = field(
        default_factory=lambda: {"x1": (1, "current"), "c1": (3, "contradicted")}
    )
    anna: Copy = field(default_factory=lambda: Copy(
        0, 2, 2, {"x1": "the same words", "c1": "of Anna alone"},
        {"x1": (1, "current"), "c1": (3, "contradicted")}, frozenset({"x1", "c1"}),
        {"x1": ("stored", ""), "c1": ("unchanged", "")},
    ))  # fmt: skip
    bert: Copy = field(default_factory=lambda: Copy(
        0, 2, 2, {"y1": "the same  words", "c1": "of Anna alone"},
        {"y1": (1, "current"), "c1": (3, "contradicted")}, frozenset({"y1"}),
        {"y1": ("duplicate", "x1"), "g1": ("forgotten", "asked here")},
    ))  # fmt: skip
    checked: bool = True

    def faults(self) -> list[tuple[str, str]]:
        listed = Copy(9, 2, 2, self.texts, self.standing)
        copies = {(ANNA, BANK): self.anna, (BERT, BANK): self.bert}
        checked = frozenset({BANK} if self.checked else ())
        return [(each.kind, each.where) for each in kept(self.operations, {BANK: listed}, copies, checked)]

    def erased_words(self) -> None:
        """Anna erases the words that Bert has saved too: his go, or stay with him alone."""
        self.operations.append(operation(ANNA, "laptop erase", 9, ["x1"], erasure_id="e2"))
        del self.texts["x1"], self.standing["x1"]
        self.anna = replace(self.anna, texts={"c1": "of Anna alone"}, standing={"c1": (3, "contradicted")})


def test_a_right_end_passes() -> None:
    assert World().faults() == []


def test_what_a_command_did_not_say_was_saved_may_be_nowhere() -> None:
    world = World()
    killed = operation(ANNA, "add", 3, [], "of a command that was killed")
    killed.end = None
    world.operations.append(killed)
    assert world.faults() == []


def test_what_its_disk_alone_held_is_gone_with_that() -> None:
    world = World()
    world.operations.append(operation(ANNA, "add", 3, [], "on the disk alone", id="z1"))
    assert {kind for kind, _ in world.faults()} == {"own memory lost"}
    world.operations.append(operation(ANNA, "store lost", 4, ["z1"]))
    assert world.faults() == []


def test_words_erased_for_everyone_may_stay_where_another_saved_them_or_go() -> None:
    world = World()
    world.erased_words()
    assert world.faults() == []
    world.bert = replace(world.bert, texts={"c1": "of Anna alone"}, standing={"c1": (3, "contradicted")})
    assert world.faults() == []


def test_words_saved_by_who_was_told_nothing_of_their_erasure_are_new() -> None:
    world = World()
    world.operations[4].start, world.operations[4].end = 9.6, 9.7
    world.erased_words()
    world.texts["y1"], world.standing["y1"] = "the same  words", (1, "current")
    world.anna = replace(world.anna, texts={**world.anna.texts, "y1": "the same  words"})
    world.bert = replace(world.bert, ledger={"y1": ("stored", "")})
    assert world.faults() == []


def lost_by_its_laptop(world: World) -> None:
    world.anna = replace(world.anna, texts={"x1": "the same words"}, standing={})


def nowhere(world: World) -> None:
    world.operations.append(operation(BERT, "add", 5, [], "saved and lost", id="n1"))
    world.bert = replace(world.bert, texts={**world.bert.texts, "n1": "saved and lost"}, own=frozenset({"y1", "n1"}))


def rejected(world: World) -> None:
    nowhere(world)
    world.bert = replace(world.bert, ledger={**world.bert.ledger, "n1": ("rejected", "the id is taken")})


def erased_unasked(world: World) -> None:
    del world.operations[5]


def of_what_is_gone(world: World) -> None:
    del world.texts["x1"]


def of_other_words(world: World) -> None:
    world.bert = replace(world.bert, ledger={"y1": ("duplicate", "c1")})


def of_nothing(world: World) -> None:
    world.bert = replace(world.bert, ledger={"y1": ("duplicate", "q1")})


def of_itself(world: World) -> None:
    world.bert = replace(world.bert, ledger={"y1": ("duplicate", "y1")})


def for_a_while(world: World) -> None:
    world.operations[4].answer["duplicates"] = {"y1": "x1", "g1": "c1"}


def unchecked(world: World) -> None:
    world.checked = False


def erased_on_the_server(world: World) -> None:
    world.texts["g1"] = "to be gone"


def erased_on_a_laptop(world: World) -> None:
    world.anna = replace(world.anna, texts={**world.anna.texts, "g1": "to be gone"})


def its_repetition_on_the_server(world: World) -> None:
    world.erased_words()
    world.texts["y1"] = "the same  words"


def older_on_a_laptop(world: World) -> None:
    world.bert = replace(world.bert, standing={**world.bert.standing, "c1": (2, "suspect")})


def words_that_no_longer_stand(world: World) -> None:
    world.standing["x1"] = (2, "superseded")
    world.anna = replace(world.anna, standing=world.standing)


def older_on_the_server(world: World) -> None:
    world.standing["c1"] = (2, "suspect")


def another_on_the_server(world: World) -> None:
    world.standing["c1"] = (3, "current")


def left_out(world: World) -> None:
    world.bert = replace(world.bert, texts={"y1": "the same  words"}, standing={})


def too_much(world: World) -> None:
    world.anna = replace(world.anna, texts={**world.anna.texts, "w1": "of nobody"})


BROKEN: dict[str, list[Callable[[World], None]]] = {
    "own memory lost": [lost_by_its_laptop, nowhere, rejected, erased_unasked, of_what_is_gone, of_other_words],
    "wrong duplicate": [of_other_words, of_nothing, of_itself, for_a_while, unchecked],
    "back from the dead": [erased_on_the_server, erased_on_a_laptop, its_repetition_on_the_server],
    "status differs": [older_on_a_laptop, words_that_no_longer_stand],
    "status lost": [older_on_the_server, another_on_the_server],
    "copies differ": [left_out, too_much],
}


@pytest.mark.parametrize(("kind", "broken"), [(kind, each) for kind, some in BROKEN.items() for each in some])
def test_a_broken_end_is_named(kind: str, broken: Callable[[World], None]) -> None:
    world = World()
    broken(world)
    assert kind in {found for found, _ in world.faults()}


def test_each_kind_is_proven_here() -> None:
    assert BROKEN.keys() == set(KINDS)


def test_a_status_of_a_memory_that_is_erased_since_is_not_looked_for() -> None:
    world = World()
    world.operations.append(operation(BERT, "status", 5, ["g1"], version=2, status="suspect"))
    assert world.faults() == []


def test_what_is_told_of_a_laptop_is_sure_but_for_what_was_to_be_erased() -> None:
    world, acknowledged = World(), Acknowledged()
    unanswered = operation(ANNA, "laptop erase", 9, ["x1"])
    unanswered.end = None
    told(world.anna, [each for each in world.operations if each.process == ANNA] + [unanswered], acknowledged)
    told(world.bert, [each for each in world.operations if each.process == BERT], acknowledged)
    assert acknowledged == Acknowledged(
        stored=["x1", "c1"], erased=["g1"], maybe=["x1", "g1"], maybe_dead={"x1"}
    )


def test_what_the_team_had_before_a_disk_was_lost_it_has_though_no_ledger_says_so_any_more() -> None:
    acknowledged = Acknowledged()
    added = [operation(ANNA, "add", 3, [], f"words of {i}", id=i) for i in ("z1", "z2")]
    lost = operation(ANNA, "store lost", 4, ["z2"], there=["z1"])
    told(replace(World().anna, ledger={}), [*added, lost], acknowledged)
    assert acknowledged == Acknowledged(stored=["z1"], maybe=["z2"])
