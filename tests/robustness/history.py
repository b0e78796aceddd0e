"""What the processes of the harness write down while they work, and how it is read again: one JSON object a line.

A line is written by one system call, so that a killed process leaves at most one that is cut short; that one never
happened. Times are seconds of CLOCK_MONOTONIC, which all processes of a machine share and no clock step moves.
"""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Line = dict[str, Any]


@dataclass
class Operation:
    """One call of one client: what it asked, when, and what it was told."""

    process: str
    what: str
    """`push`, `forget`, `erase`, `status`; of a laptop `add`, `laptop erase`, `sync`, `leave`, `join`."""
    bank: str
    start: float
    ids: list[str]
    end: float | None = None
    """None where no answer ever came: it may have been done."""
    answer: Line = field(default_factory=dict)
    expected: str = ""
    """The one answer that is right, where only one is."""
    text: str = ""
    """What an `add` saves."""


@dataclass(frozen=True)
class Stream:
    """What one watcher wrote down of one bank, in order."""

    process: str
    bank: str
    lines: list[Line]


@dataclass
class History:
    """All that was written down in a run."""

    operations: list[Operation] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    faults: list[Line] = field(default_factory=list)
    refused: list[Line] = field(default_factory=list)
    """Refusals that nobody could expect, from any process."""


class Recorder:
    """Appends to one process's file; begins by cutting off what its killed predecessor did not finish."""

    def __init__(self, path: Path, process: str) -> None:
        self.process = process
        whole = b"".join(line for line in _raw(path) if line.endswith(b"\n"))
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.truncate(path, len(whole))
        self._number = whole.count(b'"begun"')

    def write(self, line: str, **facts: Any) -> None:
        """One line of this kind, dated now."""
        text = json.dumps({"line": line, "process": self.process, "at": time.monotonic(), **facts})
        os.write(self._file, text.encode() + b"\n")

    def begin(self, what: str, bank: str, ids: list[str], expected: str = "", text: str = "") -> int:
        """A call is about to be made; gives the number to answer it by."""
        self._number += 1
        facts = {"ids": ids, "number": self._number, "expected": expected, "text": text}
        self.write("begun", what=what, bank=bank, **facts)
        return self._number

    def end(self, number: int, **answer: Any) -> None:
        """The call with this number was answered."""
        self.write("answered", number=number, answer=answer)


def _raw(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True) if path.exists() else []


def lines_of(path: Path) -> Iterator[Line]:
    """The whole lines of a file."""
    for raw in _raw(path):
        if raw.endswith(b"\n"):
            yield json.loads(raw)


def read(folder: Path) -> History:
    """Joins the files of all processes of a run."""
    history = History()
    for path in sorted(folder.glob("*.jsonl")):
        open_: dict[int, Operation] = {}
        streams: dict[str, Stream] = {}
        for line in lines_of(path):
            kind = line["line"]
            if kind == "begun":
                made = Operation(
                    line["process"],
                    line["what"],
                    line["bank"],
                    line["at"],
                    line["ids"],
                    expected=line["expected"],
                    text=line["text"],
                )
                open_[line["number"]] = made
                history.operations.append(made)
            elif kind == "answered":
                done = open_[line["number"]]
                done.end, done.answer = line["at"], line["answer"]
            elif kind == "fault":
                history.faults.append(line)
            elif kind == "refused":
                history.refused.append(line)
            else:
                known = streams.setdefault(line["bank"], Stream(line["process"], line["bank"], []))
                known.lines.append(line)
        history.streams += streams.values()
    return history
