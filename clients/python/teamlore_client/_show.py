"""What the command line prints: for people on a terminal, or one JSON object for a program."""

import json
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from teamlore_client._memory import Memory

_IDS, _LONGEST_ID = ("ID", "BANK"), 60
_LINE = 160
_WIDE = 10_000
_JOINERS = "\u200c\u200d"  # part of words and of emoji
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


class Output:
    """Where a command's answer goes."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a letter is no failure
        self._out = _console(sys.stdout)
        self._err = _console(sys.stderr)

    def answer(self, value: Mapping[str, Any], lines: Iterable[Text | str]) -> None:
        """Print the answer: the value as JSON, or the lines."""
        if self.as_json:
            print(json.dumps(value, ensure_ascii=True))
        self.lines(lines)

    def lines(self, lines: Iterable[Text | str]) -> None:
        """Print lines of an answer for people; nothing where the answer is JSON."""
        if self.as_json:
            return
        for line in lines:
            self._out.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def table(self, value: Mapping[str, Any], columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a list: the value as JSON, or a table."""
        from rich.table import Table

        if self.as_json:
            print(json.dumps(value, ensure_ascii=True))
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        cells = [[shown(cell) for cell in row] for row in rows]
        for number, column in enumerate(columns):
            # An id is copied from here: it stays on one line, and the others fold. One that no line holds is folded too.
            longest = max((len(row[number]) for row in cells), default=0)
            table.add_column(column, overflow="fold", no_wrap=column in _IDS and longest <= _LONGEST_ID)
        for row in cells:
            table.add_row(*map(Text, row))
        # A program that reads the table gets every cell whole, on one line.
        out = self._out if self._out.is_terminal else Console(file=sys.stdout, width=_WIDE, no_color=True)
        out.print(table, markup=False, highlight=False, emoji=False)

    def note(self, line: str) -> None:
        """Say something beside the answer, on stderr."""
        self._err.print(shown(line), markup=False, highlight=False, emoji=False, soft_wrap=True)

    def fail(self, kind: str, message: str, beside: Mapping[str, Any] | None = None, /, **more: str) -> None:
        """Say what went wrong, on stderr; or as JSON, with `beside` next to it."""
        if self.as_json:
            error = {"kind": kind, "message": message} | {key: value for key, value in more.items() if value}
            print(json.dumps({"error": error, **(beside or {})}, ensure_ascii=True))
            return
        text = Text("error: ", style="bold red")
        text.append(shown(message), style="default")
        self._err.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Show that something takes a while; only on a terminal."""
        if self.as_json or not sys.stderr.isatty():
            yield
            return
        with self._err.status(what):
            yield


def _console(stream: Any) -> Console:
    terminal = bool(stream.isatty())
    return Console(file=stream, force_terminal=terminal, no_color=None if terminal else True)


def shown(text: str) -> str:
    """Return the text with everything that could move a cursor or turn writing around made visible.

    A teammate's memory is someone else's input: terminal escapes, control characters and bidirectional
    overrides become `\\x1b`-like escapes. Line ends and tabs stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_harmless(character) for character in text)


def _harmless(character: str) -> str:
    if character in "\n\t" or character in _JOINERS:
        return character
    if unicodedata.category(character) not in _HIDDEN:
        return character
    number = ord(character)
    return (
        f"\\x{number:02x}"
        if number < 0x100
        else f"\\u{number:04x}"
        if number < 0x10000
        else f"\\U{number:08x}"
    )


def _flat(text: str) -> str:
    """Return what is shown of a text on one line."""
    return shown(text).replace("\n", " ").replace("\t", " ")


def day(moment: datetime) -> str:
    """Return the local date; at the edges of the calendar, where local time has none, the date in UTC."""
    return _local(moment).date().isoformat()


def minute(moment: datetime) -> str:
    """Return the local date and time to the minute."""
    return _local(moment).isoformat(" ", "minutes")


def _local(moment: datetime) -> datetime:
    try:
        return moment.astimezone()
    except (OverflowError, ValueError, OSError):
        return moment.astimezone(UTC)


def label(author: str | None) -> str:
    """Return `(alice)` for user:alice, `(service:ci)` for others, nothing for one's own."""
    return "" if author is None else f"({shown(author.removeprefix('user:'))})"


def line(memory: Memory) -> Text:
    """Return the memory on one line, cut to what a person reads at a glance."""
    text = " ".join(memory.text.split())
    return _item(memory, shown(text if len(text) <= _LINE else text[: _LINE - 1] + "…"))


def whole(memory: Memory) -> Text:
    """Return the memory with its full text; further lines are indented, so that none looks like an item."""
    return _item(memory, shown("\n".join(memory.text.splitlines())).replace("\n", "\n  "))


def _item(memory: Memory, text: str) -> Text:
    item = Text("- ")
    item.append(f"[{day(memory.occurred_at or memory.created_at)}]", style="dim")
    if memory.author is not None:
        item.append(" ")
        item.append(label(memory.author), style="cyan")
    item.append(marks(memory), style="yellow")
    item.append(f" {text}")
    return item


def marks(memory: Memory) -> str:
    """Return ` [suspect]` and the like, where the team holds something against a memory."""
    standing = memory.standing
    words = [] if standing.status == "current" else [standing.status]
    words += ["may be stale"] if standing.may_be_stale else []
    return "".join(f" [{shown(word)}]" for word in words)


def details(memory: Memory, standing: str) -> list[Text]:
    """Return all that is known of a memory, a line a field, then its text."""
    fields = [
        ("id", memory.id),
        ("bank", memory.bank),
        ("saved by", memory.author or "you"),
        ("saved", minute(memory.created_at)),
        ("happened", minute(memory.occurred_at) if memory.occurred_at else ""),
        ("kind", memory.fact_type or ""),
        ("tags", ", ".join(memory.tags)),
        ("team", standing),
        ("status", "" if memory.standing.status == "current" else memory.standing.status),
        ("trust", "" if memory.standing.trust == "extracted" else memory.standing.trust),
        ("stale", "it may no longer hold" if memory.standing.may_be_stale else ""),
        ("now", memory.standing.superseded_by),
        ("verified", minute(memory.standing.last_verified) if memory.standing.last_verified else ""),
    ]
    lines = []
    fields += [
        (name, value) for each in memory.citations for name, value in (("cites", each.uri), ("excerpt", each.excerpt))
    ]
    for name, value in fields:
        if value:
            text = Text(f"{name:<9} ", style="dim")
            text.append(_flat(value), style="default")
            lines.append(text)
    if memory.metadata:
        # Keys are a teammate's words too: none may look like a line of ours.
        lines.append(Text("metadata, in the words of who saved it", style="dim"))
    for key, held in sorted(memory.metadata.items()):
        text = Text(f"  {_flat(key)} = ", style="dim")
        text.append(_flat(str(held)), style="default")
        lines.append(text)
    return [*lines, Text(""), Text("  " + shown("\n".join(memory.text.splitlines())).replace("\n", "\n  "))]


def as_json(memory: Memory) -> dict[str, Any]:
    """Return the memory for `--json`; `saved_by` is null for one's own."""
    return {
        "id": memory.id,
        "bank": memory.bank,
        "text": memory.text,
        "tags": list(memory.tags),
        "metadata": dict(memory.metadata),
        "fact_type": memory.fact_type,
        "derivation": memory.derivation,
        "occurred_at": memory.occurred_at.isoformat() if memory.occurred_at else None,
        "created_at": memory.created_at.isoformat(),
        "saved_by": memory.author,
        "status": memory.standing.status,
        "trust": memory.standing.trust,
        "may_be_stale": memory.standing.may_be_stale,
        "superseded_by": memory.standing.superseded_by or None,
        "last_verified": memory.standing.last_verified.isoformat() if memory.standing.last_verified else None,
        "version": memory.standing.version,
        "citations": [{"uri": each.uri, "excerpt": each.excerpt} for each in memory.citations],
    }
