"""Children's log files: opened to append, read from where one run began."""

from __future__ import annotations

import re
from pathlib import Path
from typing import BinaryIO

from stack.errors import disk_errors

_TAIL = 16_384
_GRAVE = re.compile(r"\b(FATAL|PANIC|ERROR|error|could not)\b")


def open_log(path: Path) -> BinaryIO:
    """Open the log `path` to append, making its folder; StackError when the disk does not let us."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab", buffering=0)


def log_size(path: Path) -> int:
    """Return how many bytes the log `path` holds now; 0 when there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def text_since(path: Path, begin: int) -> str:
    """Return what was written after byte `begin`: its last 16 KiB, empty when there is no log."""
    try:
        with path.open("rb") as file:
            file.seek(max(begin, log_size(path) - _TAIL))
            return file.read(_TAIL).decode("utf-8", "replace")
    except OSError:
        return ""


def last_line(text: str) -> str:
    """Return the last line of `text` that is not blank, at most 300 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def complaint(text: str) -> str:
    """Return the first line of `text` that reads like the cause of a failure, else its last line."""
    grave = [line.strip() for line in text.splitlines() if _GRAVE.search(line)]
    return grave[0][:300] if grave else last_line(text)
