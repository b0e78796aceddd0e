"""Banks, their policies, and why a principal may do what it may on one."""

import base64
import uuid
from typing import Any

import pytest
from teamlore.auth.v1 import access_pb2 as pb
from teamlore.auth.v1 import auth_pb2

from services.auth import access_store
from services.auth.tests.conftest import Auth
from services.auth.tests.test_rules import TEAM, put

DEFAULTS = pb.Policy(
    near_duplicates="skip", near_duplicate_threshold=0.95, classification="internal",
    team_memory=True, min_lane="synced", publish_requires_review=False, pii="off",
)  # fmt: skip


async def test_a_bank_is_made_changed_archived_and_shown(auth: Auth) -> None:
    rows, version = len(await auth.audited()), await auth.version()
    absent = (await auth("GetBank", pb.GetBankRequest(bank="project:x"))).bank
    assert absent == pb.Bank(bank="project:x", layer="team", policy=DEFAULTS)
    for name, request in (
        ("ArchiveBank", pb.ArchiveBankRequest(bank="project:x")),
        ("PutPolicy", pb.PutPolicyRequest(bank="project:x", policy=pb.Policy(min_lane="entry"))),
    ):
        refused = await auth.refusal(name, request)
        assert (refused.reason, refused.fields) == ("NOT_FOUND", ["bank"])
    request = pb.PutBankRequest(
        bank="project:x", name="X", tenant_id=auth.built.authenticator.access.deployment
    )
    made = await auth("PutBank", request)
    assert (made.created, made.bank.name, made.bank.owner, made.bank.layer) == (
        True,
        "X",
        "user:root",
        "team",
    )
    assert not (await auth("PutBank", request)).created
    moved = (await auth("PutBank", pb.PutBankRequest(bank="project:x", owner="user:bob"))).bank
    assert (moved.name, moved.owner) == ("X", "user:bob")
    assert (await auth("GetBank", pb.GetBankRequest(bank="project:x"))).bank == moved
    assert (await auth("ArchiveBank", pb.ArchiveBankRequest(bank="project:x"))).changed
    assert not (await auth("ArchiveBank", pb.ArchiveBankRequest(bank="project:x"))).changed
    assert (await auth("GetBank", pb.GetBankRequest(bank="project:x"))).bank.archived
    assert (await auth("ArchiveBank", pb.ArchiveBankRequest(bank="project:x", reopen=True))).changed
    wanted = pb.Policy(barrier="reject", near_duplicate_threshold=0.8, team_memory=False, pii="redact")
    answer = await auth("PutPolicy", pb.PutPolicyRequest(bank="project:x", policy=wanted))
    whole = pb.Policy()
    whole.CopyFrom(DEFAULTS)
    whole.MergeFrom(wanted)
    assert (answer.changed, answer.policy) == (True, whole)
    again = await auth("PutPolicy", pb.PutPolicyRequest(bank="project:x", policy=wanted))
    assert (again.changed, again.policy) == (False, whole)
    assert (await auth("GetBank", pb.GetBankRequest(bank="project:x"))).bank.policy == whole
    alone = pb.PutPolicyRequest(bank="project:x", policy=pb.Policy(pii="reject"))
    assert [(await auth("PutPolicy", alone)).changed for _ in range(2)] == [True, False]
    assert (await auth.audited())[rows:] == [
        "access.bank_changed", "access.bank_changed", "access.bank_archived", "access.bank_archived", "access.policy_changed",
        "access.policy_changed",
    ]  # fmt: skip
    assert await auth.version() == version + 6
    banks = await auth.database.fetch("select distinct bank from compliance.audit_calls order by bank")
    assert [row["bank"] for row in banks] == ["", "project:x"]


@pytest.mark.parametrize(
    ("bank", "more", "reason"),
    [
        ("project:x", {"tenant_id": "other"}, "INVALID_SCOPE"),
        ("nolayer:x", {}, "INVALID_SCOPE"),
        ("team:api", {}, "INVALID_SCOPE"),
        ("project:", {}, "INVALID_SCOPE"),
        ("client:x:y", {}, "NOT_FOUND"),
        (f"client:{TEAM}:never", {}, "NOT_FOUND"),
        ("private:user:bob", {}, "PERMISSION_DENIED"),
    ],
)
async def test_what_is_no_bank_of_this_deployment(
    auth: Auth, bank: str, more: dict[str, str], reason: str
) -> None:
    assert (await auth.refusal("PutBank", pb.PutBankRequest(bank=bank, **more))).reason == reason
    assert not await auth.database.fetchval("select count(*) from memory.banks")


async def test_a_pushed_bank_never_begins_with_the_name_of_a_group(auth: Auth) -> None:
    with pytest.raises(Exception, match="a bank id is a layer"):
        await auth.database.execute("select memory.open_bank('team:api', 'user:bob')")


async def test_an_owner_counts_where_the_deployment_says_so(auth: Auth) -> None:
    bob = await auth.token("user:bob", ("a:x", "read"))
    await auth("ApplyAccess", pb.ApplyAccessRequest(document=pb.AccessDocument(default_access="owner_only")))
    assert not (await auth.who(bob, "project:x")).permissions
    await auth("PutBank", pb.PutBankRequest(bank="project:x", owner="user:bob"))
    assert list((await auth.who(bob, "project:x")).permissions) == ["read", "write", "forget"]
    over = pb.PutBankRequest(bank="project:x", owner="user:ann")
    assert (await auth.refusal("PutBank", over, bob)).reason == "PERMISSION_DENIED"
    ask = auth_pb2.ExplainAccessRequest(bank="project:x", principal="user:ann")
    assert (await auth.refusal("ExplainAccess", ask, bob)).reason == "PERMISSION_DENIED"
    assert (await auth("PutBank", over)).bank.owner == "user:ann"
    assert not (await auth.who(bob, "project:x")).permissions


async def banks(auth: Auth, token: str, size: int = 100, **more: Any) -> list[str]:
    request, found, pages = pb.ListBanksRequest(page_size=size, **more), [], 0
    while pages == 0 or request.page_token:
        answer = await auth("ListBanks", request, token)
        assert len(answer.banks) <= size
        found += [bank.bank for bank in answer.banks]
        request.page_token, pages = answer.next_page_token, pages + 1
    return found


async def test_a_page_token_gives_no_bank_away(auth: Auth, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_store, "LOOKED_AT", 2)
    monkeypatch.setattr(access_store, "MOST_LOOKED_AT", 2)
    for number in range(4):
        await auth.database.execute("select memory.open_bank($1, 'user:x')", f"project:merger{number}")
    bob = await auth.token("user:bob", ("project:other", "read"))
    token = (await auth("ListBanks", pb.ListBanksRequest(), bob)).next_page_token
    assert token and b"merger" not in base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))


async def test_one_lists_what_one_may_read_and_no_more(auth: Auth, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_store, "LOOKED_AT", 3)
    monkeypatch.setattr(access_store, "MOST_LOOKED_AT", 6)
    open_bank = "select memory.open_bank($1, 'user:x')"
    for number in range(10):
        await auth.database.execute(open_bank, f"project:a{number}")
        await auth.database.execute(open_bank, f"project:b{number}")
    for bank in ("private:user:bob", "private:user:ann", "system:guide"):
        await auth.database.execute(open_bank, bank)
    await auth("PutTeam", pb.PutTeamRequest(team_id=TEAM, name="T"))
    for client, archived in (("acme", False), ("past", True)):
        await auth("PutClient", pb.PutClientRequest(team_id=TEAM, client_id=client, archived=archived))
    bob = await auth.token("user:bob", ("project:a*", "read"), ("client:*", "read"))
    mine = [f"client:{TEAM}:acme", "private:user:bob", *(f"project:a{n}" for n in range(10)), "system:guide"]
    for size in (1, 4, 100):
        assert sorted(await banks(auth, bob, size)) == sorted(mine)
        assert await banks(auth, bob, size, pattern="project:*") == [f"project:a{n}" for n in range(10)]
    await auth("PutGrant", put("user:bob", "project:a[5-9]", "read", "deny"))
    assert await banks(auth, bob, pattern="project:*") == [f"project:a{n}" for n in range(5)]
    assert await banks(auth, auth.root, pattern="private:*") == []
    other = str(uuid.UUID(int=9))
    await auth("PutTeam", pb.PutTeamRequest(team_id=other, name="Other"))
    selected = await auth(
        "ListBanks", pb.ListBanksRequest(pattern="client:*"), auth.root, ("x-teamlore-team", other)
    )
    assert not selected.banks
    assert (await auth.refusal("ListBanks", pb.ListBanksRequest(page_token="zz"), bob)).fields == [
        "page_token"
    ]


async def test_a_page_that_is_full_to_the_last_bank_asks_for_no_more(auth: Auth) -> None:
    for name in ("a", "b"):
        await auth("PutBank", pb.PutBankRequest(bank=f"project:{name}"))
    answer = await auth("ListBanks", pb.ListBanksRequest(page_size=2))
    assert (len(answer.banks), answer.next_page_token) == (2, "")


def explained(answer: auth_pb2.ExplainAccessResponse) -> dict[str, tuple[bool, list[str], list[str]]]:
    return {p.permission: (p.held, list(p.given_by), list(p.taken_by)) for p in answer.permissions}


async def test_one_is_told_why_and_an_admin_is_told_of_others(auth: Auth) -> None:
    made = await auth("CreateToken", pb.CreateTokenRequest(
        principal="user:bob", kind="agent", grants=[pb.Grant(pattern="project:*", permissions=["write"])]))  # fmt: skip
    await auth("PutGroup", pb.PutGroupRequest(group="team:api", members=["user:bob"]))
    await auth("PutGrant", put("team:api", "project:*", "read forget"))
    await auth("PutGrant", put("user:b*", "project:x", "forget", "deny"))
    own = await auth("ExplainAccess", auth_pb2.ExplainAccessRequest(bank="project:x"), made.token)
    assert (own.principal, list(own.groups)) == ("user:bob", ["team:api"])
    assert [p.permission for p in own.permissions] == ["read", "write", "forget", "comply", "admin"]
    grant, token = "grant team:api project:*", f"token {made.token_id} project:*"
    assert explained(own) == {
        "read": (True, [grant], []), "write": (True, [token], []), "forget": (False, [grant], ["deny user:b* project:x"]),
        "comply": (False, [], []), "admin": (False, [], []),
    }  # fmt: skip
    ask = auth_pb2.ExplainAccessRequest(bank="project:x", principal="user:bob")
    assert explained(await auth("ExplainAccess", ask, made.token)) == explained(own)
    other = explained(await auth("ExplainAccess", ask))
    assert (other["read"], other["write"]) == (explained(own)["read"], (False, [], []))
    await auth("SuspendPrincipal", pb.SuspendPrincipalRequest(principal="user:bob"))
    assert explained(await auth("ExplainAccess", ask))["read"] == (False, [grant], ["suspension of user:bob"])


async def test_an_admin_of_a_bank_learns_of_others_only_what_it_administers(auth: Auth) -> None:
    scoped = await auth.token("user:sco", ("project:x", "admin"))
    await auth("PutGroup", pb.PutGroupRequest(group="team:api", members=["user:bob"]))
    await auth("PutGrant", put("team:api", "project:*", "read"))
    await auth("PutGrant", put("user:bob", "project:x", "write"))
    await auth("PutGrant", put("user:bob", "pro*", "write", "deny"))
    await auth("SuspendPrincipal", pb.SuspendPrincipalRequest(principal="user:bob"))
    ask = auth_pb2.ExplainAccessRequest(bank="project:x", principal="user:bob")
    told = await auth("ExplainAccess", ask, scoped)
    assert not told.groups
    assert explained(told)["read"] == (True, [], [])
    assert explained(told)["write"] == (False, ["grant user:bob project:x"], [])


async def test_an_explanation_tells_nothing_of_banks_out_of_reach(auth: Auth) -> None:
    bob = await auth.token("user:bob", ("project:*", "read"))
    await auth("PutTeam", pb.PutTeamRequest(team_id=TEAM, name="T"))
    await auth("PutClient", pb.PutClientRequest(team_id=TEAM, client_id="acme"))
    await auth("PutGrant", put("user:bob", f"client:{TEAM}:a*", "read"))
    await auth("PutGrant", put("user:bob", "client:*", "read", "deny"))

    async def ask(bank: str, token: str, principal: str = "") -> tuple[str, str]:
        request = auth_pb2.ExplainAccessRequest(bank=bank, principal=principal)
        refused = await auth.refusal("ExplainAccess", request, token)
        return refused.reason, str(refused)

    there, never = await ask(f"client:{TEAM}:acme", bob), await ask(f"client:{TEAM}:anybody", bob)
    assert there == never and there[0] == "ACCESS_REVOKED"
    assert await ask(f"client:{TEAM}:acme", bob, "user:ann") == never
    assert (await ask(f"client:{TEAM}:zoo", bob))[0] == "NOT_FOUND"
    assert (await ask("project:x", bob, "user:ann"))[0] == "PERMISSION_DENIED"
    for principal in ("user:ann", "user:bob"):
        assert (await ask("private:user:ann", auth.root, principal))[0] == "PERMISSION_DENIED"
    delete = pb.DeleteGrantRequest(subject="user:bob", pattern=f"client:{TEAM}:a*", effect="allow")
    assert (await auth("DeleteGrant", delete)).deleted
    assert (await ask(f"client:{TEAM}:acme", bob))[0] == "ACCESS_REVOKED"
    mine = await auth("ExplainAccess", auth_pb2.ExplainAccessRequest(bank="private:user:bob"), bob)
    assert explained(mine)["read"] == (True, ["its own PRIVATE bank"], [])
    assert explained(mine)["admin"] == (False, [], [])
