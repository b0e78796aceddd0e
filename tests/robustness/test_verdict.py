"""The verdict over a written history: a right one passes, each broken one is named, and a cut line never happened."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.robustness.checker import Digest, term
from tests.robustness.history import History, Recorder, lines_of, read
from tests.robustness.keeping import Copy
from tests.robustness.verdict import End, judge
from tests.robustness.work import kept_cursors

BANK = "project:b"
SUM = (term("a", 1) + term("b", 2)) % 2**64
TEXTS = {"a": "one", "b": "two"}


def written(folder: Path) -> None:
    """A writer stores a and b, is refused what another bank has; two watchers see it, one after a cut."""
    writer = Recorder(folder / "w.jsonl", "w")
    for memory_id in TEXTS:
        number = writer.begin("push", BANK, [memory_id])
        writer.end(number, answers={memory_id: "stored"})
    number = writer.begin("push", BANK, ["z"], "rejected: the id is taken")
    writer.end(number, answers={"z": "rejected: the id is taken"})
    for name in ("v0", "v1"):
        watcher = Recorder(folder / f"{name}.jsonl", name)
        watcher.write("batch", bank=BANK, after=0, through=1, steps=[(1, "a", False)], cursor="1")
        watcher.write("cut", bank=BANK)
        watcher.write("batch", bank=BANK, after=1, through=2, steps=[(2, "b", False)], cursor="2")
        watcher.write("bookmark", bank=BANK, seq=2, cursor="2")


def end() -> End:
    """What the server and one laptop hold in the end."""
    whole = Copy(2, 2, SUM, TEXTS)
    return End({BANK: Digest(2, 2, SUM)}, {BANK: whole}, {("alice", BANK): whole})


@pytest.fixture
def past(tmp_path: Path) -> History:
    written(tmp_path)
    return read(tmp_path)


def kinds(past: History, last: End) -> set[str]:
    return {fault.kind for fault in judge(past, last)}


def test_a_right_history_passes(past: History) -> None:
    assert judge(past, end()) == []


def test_an_answer_that_tells_of_another_bank_is_named(past: History) -> None:
    past.operations[-1].answer["answers"]["z"] = "rejected: the id is taken in project:secret"
    assert kinds(past, end()) == {"wrong answer"}


def test_a_push_that_was_refused_for_no_reason_is_named(past: History) -> None:
    past.operations[0].answer["answers"]["a"] = "rejected"
    assert "wrong answer" in kinds(past, end())


def test_a_text_of_its_own_that_is_called_a_duplicate_is_named(past: History) -> None:
    past.operations[0].answer["answers"]["a"] = "duplicate"
    assert "wrong answer" in kinds(past, end())


def test_a_loud_refusal_that_nobody_could_expect_is_named(past: History) -> None:
    past.refused.append(
        {"process": "v0", "what": "watch", "bank": BANK, "code": "OUT_OF_RANGE", "words": "diverged"}
    )
    assert kinds(past, end()) == {"refused"}


def test_an_acknowledged_write_that_one_watcher_never_saw_is_named(past: History) -> None:
    lines = past.streams[0].lines
    lines[2]["steps"] = []
    assert {"acknowledged write missing", "digest unequal", "copies differ"} <= kinds(past, end())


def test_an_order_that_is_not_that_of_commit_is_named(past: History) -> None:
    first, second = past.operations[:2]
    first.start, first.end = 10.0, 11.0
    second.start, second.end = 1.0, 2.0
    assert kinds(past, end()) == {"later before earlier"}


def test_a_write_without_an_answer_may_have_been_done(past: History) -> None:
    past.operations[0].end = None
    assert judge(past, end()) == []


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"count": 1}, "digest unequal"),
        ({"sum": 7}, "digest unequal"),
        ({"texts": {"a": "one"}}, "copies differ"),
        ({"texts": TEXTS | {"c": "three"}}, "copies differ"),
        ({"texts": TEXTS | {"b": "other"}}, "text differs"),
    ],
)
def test_a_laptop_that_holds_something_else_is_named(
    past: History, change: dict[str, Any], kind: str
) -> None:
    last = end()
    last.laptops["alice", BANK] = replace(last.laptops["alice", BANK], **change)
    assert kinds(past, last) == {kind}
    assert kinds(copy.deepcopy(past), end()) == set()


def test_a_killed_process_goes_on_after_its_last_whole_line(tmp_path: Path) -> None:
    written(tmp_path)
    path = tmp_path / "v0.jsonl"
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.write(b'{"line": "bookmark", "bank": "project:b", "seq": 9, "curs')
    assert len(list(lines_of(path))) == 4 and kept_cursors(path) == {BANK: "2"}
    Recorder(path, "v0").write("cut", bank=BANK)
    assert path.read_bytes().startswith(whole) and list(lines_of(path))[-1]["line"] == "cut"
    assert judge(read(tmp_path), end()) == []
