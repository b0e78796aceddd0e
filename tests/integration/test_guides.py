"""The commands of the guides do what stands there: every `console` block is run, in order, on a stack of its own."""

import re
import shlex
from collections.abc import Iterator

import pytest

from tests.integration.conftest import ROOT, running_stack
from tests.integration.test_admin_commands import Shell

GUIDE = ROOT / "docs" / "guides" / "access.md"
_BLOCK = re.compile(r"^```(console|yaml)\n(.*?)^```$", re.M | re.S)
_EXIT = re.compile(r"# exit (\d)")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A stack of its own: the guide's document manages all groups and grants there are."""
    with running_stack() as stack:
        yield Shell(tmp_path_factory.mktemp("guide"), stack)


def commands(page: str) -> Iterator[tuple[list[str], int]]:
    """Arguments of `teamlore` in each line, and the exit code that its comment names."""
    for kind, block in _BLOCK.findall(page):
        for line in block.splitlines() if kind == "console" else ():
            words = shlex.split(line, comments=True)
            assert words[:2] == ["$", "teamlore"], line
            found = _EXIT.search(line)
            yield words[2:], int(found[1]) if found else 0


def test_every_command_of_the_guide(alone: Shell) -> None:
    page = GUIDE.read_text(encoding="utf-8")
    (document,) = [block for kind, block in _BLOCK.findall(page) if kind == "yaml"]
    (alone.clone / "access.yaml").write_text(document)
    ids, done = {}, []
    for words, code in commands(page):
        # TOKEN_ID and TEAM_ID stand for what the last answer that named one said.
        answer = alone.json(*(ids.get(word, word) for word in words), token=alone.admin_token, code=code)
        ids |= {name.upper(): answer[name] for name in ("token_id", "team_id") if answer.get(name)}
        done.append(" ".join(words[:3]))
    assert len(done) > 25


def test_bob_sees_that_an_admin_made_a_token_in_his_name(alone: Shell) -> None:
    bob = alone.principal()
    mine = alone.admin("token", "create", "--principal", bob)
    other = alone.admin("token", "create", "--principal", bob, "--kind", "person")
    alone.json("whoami", token=other["token"])
    alone.admin("token", "revoke", other["token_id"])
    listed = alone.json("admin", "token", "list", token=mine["token"])["tokens"]
    seen = {token["token_id"]: token for token in listed}
    assert seen.keys() == {mine["token_id"], other["token_id"]}
    assert {token["created_by"] for token in listed} == {"user:admin"}
    assert seen[other["token_id"]]["revoked_at"]
    assert "user:admin" in alone.run("admin", "token", "list", token=mine["token"])
    assert alone.json("whoami", token=mine["token"])["token_id"] == mine["token_id"]
    alone.json("admin", "token", "list", "--principal", "user:admin", token=mine["token"], code=4)
