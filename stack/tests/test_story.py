"""`make run` stays up whatever becomes of the story."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from stack import __main__ as command
from stack import story
from stack.errors import StackError
from stack.people import People
from stack.topology import Settings

PEOPLE = People("a", {"alice": "tlk_alice", "bob": "tlk_bob"})


async def _refused(*_: object, **__: object) -> str:
    raise StackError("bob: `teamlore team join` failed: the principal is suspended; ask an admin")


def test_a_stack_whose_people_were_shut_out_stays_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waited = []

    async def wait() -> None:
        waited.append(True)

    async def people(*_: object) -> People:
        return PEOPLE

    @contextlib.asynccontextmanager
    async def launched(*_: object) -> AsyncIterator[SimpleNamespace]:
        supervisor = SimpleNamespace(wait=wait, names=lambda: [])
        yield SimpleNamespace(relocated=None, supervisor=supervisor, facts=SimpleNamespace(ports={}))

    monkeypatch.setattr(command, "launch", launched)
    monkeypatch.setattr(command, "ensure_people", people)
    monkeypatch.setattr(story.Laptop, "prepare", lambda self: None)
    monkeypatch.setattr(story.Laptop, "run", _refused)
    monkeypatch.setattr(sys, "argv", ["stack", "run", "--data", str(tmp_path)])
    assert command.main() == 0 and waited
    said = [line for line in capsys.readouterr().out.splitlines() if "cannot be told again" in line]
    assert len(said) == 1 and "alice's token" in said[0] and "suspended" in said[0] and "`make demo`" in said[0]


async def test_a_failed_join_names_whose_token_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story.Laptop, "run", _refused)
    with pytest.raises(StackError, match=r"bob's token .* no longer works"):
        await story.Laptop(Settings(tmp_path), PEOPLE, "bob").join()
