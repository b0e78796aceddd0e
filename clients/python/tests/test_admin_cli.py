"""`teamlore admin` and `whoami` against auth's services in memory: what is asked, shown, and with which code."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from fake_access import FakeAccess, serving
from google.rpc import error_details_pb2
from teamlore.auth.v1 import access_pb2, auth_pb2
from teamlore_client.cli import app
from terminal import TEAMLORE, terminal
from typer.testing import CliRunner

ADMIN = "tlk_adminadminadmin"
TEAM = "6f1c0c5e-9c1c-4f0e-8f6b-0d9f6a3b1c2d"


@pytest.fixture
def fake(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAccess]:
    monkeypatch.chdir(home)
    with serving() as served:
        served.add(ADMIN, "user:root", "service")
        monkeypatch.setenv("TEAMLORE_TOKEN", ADMIN)
        monkeypatch.setenv("TEAMLORE_SERVER", served.server)
        yield served


def call(*arguments: str, given: str | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments), input=given)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert ADMIN not in done.output
    return done.exit_code, done.output


def test_the_token_of_the_issue_s_example(fake: FakeAccess) -> None:
    fake.answers["CreateToken"] = lambda _: access_pb2.CreateTokenResponse(token_id="ab" * 8, token="tlk_new")
    command = ("--principal", "user:alice", "--banks", "project:*", "--groups", "team:api")
    code, said = call("admin", "token", "create", *command)
    assert (code, said.count("tlk_new")) == (0, 1)
    (asked,) = fake.asked("CreateToken")
    assert (asked.principal, asked.kind, list(asked.groups)) == ("user:alice", "agent", ["team:api"])
    assert [(g.pattern, list(g.permissions)) for g in asked.grants] == [("project:*", ["read", "write"])]
    assert not asked.HasField("expires_at")
    code, said = call(
        "admin", "token", "create", *command, "--expires", "2d", "--permissions", "read", "--json"
    )
    assert json.loads(said) == {"token_id": "ab" * 8, "token": "tlk_new"}
    asked = fake.asked("CreateToken")[1]
    assert list(asked.grants[0].permissions) == ["read"]
    assert asked.HasField("expires_at")
    assert call("admin", "token", "create", "--principal", "user:a", "--permissions", "read")[0] == 2
    assert call("admin", "token", "create", *command, "--expires", "soon")[0] == 2
    assert len(fake.asked("CreateToken")) == 2


@pytest.mark.parametrize(
    ("command", "name", "items", "made"),
    [
        (("token", "list"), "ListTokens", "tokens", lambda n: access_pb2.Token(token_id=f"id{n}")),
        (("grant", "list"), "ListGrants", "grants", lambda n: access_pb2.AccessGrant(subject=f"id{n}")),
        (("group", "list"), "ListGroups", "groups", lambda n: access_pb2.Group(group=f"id{n}")),
        (("team", "list"), "ListTeams", "teams", lambda n: access_pb2.Team(team_id=f"id{n}")),
        (("bank", "list"), "ListBanks", "banks", lambda n: access_pb2.Bank(bank=f"id{n}")),
    ],
)
def test_lists_page_to_the_end(
    fake: FakeAccess, command: tuple[str, ...], name: str, items: str, made: Any
) -> None:
    def page(request: Any) -> Any:
        number = int(request.page_token or 0)
        answer = getattr(access_pb2, f"{name}Response")(next_page_token=str(number + 1) if number < 2 else "")
        getattr(answer, items).append(made(number))
        return answer

    fake.answers[name] = page
    code, said = call("admin", *command, "--json")
    assert code == 0
    assert [f"id{n}" in said for n in range(4)] == [True, True, True, False]
    assert len(json.loads(said)[items]) == 3
    code, said = call("admin", *command)
    assert [f"id{n}" in said for n in range(4)] == [True, True, True, False]
    fake.answers[name] = lambda _: getattr(access_pb2, f"{name}Response")(next_page_token="same")
    assert call("admin", *command)[0] == 1


def test_a_table_shows_others_words_harmless_and_whole(fake: FakeAccess) -> None:
    note = "x\x1b[2J[red]" + "long " * 30
    token = access_pb2.Token(token_id="ab" * 8, principal="user:bob", note=note)
    token.revoked_at.FromSeconds(1_000_000_000)
    fake.answers["ListTokens"] = lambda _: access_pb2.ListTokensResponse(tokens=[token])
    _, said = call("admin", "token", "list")
    assert "x\\x1b[2J[red]" + "long " * 29 in said
    assert "revoked 2001-09-0" in said
    assert "\x1b" not in said


def test_grants_and_groups(fake: FakeAccess) -> None:
    fake.answers["PutGrant"] = lambda _: access_pb2.PutGrantResponse(changed=True)
    assert call("admin", "grant", "put", "user:bob", "project:x*", "read,write", "forget", "--deny")[0] == 0
    grant = fake.asked("PutGrant")[0].grant
    told = (grant.subject, grant.pattern, list(grant.permissions), grant.effect)
    assert told == ("user:bob", "project:x*", ["read", "write", "forget"], "deny")
    fake.answers["DeleteGrant"] = lambda _: access_pb2.DeleteGrantResponse(deleted=False)
    code, said = call("admin", "grant", "delete", "user:bob", "project:x*")
    assert (code, "there was none" in said, fake.asked("DeleteGrant")[0].effect) == (0, True, "allow")
    fake.answers["PutGroup"] = lambda _: access_pb2.PutGroupResponse(added=2)
    assert call("admin", "group", "put", "team:api")[0] == 2
    assert fake.asked("PutGroup") == []
    assert call("admin", "group", "put", "team:api", "user:a", "user:b")[0] == 0
    assert call("admin", "group", "put", "team:api", "--remove")[0] == 0
    assert [list(each.members) for each in fake.asked("PutGroup")] == [["user:a", "user:b"], []]


def test_a_team_keeps_what_is_not_named(fake: FakeAccess) -> None:
    standing = access_pb2.Team(team_id=TEAM, name="API", archived=True)
    fake.answers["ListTeams"] = lambda _: access_pb2.ListTeamsResponse(teams=[standing])
    fake.answers["PutTeam"] = lambda _: access_pb2.PutTeamResponse(changed=True)
    assert call("admin", "team", "put", "New")[0] == 0
    assert call("admin", "team", "put", "Renamed", "--id", TEAM)[0] == 0
    assert call("admin", "team", "put", "--id", TEAM, "--reopen")[0] == 0
    made, renamed, reopened = fake.asked("PutTeam")
    assert (made.name, len(made.team_id), made.archived) == ("New", 36, False)
    assert (renamed.team_id, renamed.name, renamed.archived) == (TEAM, "Renamed", True)
    assert (reopened.name, reopened.archived) == ("API", False)
    fake.answers["PutMembership"] = lambda _: access_pb2.PutMembershipResponse(changed=True)
    fake.answers["PutClient"] = lambda _: access_pb2.PutClientResponse(changed=True, bank="client:t:acme")
    assert call("admin", "team", "member", TEAM, "user:bob", "--role", "owner")[0] == 0
    member = fake.asked("PutMembership")[0]
    assert (member.principal, member.role, member.status) == ("user:bob", "owner", "active")
    assert "client:t:acme (archived)" in call("admin", "team", "client", TEAM, "acme", "--archive")[1]


def test_banks_and_policies(fake: FakeAccess) -> None:
    bank = access_pb2.Bank(
        bank="project:x-1", layer="team", name="X", policy=access_pb2.Policy(barrier="off")
    )
    fake.answers["GetBank"] = lambda _: access_pb2.GetBankResponse(bank=bank)
    fake.answers["PutBank"] = lambda _: access_pb2.PutBankResponse(bank=bank)
    fake.answers["ArchiveBank"] = lambda _: access_pb2.ArchiveBankResponse(changed=True)
    fake.answers["PutPolicy"] = lambda request: access_pb2.PutPolicyResponse(
        policy=request.policy, changed=True
    )
    assert call("admin", "bank", "put", "project:x-1", "--owner", "user:bob")[0] == 0
    assert (fake.asked("PutBank")[0].name, fake.asked("PutBank")[0].owner) == ("X", "user:bob")
    assert "barrier" in call("admin", "bank", "show", "project:x-1")[1]
    assert json.loads(call("admin", "policy", "show", "project:x-1", "--json")[1])["policy"] == {
        "barrier": "off"
    }
    bank.policy.ClearField("barrier")
    bank.policy.pii = "off"
    shown = call("admin", "policy", "show", "project:x-1")[1]
    assert [line.split(maxsplit=1) for line in shown.splitlines()] == [["barrier", "the deployment's"], ["pii", "off"]]
    assert call("admin", "policy", "put", "project:x-1")[0] == 2
    code, said = call(
        "admin", "policy", "put", "project:x-1", "--no-team-memory", "--near-duplicate-threshold", "0.9"
    )
    assert (code, "0.9" in said) == (0, True)
    policy = fake.asked("PutPolicy")[0].policy
    assert policy.HasField("team_memory") and not policy.team_memory and not policy.HasField("barrier")
    assert call("admin", "bank", "archive", "project:x-1")[0] == 0
    assert call("admin", "bank", "reopen", "project:x-1")[0] == 0
    assert [each.reopen for each in fake.asked("ArchiveBank")] == [False, True]


@pytest.mark.parametrize("command", ["bank put", "bank archive", "bank reopen", "policy put --barrier off"])
def test_a_private_bank_has_nothing_to_set_and_says_so(fake: FakeAccess, command: str) -> None:
    verb, *more = command.split(" --")
    options = [word for each in more for word in f"--{each}".split()]
    code, said = call("admin", *verb.split(), "private:user:bob", *options)
    assert code == 2 and "has no admin" in said and fake.calls == []


def test_a_leaver_s_everything_is_shown(fake: FakeAccess) -> None:
    fake.answers["SuspendPrincipal"] = lambda request: access_pb2.SuspendPrincipalResponse(
        suspended=not request.dry_run and not request.resume,
        tokens=[access_pb2.Token(token_id="ab" * 8, principal="user:bob", kind="agent", note="laptop")],
        grants=[
            access_pb2.AccessGrant(
                subject="user:bob", pattern="project:*", permissions=["read"], effect="allow"
            )
        ],
        groups=["team:api"],
        memberships=[
            access_pb2.Membership(team_id=TEAM, principal="user:bob", role="owner", status="active")
        ],
        banks=["private:user:bob"],
        devices=["d" * 32],
        known=True,
        made=[access_pb2.Token(token_id="cd" * 8, principal="user:eve", kind="person")],
        made_left_out=7,
    )
    code, said = call("admin", "offboard", "user:bob", "--dry-run")
    assert (code, "nothing was changed" in said) == (0, True)
    for word in ("ab" * 8, "project:*", "team:api", TEAM, "private:user:bob", "d" * 32, "user:eve", "7 more"):
        assert word in said
    assert f"teamlore admin token revoke {'cd' * 8}" in said
    assert call("admin", "offboard", "user:bob")[0] == 0
    assert call("admin", "suspend", "user:bob")[0] == 0
    assert json.loads(call("admin", "resume", "user:bob", "--json")[1])["suspended"] is False
    asked = [(each.dry_run, each.revoke_tokens, each.resume) for each in fake.asked("SuspendPrincipal")]
    assert asked == [(True, True, False), (False, True, False), (False, False, False), (False, False, True)]


def test_a_name_that_nothing_is_known_of_does_not_look_like_success(fake: FakeAccess) -> None:
    fake.answers["SuspendPrincipal"] = lambda request: access_pb2.SuspendPrincipalResponse(suspended=True)
    for command in ("offboard", "suspend", "resume"):
        code, said = call("admin", command, "user:bbo")
        assert code == 3 and "nothing is known of user:bbo" in said
        done = CliRunner().invoke(app, ["admin", command, "user:bbo", "--json"])
        assert (done.exit_code, json.loads(done.stdout.splitlines()[0])["known"]) == (3, False)


@pytest.mark.parametrize("width", [80, 120])
def test_ids_stay_whole_on_a_narrow_terminal(home: Path, fake: FakeAccess, width: int) -> None:
    tokens = [
        access_pb2.Token(
            token_id=f"{number:016x}", principal="user:bartholomew.longname", kind="agent", note="a laptop " * 5,
            groups=["team:platform", "team:api"], created_by="user:administrator",
            grants=[access_pb2.Grant(pattern="project:orders-*", permissions=["read", "write"])],
        ) for number in range(3)
    ]  # fmt: skip
    banks = [access_pb2.Bank(bank=f"client:{TEAM}:acme{n}", layer="client", name="Acme " * 9) for n in range(2)]
    fake.answers["ListTokens"] = lambda _: access_pb2.ListTokensResponse(tokens=tokens)
    fake.answers["ListBanks"] = lambda _: access_pb2.ListBanksResponse(banks=banks)
    with terminal(home, TEAMLORE_SERVER=fake.server, TEAMLORE_TOKEN=ADMIN) as at:
        at.run(f"stty cols {width} rows 40")
        for command, ids in (("token", [t.token_id for t in tokens]), ("bank", [b.bank for b in banks])):
            code, said = at.run(f"{TEAMLORE} admin {command} list")
            assert code == 0, said
            for each in ids:
                assert each in said, "an id that is broken cannot be copied"


def test_apply_shows_the_difference_and_a_dry_run_tells_by_its_code(fake: FakeAccess, home: Path) -> None:
    document = home / "access.yaml"
    document.write_text("grants:\n  - {subject: 'team:api', pattern: 'project:*', permissions: [read]}\n")
    fake.answers["ApplyAccess"] = lambda _: access_pb2.ApplyAccessResponse(
        differences=[
            access_pb2.AccessDifference(kind="group", action="add", name="team:api", after="user:a"),
            access_pb2.AccessDifference(
                kind="grant", action="change", name="g", before="read", after="write"
            ),
            access_pb2.AccessDifference(
                kind="grant", action="remove", name="user:bob project:*", before="read"
            ),
        ]
    )
    code, said = call("admin", "apply", str(document), "--dry-run")
    assert code == 4
    assert [line[:2] for line in said.splitlines()] == ["+ ", "~ ", "- ", "wo"]
    assert "read → write" in said
    assert call("admin", "apply", str(document))[0] == 0
    assert [each.dry_run for each in fake.asked("ApplyAccess")] == [True, False]
    assert fake.asked("ApplyAccess")[0].document.grants[0].effect == "allow"
    fake.answers["ApplyAccess"] = lambda _: access_pb2.ApplyAccessResponse()
    assert call("admin", "apply", str(document), "--dry-run")[0] == 0
    assert call("admin", "apply", "-", "--dry-run", given=document.read_text())[0] == 0
    fake.answers["ApplyAccess"] = lambda _: access_pb2.ApplyAccessResponse(groups_left_alone=3)
    code, said = call("admin", "apply", str(document), "--dry-run")
    assert code == 0 and "the 3 that documents manage are left alone; `groups: []`" in said
    assert "= grants" not in said


def test_a_refused_apply_is_not_taken_for_a_difference_and_a_bad_field_names_its_line(
    fake: FakeAccess, home: Path
) -> None:
    document = home / "access.yaml"
    document.write_text("grants:\n  - subject: bad\n    pattern: p\n    permissions: [read]\n")
    refusal = error_details_pb2.ErrorInfo(reason="PERMISSION_DENIED", metadata={"permission": "admin"})
    fake.answers["ApplyAccess"] = lambda _: refusal
    assert call("admin", "apply", str(document), "--dry-run")[0] == 1
    assert call("admin", "apply", str(document))[0] == 4
    field = {"field": "document.grants[0].subject"}
    fake.answers["ApplyAccess"] = lambda _: error_details_pb2.ErrorInfo(
        reason="FIELD_INVALID", metadata=field
    )
    code, said = call("admin", "apply", str(document), "--dry-run")
    assert (code, f"{document}:2: grants[0].subject" in said) == (2, True)
    document.write_text("grants: 1\n")
    before = len(fake.calls)
    assert call("admin", "apply", str(document))[0] == 2
    assert call("admin", "apply", str(home / "nowhere.yaml"))[0] == 1
    assert len(fake.calls) == before


def test_whoami_tells_who_what_and_why(fake: FakeAccess) -> None:
    fake.answers["ExplainAccess"] = lambda _: auth_pb2.ExplainAccessResponse(
        permissions=[
            auth_pb2.PermissionExplanation(
                permission="read", held=True, given_by=["grant team:api project:*"]
            ),
            auth_pb2.PermissionExplanation(
                permission="write", given_by=["token *"], taken_by=["deny user:root project:x"]
            ),
        ]
    )
    code, said = call("whoami", "--bank", "project:x-1", "--explain")
    assert code == 0
    for word in ("user:root", "service", "not present", "team:api", "read, write", "given by grant team:api"):
        assert word in said
    assert "taken by deny user:root project:x" in said
    told = json.loads(call("whoami", "--bank", "project:x-1", "--json")[1])
    assert (told["credential"], told["person_present"], told["bank"]) == ("environment", False, "project:x-1")
    assert "explanation" not in told


def test_each_failure_has_its_code_and_says_what_to_do(
    fake: FakeAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for reason, code, says in (
        ("PERMISSION_DENIED", 4, "whoami --explain"),
        ("PERSON_REQUIRED", 4, "teamlore login"),
        ("CREDENTIAL_EXPIRED", 4, "TEAMLORE_TOKEN"),
        ("FIELD_INVALID", 2, "refused"),
    ):
        answer = error_details_pb2.ErrorInfo(reason=reason)
        fake.answers["RevokeToken"] = lambda _, answer=answer: answer
        ended, said = call("admin", "token", "revoke", "ab" * 8)
        assert (ended, says in said) == (code, True), said
    ended, said = call("admin", "token", "create", "--principal", "user:a", "--server", "http://127.0.0.1:1")
    assert (ended, "may have been made" in said) == (5, True)
    monkeypatch.delenv("TEAMLORE_TOKEN")
    ended, said = call("admin", "group", "list")
    assert (ended, "teamlore login" in said) == (2, True)
    monkeypatch.delenv("TEAMLORE_SERVER")
    ended, said = call("admin", "group", "list")
    assert (ended, "--server" in said) == (2, True)


def test_minting_is_never_tried_twice(fake: FakeAccess) -> None:
    fake.answers["CreateToken"] = fake.answers["RotateToken"] = lambda _: grpc.StatusCode.UNAVAILABLE
    for command in (["create", "--principal", "user:a"], ["rotate", "ab" * 8]):
        code, said = call("admin", "token", *command)
        assert (code, "look before you try again" in said) == (5, True)
    assert len(fake.asked("CreateToken")) == len(fake.asked("RotateToken")) == 1
