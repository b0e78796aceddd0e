"""Joining as a person: only an agent's key is stored, and leaving revokes it."""

import json
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from fake_access import FakeAccess, serving
from laptop import memory, traces, vector
from teamlore.feed.v1 import feed_pb2, feed_pb2_grpc
from teamlore_client import _cli_team
from teamlore_client._errors import Refused
from teamlore_client._laptop import Laptop
from teamlore_client._project import bank_of
from teamlore_client._session import Session
from teamlore_client.cli import app
from terminal import TEAMLORE, terminal
from typer.testing import CliRunner

PERSON = "tlk_personpersonperson"
AGENT = "tlk_agentagentagent"


class Feed(feed_pb2_grpc.FeedServiceServicer):
    """An empty bank; `registers` False refuses devices."""

    registers = lists = True

    def __init__(self) -> None:
        self.devices: set[str] = set()

    def GetHead(self, request: Any, context: Any) -> feed_pb2.GetHeadResponse:
        return feed_pb2.GetHeadResponse(cursor="cursor")

    def ListChanges(self, request: Any, context: Any) -> feed_pb2.ListChangesResponse:
        if not self.lists:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")
        return feed_pb2.ListChangesResponse(next_cursor="cursor")

    def GetDigest(self, request: Any, context: Any) -> feed_pb2.GetDigestResponse:
        return feed_pb2.GetDigestResponse()

    def RegisterDevice(self, request: Any, context: Any) -> feed_pb2.RegisterDeviceResponse:
        if not self.registers:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")
        self.devices.add(request.device_id)
        return feed_pb2.RegisterDeviceResponse()

    def RetireDevice(self, request: Any, context: Any) -> feed_pb2.RetireDeviceResponse:
        self.devices.remove(request.device_id)
        return feed_pb2.RetireDeviceResponse()


@pytest.fixture
def feed() -> Feed:
    return Feed()


@pytest.fixture
def fake(home: Path, feed: Feed, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAccess]:
    project = home / "project"
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    remote = ["remote", "add", "origin", "https://example.com/acme/api.git"]
    subprocess.run(["git", "-C", str(project), *remote], check=True)
    monkeypatch.chdir(project)
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    with serving(lambda server: feed_pb2_grpc.add_FeedServiceServicer_to_server(feed, server)) as served:
        served.add(PERSON, "user:alice", "person")
        served.add(AGENT, "user:alice")
        yield served


def call(*arguments: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert PERSON not in done.output and "tlk_" not in done.output
    return done.exit_code, json.loads(done.output.splitlines()[-1])


def joined(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, dict[str, Any]]:
    """A join by a person who types the token."""
    with monkeypatch.context() as typed:
        typed.setattr(_cli_team, "_asks", lambda: True)
        typed.setattr(_cli_team, "asked_secret", lambda prompt: PERSON)
        return call("team", "join", *arguments, "--yes")


def stored(home: Path) -> dict[str, Any]:
    (entry,) = json.loads((home / ".config/teamlore/team.json").read_text())["banks"].values()
    return dict(entry)


def test_a_person_s_token_becomes_a_personal_key_and_leaves_no_trace(
    home: Path, fake: FakeAccess, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, told = joined(monkeypatch, fake.server)
    assert code == 0, told
    entry = stored(home)
    assert entry["key_id"] == told["personal_key"]
    held = fake.tokens[entry["token"]]
    assert (held.kind, held.session, held.token_id) == ("agent", False, entry["key_id"])
    note = fake.asked("CreatePersonalKey")[0].note
    assert os.uname().nodename[:50] in note and "project:api-" in note and "tlk_" not in note
    assert [fake.tokens[each].revoked for each in fake.sessions()] == [True]
    for word in (PERSON, *fake.sessions()):
        assert traces(home, word) == {}
    assert call("team", "sync")[0] == 0
    assert len(feed.devices) == 1
    code, told = call("team", "leave")
    assert (code, told["key_revoked"], held.revoked) == (0, True, True)
    assert (told["device_retired"], feed.devices) == (True, set())


def test_an_agent_s_token_is_stored_as_it_is_and_not_revoked_by_leaving(home: Path, fake: FakeAccess) -> None:
    code, told = call("team", "join", fake.server, "--token", AGENT, "--yes")
    assert (code, told["personal_key"], stored(home)["token"]) == (0, None, AGENT)
    assert fake.asked("StartSession") == []
    code, told = call("team", "leave")
    assert (code, told["key_revoked"], fake.tokens[AGENT].revoked) == (0, None, False)


def test_joining_again_renews_the_key_and_ends_the_old_one(
    home: Path, fake: FakeAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined(monkeypatch, fake.server)
    first = stored(home)
    code, _ = call("team", "join", fake.server, "--yes", "--share-captured")
    assert (code, stored(home)["token"], stored(home)["key_id"]) == (0, first["token"], first["key_id"])
    secret = fake.add("tlk_signedinsignedin", "user:alice", "person", session=True)
    session = Session(fake.server, "user:alice", fake.tokens[secret].token_id, datetime.now(UTC), secret)
    monkeypatch.setattr(_cli_team, "held", lambda _: session)
    assert call("team", "join", fake.server, "--yes")[0] == 0
    second = stored(home)
    assert second["key_id"] != first["key_id"]
    assert (fake.tokens[first["token"]].revoked, fake.tokens[second["token"]].revoked) == (True, False)


def test_leaving_works_offline_and_says_what_remains(
    home: Path, fake: FakeAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined(monkeypatch, fake.server)
    path = home / ".config/teamlore/team.json"
    path.write_text(path.read_text().replace(fake.server, "http://127.0.0.1:1"))
    done = CliRunner().invoke(app, ["team", "leave"])
    assert (done.exit_code, "admin token revoke" in done.output) == (0, True)
    assert "as unconfirmed until an admin" in done.output
    assert json.loads(path.read_text())["banks"] == {}


def test_a_join_that_fails_keeps_nothing_and_revokes_its_key(
    home: Path, fake: FakeAccess, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.registers = False
    assert joined(monkeypatch, fake.server)[0] == 4
    assert not (home / ".config/teamlore/team.json").exists()
    keys = [held for secret, held in fake.tokens.items() if secret.startswith("tlk_key")]
    assert [each.revoked for each in keys] == [True]


def test_without_a_yes_nothing_is_stored(home: Path, fake: FakeAccess) -> None:
    code, told = call("team", "join", fake.server, "--token", AGENT)
    assert (code, told["error"]["kind"]) == (3, "not_confirmed")
    assert not (home / ".config/teamlore/team.json").exists()
    assert fake.asked("StartSession") == fake.asked("CreatePersonalKey") == []


@pytest.mark.parametrize(("typed", "ends"), [("n", 3), ("\x04", 3), ("\x03", 130)])
def test_a_no_is_a_decision_and_ends_as_one(home: Path, fake: FakeAccess, typed: str, ends: int) -> None:
    with terminal(home, PYTHON_KEYRING_BACKEND="keyring.backends.null.Keyring") as at:
        at.run("cd project")
        at.type(f"{TEAMLORE} team join {fake.server} --token {AGENT}; echo __$?__")
        at.expect("Share them with the team")
        at.press(typed + "\n" if typed.isalpha() else typed)
        code, said = at.end()
    assert code == ends, said
    assert not (home / ".config/teamlore/team.json").exists()


def test_an_agent_s_token_from_the_environment_is_stored_as_it_is(
    home: Path, fake: FakeAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAMLORE_TEAM_TOKEN", AGENT)
    code, told = call("team", "join", fake.server, "--yes")
    assert (code, told["token_kept_in"], stored(home)["token"]) == (0, "file", AGENT)
    monkeypatch.delenv("TEAMLORE_TEAM_TOKEN")
    assert call("team", "sync")[0] == 0


@pytest.mark.parametrize("yes", [["--yes"], []])
@pytest.mark.parametrize("where", ["--token", "TEAMLORE_TEAM_TOKEN"])
def test_a_person_s_token_that_others_can_read_is_refused_before_anything_is_asked(
    home: Path, fake: FakeAccess, monkeypatch: pytest.MonkeyPatch, where: str, yes: list[str]
) -> None:
    given = ["--token", PERSON] if where == "--token" else []
    if not given:
        monkeypatch.setenv(where, PERSON)
    code, told = call("team", "join", fake.server, *given, *yes)
    assert (code, told["error"]["kind"]) == (2, "person_token")
    assert where in told["error"]["message"] and "`teamlore login`" in told["error"]["message"]
    assert fake.asked("StartSession") == fake.asked("CreatePersonalKey") == []
    assert not (home / ".config/teamlore/team.json").exists()


def test_the_server_may_come_from_the_environment(fake: FakeAccess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEAMLORE_SERVER", raising=False)
    code, told = call("team", "join", "--token", AGENT, "--yes")
    assert (code, told["error"]["kind"]) == (2, "no_server")
    monkeypatch.setenv("TEAMLORE_SERVER", fake.server)
    assert call("team", "join", "--token", AGENT, "--yes")[0] == 0
    assert call("team", "join", fake.server, "--server", fake.server, "--yes")[0] == 2


def test_another_server_does_not_see_the_kept_token(fake: FakeAccess) -> None:
    call("team", "join", fake.server, "--token", AGENT, "--yes")
    with serving() as other:
        assert call("team", "join", other.server, "--yes")[0] == 2
        assert other.calls == []


def test_a_former_server_hears_the_former_key_alone(
    home: Path, fake: FakeAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined(monkeypatch, fake.server)
    former = stored(home)["token"]
    with serving(lambda server: feed_pb2_grpc.add_FeedServiceServicer_to_server(Feed(), server)) as other:
        other.add("tlk_otherserversagent", "user:alice")
        said = len(fake.credentials)
        monkeypatch.setenv("TEAMLORE_TEAM_TOKEN", "tlk_otherserversagent")
        assert call("team", "join", other.server, "--yes")[0] == 0
    assert fake.tokens[former].revoked and set(fake.credentials[said:]) == {former}


def test_a_refused_push_does_not_undo_a_join_and_both_are_told(home: Path, fake: FakeAccess, feed: Feed) -> None:
    refusal = Refused("BANK_ARCHIVED", "the bank is archived")
    with Laptop() as laptop:
        laptop.vectors.add(memory("mine", bank=bank_of(Path.cwd()).id), vector(1))

    def refused(*_: object) -> None:
        raise refusal

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("teamlore_client._rpc.TeamClient.push", refused)
        patched.setattr("teamlore_client._rpc.TeamClient.push_stream", refused)
        done = CliRunner().invoke(app, ["team", "join", fake.server, "--token", AGENT, "--yes"])
        assert done.exit_code == 4
        said = " ".join(done.output.split())
        assert "joined project:api-" in said and "pushed: nothing pulled: 0 new, 0 erased verified" in said
        assert "what waits here was not pushed: the server refused: the bank is archived (BANK_ARCHIVED)" in said
        code, told = call("team", "sync")
        assert (code, told["error"]["reason"], told["sync"]["push_refused"]) == (4, "BANK_ARCHIVED", "BANK_ARCHIVED")
        assert told["sync"]["pulled"]["stored"] == 0 and told["sync"]["verified"]
        refusal = Refused("PERMISSION_DENIED", "no", permission="write")
        said = CliRunner().invoke(app, ["team", "sync"]).output
        assert "not pushed: your token lacks the permission `write` on this project; all else was done" in said
        assert "nothing was changed" not in said
        feed.lists = False
        said = CliRunner().invoke(app, ["team", "sync"]).output
        assert "not pushed" not in said and "verified" not in said and "nothing was changed" not in said
    assert stored(home)["token"] == AGENT


def test_a_typed_token_and_a_session_both_join(home: Path, fake: FakeAccess) -> None:
    backend = {"PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring"}
    with terminal(home, TEAMLORE_SERVER=fake.server, **backend) as at:
        at.run("cd project")
        at.type(f"{TEAMLORE} team join {fake.server} --yes; echo __$?__")
        at.expect("Token: ")
        at.type(AGENT)
        code, said = at.end()
        assert (code, stored(home)["token"]) == (0, AGENT), said
        at.run(f"{TEAMLORE} team leave")
        at.type(f"{TEAMLORE} login; echo __$?__")
        at.expect("Person token: ")
        at.type(PERSON)
        assert at.end()[0] == 0
        code, said = at.run(f"{TEAMLORE} team join {fake.server} --yes")
        assert code == 0, said
    assert fake.tokens[stored(home)["token"]].token_id == stored(home)["key_id"]
    for word in (PERSON, *fake.sessions()):
        assert traces(home, word) == {}
