"""`teamlore admin`, `whoami` and `team join` as an admin and a person meet them, against the whole stack."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import grpc
import pytest
from teamlore.auth.v1 import auth_pb2, auth_pb2_grpc
from terminal import TEAMLORE, terminal

from tests.integration.conftest import RunningStack

SERVICES = ("auth", "sync", "feed", "compliance")


class Shell:
    """One home, one clone of a project of its own, one server."""

    def __init__(self, folder: Path, stack: RunningStack) -> None:
        self.name = f"p{uuid.uuid4().hex[:8]}"
        self.home, self.clone = folder / "home", folder / self.name
        self.home.mkdir()
        subprocess.run(["git", "init", "-q", str(self.clone)], check=True)
        remote = f"https://git.example.com/{self.name}.git"
        subprocess.run(["git", "-C", str(self.clone), "remote", "add", "origin", remote], check=True)
        self.server = ",".join(f"{name}={stack.address(name)}" for name in SERVICES)
        # A session, as `teamlore login` gives one: only a person who is present makes a token to sign in with.
        with grpc.insecure_channel(stack.address("auth")) as channel:
            start = auth_pb2.StartSessionRequest(person_token=stack.admin)
            self.admin_token = auth_pb2_grpc.AuthServiceStub(channel).StartSession(start).session_token

    def run(self, *arguments: str, token: str = "", code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "teamlore_client.cli", *arguments],
            cwd=self.clone,
            env={
                "HOME": str(self.home),
                "PATH": os.environ["PATH"],
                "TEAMLORE_SERVER": self.server,
                "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
                **({"TEAMLORE_TOKEN": token} if token else {}),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout

    def json(self, *arguments: str, token: str = "", code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", token=token, code=code))

    def join(self, person: str) -> Any:
        """`team join` as a person who types the token on a terminal."""
        keyring = {"PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring"}
        with terminal(self.home, TEAMLORE_SERVER=self.server, **keyring) as at:
            at.run(f"cd {self.clone}")
            at.type(f"{TEAMLORE} team join --yes --json; echo __$?__")
            at.expect("Token: ")
            at.type(person)
            code, said = at.end()
        assert code == 0, said
        return json.loads(said[said.index("{") : said.rindex("}") + 1])

    def admin(self, *arguments: str, code: int = 0) -> Any:
        return self.json("admin", *arguments, token=self.admin_token, code=code)

    def principal(self, kind: str = "user") -> str:
        return f"{kind}:{self.name}-{uuid.uuid4().hex[:6]}"


@pytest.fixture
def shell(tmp_path: Path, stack: RunningStack) -> Shell:
    return Shell(tmp_path, stack)


def test_a_token_is_made_used_rotated_and_revoked(shell: Shell) -> None:
    alice = shell.principal()
    command = ("--principal", alice, "--banks", "project:*", "--groups", "team:api", "--expires", "2d")
    made = shell.admin("token", "create", *command)
    who = shell.json("whoami", "--explain", token=made["token"])
    assert (who["principal"], who["kind"], who["person_present"]) == (alice, "agent", False)
    assert {"read", "write"} <= set(who["permissions"])
    assert "team:api" in who["groups"]
    assert [each["permission"] for each in who["explanation"]] == [
        "read",
        "write",
        "forget",
        "comply",
        "admin",
    ]
    listed = shell.admin("token", "list", "--principal", alice)["tokens"]
    assert [each["token_id"] for each in listed] == [made["token_id"]]
    assert made["token"] not in json.dumps(listed)
    again = shell.admin("token", "rotate", made["token_id"], "--overlap", "1h")
    assert shell.json("whoami", token=again["token"])["principal"] == alice
    assert shell.admin("token", "revoke", again["token_id"])["revoked"] is True
    assert shell.admin("token", "revoke", again["token_id"])["revoked"] is False


def test_groups_grants_and_denies_decide(shell: Shell) -> None:
    bob = shell.principal()
    group = f"team:{shell.name}"
    token = shell.admin("token", "create", "--principal", bob)["token"]
    bank = shell.json("whoami", token=token)["bank"]
    assert shell.json("whoami", token=token)["permissions"] == []
    assert shell.admin("group", "put", group, bob)["added"] == 1
    assert shell.admin("grant", "put", group, bank, "read,write")["changed"] is True
    assert shell.admin("grant", "put", group, bank, "read,write")["changed"] is False
    assert shell.admin("grant", "put", bob, bank, "write", "--deny")["changed"] is True
    who = shell.json("whoami", "--explain", token=token)
    why = {each["permission"]: each for each in who["explanation"]}
    assert (why["read"]["held"], why["write"]["held"]) == (True, False)
    assert why["write"]["given_by"] and why["write"]["taken_by"]
    listed = shell.admin("grant", "list", bank)["grants"]
    assert {(each["subject"], each["effect"]) for each in listed} == {(group, "allow"), (bob, "deny")}
    assert {"group": group, "members": [bob]} in shell.admin("group", "list")["groups"]
    assert shell.admin("grant", "delete", bob, bank, "--deny")["deleted"] is True
    assert shell.admin("group", "put", group, "--remove")["removed"] == 1
    shell.json("admin", "group", "list", token=token, code=4)


def test_teams_banks_and_policies(shell: Shell) -> None:
    team = shell.admin("team", "put", shell.name)["team_id"]
    owner = shell.principal()
    assert shell.admin("team", "member", team, owner, "--role", "owner")["changed"] is True
    bank = shell.admin("team", "client", team, "acme")["bank"]
    assert bank == f"client:{team}:acme"
    found = next(each for each in shell.admin("team", "list")["teams"] if each["team_id"] == team)
    assert [each["principal"] for each in found["members"]] == [owner]
    space = f"space:{shell.name}"
    assert shell.admin("bank", "put", space, "--name", "Handbook", "--owner", owner)["created"] is True
    policy = shell.admin(
        "policy", "put", space, "--barrier", "reject", "--pii", "redact", "--min-lane", "entry"
    )["policy"]
    assert (policy["barrier"], policy["pii"], policy["min_lane"]) == ("reject", "redact", "entry")
    assert shell.admin("bank", "archive", space)["changed"] is True
    assert shell.admin("bank", "reopen", space)["changed"] is True


def test_a_document_is_compared_and_applied(shell: Shell, tmp_path: Path) -> None:
    # Documents manage all groups and grants, so what other tests of this stack made is left to them.
    file = tmp_path / "access.yaml"
    file.write_text(
        f"banks:\n  - bank: space:{shell.name}\n    name: Handbook\n    policy: {{barrier: reject}}\n"
    )
    differences = shell.admin("apply", str(file), "--dry-run", code=4)["differences"]
    assert any(each["action"] == "add" and shell.name in each["name"] for each in differences)
    shell.admin("apply", str(file))
    assert shell.admin("apply", str(file), "--dry-run")["differences"] == []
    file.write_text("grants:\n  - subject: team:api\n    patern: x\n")
    error = shell.admin("apply", str(file), "--dry-run", code=2)["error"]
    assert "grants[0].patern" in error["message"] and ":3" in error["message"]
    file.write_text("grants:\n  - subject: team:api\n    pattern: 'a b'\n    permissions: [read]\n")
    error = shell.admin("apply", str(file), "--dry-run", code=2)["error"]
    assert error["message"].count("grants[0].pattern") == 1 and ":3" in error["message"]


def test_a_person_joins_with_a_key_and_is_off_boarded_in_one_call(shell: Shell) -> None:
    alice = shell.principal()
    person = shell.admin("token", "create", "--principal", alice, "--kind", "person")["token"]
    shell.admin("grant", "put", alice, f"project:{shell.name}-*", "read,write")
    refused = shell.json("team", "join", shell.server, "--token", person, "--yes", code=2)["error"]
    assert refused["kind"] == "person_token" and not (shell.home / ".config/teamlore/team.json").exists()
    joined = shell.join(person)
    assert joined["personal_key"]
    kept = (shell.home / ".config/teamlore/team.json").read_text()
    assert person not in kept and joined["personal_key"] in kept
    who = shell.json("whoami")
    assert (who["credential"], who["kind"], who["person_present"]) == ("membership", "agent", False)
    held = shell.admin("offboard", alice, "--dry-run")
    assert joined["personal_key"] in [each["token_id"] for each in held["tokens"]]
    assert held["grants"] and held["devices"]
    assert held["suspended"] is False
    assert shell.admin("offboard", alice)["suspended"] is True
    shell.json("whoami", token=person, code=4)
    assert shell.admin("resume", alice)["suspended"] is False
    shell.json("whoami", token=person, code=4)  # revoked tokens stay so


def test_leaving_revokes_the_laptop_s_own_key(shell: Shell) -> None:
    alice = shell.principal()
    person = shell.admin("token", "create", "--principal", alice, "--kind", "person")["token"]
    shell.admin("grant", "put", alice, f"project:{shell.name}-*", "read,write")
    key = shell.join(person)["personal_key"]
    assert shell.json("team", "leave")["key_revoked"] is True
    (found,) = [
        t for t in shell.admin("token", "list", "--principal", alice)["tokens"] if t["token_id"] == key
    ]
    assert found["revoked_at"]
