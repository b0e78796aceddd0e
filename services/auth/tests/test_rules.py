"""Grants, denies, groups, Teams and suspension, as calls set them."""

import asyncio
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from teamlore.auth.v1 import access_pb2 as pb
from teamlore.auth.v1 import auth_pb2

from kit.access import _wider
from kit.errors import Refusal
from services.auth.rules import bounds
from services.auth.tests.conftest import Auth, Refused

TEAM = str(uuid.UUID(int=7))


def rule(subject: str, pattern: str, words: str, effect: str = "allow") -> pb.AccessGrant:
    return pb.AccessGrant(subject=subject, pattern=pattern, permissions=words.split(), effect=effect)


def put(subject: str, pattern: str, words: str, effect: str = "allow") -> pb.PutGrantRequest:
    return pb.PutGrantRequest(grant=rule(subject, pattern, words, effect))


async def test_a_grant_is_set_changed_and_taken_away_with_one_row_each(auth: Auth) -> None:
    bob = await auth.token("user:bob", ("space:own", "read"))
    rows, version = len(await auth.audited()), await auth.version()
    assert (await auth("PutGrant", put("user:bob", "project:*", "write read"))).changed
    assert not (await auth("PutGrant", put("user:bob", "project:*", "read write"))).changed
    assert list((await auth.who(bob, "project:x")).permissions) == ["read", "write"]
    assert (await auth("PutGrant", put("user:b*", "project:x", "write", "deny"))).changed
    assert list((await auth.who(bob, "project:x")).permissions) == ["read"]
    delete = pb.DeleteGrantRequest(subject="user:bob", pattern="project:*", effect="allow")
    assert (await auth("DeleteGrant", delete)).deleted
    assert not (await auth("DeleteGrant", delete)).deleted
    assert not (await auth.who(bob, "project:x")).permissions
    assert (await auth.audited())[rows:] == [
        "access.grant_changed",
        "access.grant_changed",
        "access.grant_deleted",
    ]
    assert await auth.version() == version + 3
    assert (await auth("PutGrant", put("user:bob", "project:*", "read"))).changed
    assert list((await auth.who(bob, "project:x")).permissions) == ["read"]


async def test_comply_and_a_deny_of_admin_are_not_for_every_admin(auth: Auth) -> None:
    scoped = await auth.token("user:sco", ("project:a*", "admin"))
    assert (await auth("PutGrant", put("user:bob", "project:ab", "read"), scoped)).changed
    assert (await auth("PutGrant", put("user:bob", "project:ab", "write", "deny"), scoped)).changed
    for request, permission in (
        (put("user:bob", "project:ab", "comply"), "comply"),
        (put("user:bob", "project:ab", "comply", "deny"), "comply"),
        (put("user:bob", "project:*", "read"), "admin"),
        (put("user:root", "project:ab", "admin", "deny"), "admin"),
    ):
        refused = await auth.refusal("PutGrant", request, scoped)
        assert (refused.reason, refused.metadata["permission"]) == ("PERMISSION_DENIED", permission)
    assert (await auth("PutGrant", put("user:sco", "project:ab", "comply"))).changed


@pytest.mark.parametrize("subject", ["user:root", "user:r*", "*", "team:root"])
@pytest.mark.parametrize("pattern", ["*", "project:x", "private:*"])
async def test_a_deny_that_would_lock_the_caller_out_is_refused(
    auth: Auth, subject: str, pattern: str
) -> None:
    await auth("PutGroup", pb.PutGroupRequest(group="team:root", members=["user:root"]))
    refused = await auth.refusal("PutGrant", put(subject, pattern, "read admin", "deny"))
    assert (refused.reason, refused.fields) == ("FIELD_INVALID", ["grant"])
    assert "lock you out" in refused.message
    assert (await auth("PutGrant", put("user:bob", pattern, "admin", "deny"))).changed


async def listed(
    auth: Auth, token: str, pattern: str, subject: str = "", size: int = 2
) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    more = ""
    while True:
        request = pb.ListGrantsRequest(pattern=pattern, subject=subject, page_size=size, page_token=more)
        answer = await auth("ListGrants", request, token)
        found += [(g.subject, g.pattern, g.effect, " ".join(g.permissions)) for g in answer.grants]
        more = answer.next_page_token
        if not more:
            return found


async def test_grants_are_listed_by_page_within_what_is_asked_for(auth: Auth) -> None:
    for request in (
        put("user:bob", "project:*", "read"),
        put("user:bob", "project:ab*", "write read"),
        put("user:bob", "project:ab*", "forget", "deny"),
        put("team:api", "project:ab", "read"),
        put("user:a*", "project:a[bc]", "read"),
        put("user:gone", "project:ab", "read"),
    ):
        await auth("PutGrant", request)
    await auth(
        "DeleteGrant", pb.DeleteGrantRequest(subject="user:gone", pattern="project:ab", effect="allow")
    )
    within = [
        ("team:api", "project:ab", "allow", "read"),
        ("user:a*", "project:a[bc]", "allow", "read"),
        ("user:bob", "project:ab*", "allow", "read write"),
        ("user:bob", "project:ab*", "deny", "forget"),
    ]
    scoped = await auth.token("user:sco", ("project:a*", "admin"))
    assert sorted(await listed(auth, scoped, "project:a*")) == within
    assert await listed(auth, scoped, "project:a*", "team:api") == within[:1]
    assert len(await listed(auth, auth.root, "*")) == 5
    assert len(await listed(auth, auth.root, "*", "user:bob", 100)) == 3
    assert await listed(auth, auth.root, "project:a[bc]") == [within[1]]
    wider = pb.ListGrantsRequest(pattern="project:*")
    assert (await auth.refusal("ListGrants", wider, scoped)).reason == "PERMISSION_DENIED"


PATTERN = st.text("ab:*?[", min_size=1, max_size=4)


@given(PATTERN, PATTERN)
def test_what_is_listed_within_a_pattern_is_what_the_rule_of_patterns_says(asked: str, other: str) -> None:
    exact, start = bounds(asked)
    assert ((exact is None or other == exact) and other.startswith(start)) == _wider(asked, other)


async def test_a_group_is_replaced_and_an_issuers_members_stay(auth: Auth) -> None:
    await auth.database.execute(
        "insert into auth.group_members select 'team:api', p, 'issuer' from unnest('{user:sso,user:ann}'::text[]) p"
    )
    rows = len(await auth.audited())

    async def group(*members: str) -> tuple[int, int]:
        answer = await auth("PutGroup", pb.PutGroupRequest(group="team:api", members=members))
        return answer.added, answer.removed

    assert await group("user:ann", "user:bob") == (1, 0)
    assert await group("user:bob", "user:ann") == (0, 0)
    assert await group("user:cid") == (1, 1)
    answer = await auth("ListGroups", pb.ListGroupsRequest())
    assert [(g.group, list(g.members)) for g in answer.groups] == [
        ("team:api", ["user:ann", "user:cid", "user:sso"])
    ]
    assert await group() == (0, 1)
    assert (await auth.audited())[rows:] == ["access.group_changed"] * 3
    cid = await auth.token("user:cid", ("a:x", "read"))
    await auth("PutGrant", put("team:api", "project:*", "read"))
    assert not (await auth.who(cid, "project:x")).permissions
    await group("user:cid")
    assert list((await auth.who(cid, "project:x")).permissions) == ["read"]


async def test_no_way_around_leads_an_admin_to_comply(auth: Auth) -> None:
    """Admin does not imply comply: neither by joining its group, nor by a token of who holds it."""
    plain = await auth.token("user:plain", ("*", "read write forget admin"))
    await auth("PutGrant", put("team:officers", "*", "comply"))
    await auth("PutGroup", pb.PutGroupRequest(group="team:officers", members=["user:off"]))
    officer = await auth("CreateToken", pb.CreateTokenRequest(principal="user:off", kind="agent"))
    joined = pb.Group(group="team:officers", members=["user:off", "user:plain"])
    for name, request in (
        ("PutGroup", pb.PutGroupRequest(group=joined.group, members=joined.members)),
        ("ApplyAccess", pb.ApplyAccessRequest(document=pb.AccessDocument(groups=[joined]))),
        ("CreateToken", pb.CreateTokenRequest(principal="user:off", kind="agent")),
        (
            "CreateToken",
            pb.CreateTokenRequest(principal="user:plain", kind="agent", groups=["team:officers"]),
        ),
        ("RotateToken", pb.RotateTokenRequest(token_id=officer.token_id)),
    ):
        refused = await auth.refusal(name, request, plain)
        assert (refused.reason, refused.metadata["permission"]) == ("PERMISSION_DENIED", "comply"), name
        assert await auth(name, request), name
        if name in ("PutGroup", "ApplyAccess"):
            await auth("ApplyAccess", pb.ApplyAccessRequest(document=pb.AccessDocument(sections=["groups"])))
            await auth("PutGroup", pb.PutGroupRequest(group="team:officers", members=["user:off"]))
    left = pb.PutGroupRequest(group="team:officers", members=[])
    assert (await auth("PutGroup", left, plain)).removed == 2, "the token that names the group counts"


@pytest.mark.parametrize(
    ("words", "effect", "lacking"),
    [("comply read", "allow", "comply"), ("comply read", "deny", "comply"), ("admin read", "deny", "admin")],
)
async def test_who_may_not_set_a_rule_may_not_overwrite_or_end_it(
    auth: Auth, words: str, effect: str, lacking: str
) -> None:
    scoped = await auth.token("user:sco", ("project:a*", "admin"))
    wide = await auth.token("user:wide", ("*", "read admin"))
    await auth("PutGrant", put("user:bob", "project:ab", words, effect))
    delete = pb.DeleteGrantRequest(subject="user:bob", pattern="project:ab", effect=effect)
    less = put("user:bob", "project:ab", "read", effect)
    for name, request in (("PutGrant", less), ("DeleteGrant", delete)):
        for token in (scoped, wide) if lacking == "comply" else (scoped,):
            refused = await auth.refusal(name, request, token)
            assert (refused.reason, refused.metadata["permission"]) == ("PERMISSION_DENIED", lacking), name
    if lacking == "comply":
        document = pb.ApplyAccessRequest(document=pb.AccessDocument(grants=[less.grant]))
        assert (await auth.refusal("ApplyAccess", document, wide)).metadata["permission"] == "comply"
    assert (await auth("PutGrant", less)).changed
    assert (await auth("DeleteGrant", delete, scoped)).deleted


async def test_a_tokens_group_is_seen_ended_and_never_gives_comply(auth: Auth) -> None:
    await auth("PutGrant", put("team:api", "project:*", "read"))
    request = pb.CreateTokenRequest(principal="user:bob", kind="agent", groups=["team:api", "team:b"])

    async def seen() -> dict[str, list[str]]:
        return {g.group: list(g.members) for g in (await auth("ListGroups", pb.ListGroupsRequest())).groups}

    dry = pb.SuspendPrincipalRequest(principal="user:bob", dry_run=True)
    for name, change in (
        ("PutGroup", pb.PutGroupRequest(group="team:api", members=["user:ann"])),
        ("PutGroup", pb.PutGroupRequest(group="team:api")),
        ("ApplyAccess", pb.ApplyAccessRequest(document=pb.AccessDocument(
            groups=[pb.Group(group="team:api", members=["user:ann"])]))),
    ):  # fmt: skip
        bob = (await auth("CreateToken", request)).token
        assert "user:bob" in (await seen())["team:api"]
        assert list((await auth("SuspendPrincipal", dry)).groups) == ["team:api", "team:b"]
        assert list((await auth.who(bob, "project:x")).permissions) == ["read"]
        answer = await auth(name, change)
        assert answer.removed == 1 if name == "PutGroup" and change.members else answer
        assert not (await auth.who(bob, "project:x")).permissions
        assert list((await auth.who(bob)).groups) == ["team:b"]
        assert "user:bob" not in (await seen()).get("team:api", [])
    again = pb.ApplyAccessRequest(document=pb.AccessDocument(
        groups=[pb.Group(group="team:api", members=["user:ann"])]))  # fmt: skip
    bob = (await auth("CreateToken", request)).token
    assert [d.before for d in (await auth("ApplyAccess", again)).differences] == ["user:ann, user:bob"]
    assert not (await auth("ApplyAccess", again)).differences
    bob = (await auth("CreateToken", request)).token
    await auth("PutGrant", put("team:api", "project:*", "read comply"))
    assert list((await auth.who(bob, "project:x")).permissions) == ["read"]
    joins = pb.AccessDocument(groups=[pb.Group(group="team:api", members=["user:bob"])])
    await auth("ApplyAccess", pb.ApplyAccessRequest(document=joins))
    assert list((await auth.who(bob, "project:x")).permissions) == ["read", "comply"]


async def test_groups_and_teams_are_listed_by_page(auth: Auth) -> None:
    for number in range(5):
        await auth("PutGroup", pb.PutGroupRequest(group=f"team:g{number}", members=["user:x", "user:y"]))
        await auth("PutTeam", pb.PutTeamRequest(team_id=str(uuid.UUID(int=number)), name=f"T{number}"))
    names: list[str] = []
    for call, request, field, key in (
        ("ListGroups", pb.ListGroupsRequest(page_size=2), "groups", "group"),
        ("ListTeams", pb.ListTeamsRequest(page_size=2), "teams", "name"),
    ):
        pages = 0
        while pages == 0 or request.page_token:
            answer: Any = await auth(call, request)
            names += [getattr(item, key) for item in getattr(answer, field)]
            request.page_token, pages = answer.next_page_token, pages + 1
        assert pages == 3
    assert names == [f"team:g{n}" for n in range(5)] + [f"T{n}" for n in range(5)]
    assert (await auth.refusal("ListTeams", pb.ListTeamsRequest(page_token="xx"))).fields == ["page_token"]


async def test_teams_members_and_clients(auth: Auth) -> None:
    team = pb.PutTeamRequest(team_id=TEAM, name="Payments")
    member = pb.PutMembershipRequest(team_id=TEAM, principal="user:ann", role="owner", status="active")
    client = pb.PutClientRequest(team_id=TEAM, client_id="acme")
    for name, request in (("PutMembership", member), ("PutClient", client)):
        refused = await auth.refusal(name, request)
        assert (refused.reason, refused.fields) == ("NOT_FOUND", ["team_id"])
    assert (await auth("PutTeam", team)).changed and not (await auth("PutTeam", team)).changed
    assert (await auth("PutMembership", member)).changed and not (await auth("PutMembership", member)).changed
    made = await auth("PutClient", client)
    bank = f"client:{TEAM}:acme"
    assert (made.changed, made.bank) == (True, bank)
    assert not (await auth("PutClient", client)).changed
    assert await auth.database.fetchval("select layer from memory.banks where bank = $1", bank) == "client"
    ann = await auth.token("user:ann", ("a:x", "read"))
    full = ["read", "write", "forget", "admin"]
    assert list((await auth.who(ann, bank)).permissions) == full
    for stop, back in (
        (pb.PutClientRequest(team_id=TEAM, client_id="acme", archived=True), client),
        (pb.PutTeamRequest(team_id=TEAM, name="Payments", archived=True), team),
        (
            pb.PutMembershipRequest(team_id=TEAM, principal="user:ann", role="owner", status="suspended"),
            member,
        ),
    ):
        name = type(stop).__name__.removesuffix("Request")
        assert (await auth(name, stop)).changed
        assert not (await auth.who(ann, bank)).permissions
        assert (await auth(name, back)).changed
        assert list((await auth.who(ann, bank)).permissions) == full
    left = pb.PutMembershipRequest(team_id=TEAM, principal="user:never", role="member", status="removed")
    assert not (await auth("PutMembership", left)).changed
    found = (await auth("ListTeams", pb.ListTeamsRequest())).teams[0]
    assert (found.name, found.archived, [m.principal for m in found.members], found.clients[0].client_id) == (
        "Payments", False, ["user:ann"], "acme",
    )  # fmt: skip
    upper = str(uuid.UUID(int=0xABCDEF)).upper()
    for name, request in (
        ("PutTeam", pb.PutTeamRequest(team_id=upper, name="x")),
        (
            "PutMembership",
            pb.PutMembershipRequest(team_id=upper, principal="user:a", role="member", status="active"),
        ),
        ("PutClient", pb.PutClientRequest(team_id=upper, client_id="x")),
    ):
        assert (await auth.refusal(name, request)).fields == ["team_id"]


async def test_a_leaver_is_told_whole_and_shut_out(auth: Auth) -> None:
    secret = await auth.token("user:bob", ("project:*", "read"))
    session = await auth.session("user:bob")
    await auth("PutGrant", put("user:bob", "project:*", "write"))
    await auth("PutGrant", put("user:bob", "project:x", "write", "deny"))
    await auth("PutGroup", pb.PutGroupRequest(group="team:api", members=["user:bob"]))
    await auth("PutTeam", pb.PutTeamRequest(team_id=TEAM, name="T"))
    await auth(
        "PutMembership",
        pb.PutMembershipRequest(team_id=TEAM, principal="user:bob", role="member", status="active"),
    )
    await auth("PutBank", pb.PutBankRequest(bank="project:x", owner="user:bob"))
    await auth.database.execute("select memory.open_bank('private:user:bob', 'user:bob')")
    for bank in ("project:x", "project:y"):
        await auth.database.execute("select memory.register_device($1, repeat('d', 32), 'user:bob')", bank)
    rows, version = len(await auth.audited()), await auth.version()
    request = pb.SuspendPrincipalRequest(principal="user:bob", revoke_tokens=True, dry_run=True)
    told = await auth("SuspendPrincipal", request)
    assert (told.suspended, len(told.tokens), [g.effect for g in told.grants]) == (
        False,
        2,
        ["allow", "deny"],
    )
    assert (list(told.groups), [m.team_id for m in told.memberships]) == (["team:api"], [TEAM])
    assert (list(told.banks), list(told.devices)) == (["private:user:bob", "project:x"], ["d" * 32])
    assert not any(token.HasField("revoked_at") for token in told.tokens)
    assert (len(await auth.audited()), await auth.version()) == (rows, version)

    request.dry_run, request.revoke_tokens = False, False
    assert (await auth("SuspendPrincipal", request)).suspended
    for token in (secret, session):
        assert (await auth.refusal("WhoAmI", auth_pb2.WhoAmIRequest(), token)).reason == "ACCESS_REVOKED"
    assert (await auth("SuspendPrincipal", request)).suspended
    resume = pb.SuspendPrincipalRequest(principal="user:bob", resume=True)
    assert not (await auth("SuspendPrincipal", resume)).suspended
    assert (await auth.who(secret)).principal == "user:bob"
    request.revoke_tokens = True
    assert all(t.HasField("revoked_at") for t in (await auth("SuspendPrincipal", request)).tokens)
    await auth("SuspendPrincipal", resume)
    for token in (secret, session):
        assert (await auth.refusal("WhoAmI", auth_pb2.WhoAmIRequest(), token)).reason == "CREDENTIAL_REVOKED"
    assert (await auth.audited())[rows:] == ["access.principal_suspended"] * 4


async def test_nobody_shuts_itself_out(auth: Auth) -> None:
    for resume in (False, True):
        request = pb.SuspendPrincipalRequest(principal="user:root", resume=resume)
        refused = await auth.refusal("SuspendPrincipal", request)
        assert (refused.reason, refused.fields) == ("FIELD_INVALID", ["principal"])
    assert not (
        await auth("SuspendPrincipal", pb.SuspendPrincipalRequest(principal="user:root", dry_run=True))
    ).suspended


async def test_two_admins_cannot_shut_each_other_out_at_once(auth: Auth) -> None:
    second = await auth.token("user:second", ("*", "admin"))
    await auth.who(second)
    async with auth.database.transaction():
        await auth.database.execute("select 1 from auth.access_head for update")
        both = [
            asyncio.create_task(auth("SuspendPrincipal", pb.SuspendPrincipalRequest(principal=who), token))
            for who, token in (("user:second", auth.root), ("user:root", second))
        ]
        await asyncio.sleep(0.3)
    answers = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(isinstance(answer, Refused) for answer in answers) == [False, True]


async def test_the_last_admin_stays_one(auth: Auth) -> None:
    await auth("PutGrant", put("team:admins", "*", "read admin"))
    await auth("PutGroup", pb.PutGroupRequest(group="team:admins", members=["user:ann"]))
    ann = await auth.token("user:ann", ("a:x", "read"))
    root = pb.RevokeTokenRequest(token_id=(await auth.who(auth.root)).token_id)
    assert (await auth("RevokeToken", root, ann)).revoked
    gone = pb.DeleteGrantRequest(subject="team:admins", pattern="*", effect="allow")
    for name, request, field in (
        ("PutGroup", pb.PutGroupRequest(group="team:admins", members=["user:bob"]), "members"),
        ("PutGroup", pb.PutGroupRequest(group="team:admins"), "members"),
        ("DeleteGrant", gone, "subject"),
        ("PutGrant", put("team:admins", "*", "read"), "grant"),
        ("ApplyAccess", pb.ApplyAccessRequest(document=pb.AccessDocument(
            groups=[pb.Group(group="team:admins", members=["user:bob"])])), "document"),
    ):  # fmt: skip
        refused = await auth.refusal(name, request, ann)
        assert (refused.reason, refused.fields) == ("FIELD_INVALID", [field]), name
    assert (await auth.who(ann, "space:x")).permissions


async def test_whoever_once_reached_a_client_is_told_that_it_was_taken_away(auth: Auth) -> None:
    bank = f"client:{TEAM}:acme"
    await auth("PutTeam", pb.PutTeamRequest(team_id=TEAM, name="T"))
    await auth("PutClient", pb.PutClientRequest(team_id=TEAM, client_id="acme"))

    async def told(token: str) -> str:
        return (await auth.refusal("ExplainAccess", auth_pb2.ExplainAccessRequest(bank=bank), token)).reason

    tokens = {name: await auth.token(f"user:{name}", ("a:x", "read")) for name in ("gil", "wide", "den", "never")}
    await auth("PutGrant", put("team:crew", f"client:{TEAM}:*", "read"))
    await auth("PutGrant", put("team:none", "project:*", "read"))
    await auth("PutGrant", put("user:wide", "c*", "read"))
    await auth("PutGrant", put("user:den", bank, "read"))
    await auth("PutGroup", pb.PutGroupRequest(group="team:crew", members=["user:gil", "user:x"]))
    await auth("PutGroup", pb.PutGroupRequest(group="team:none", members=["user:never"]))
    for name in ("gil", "wide", "den"):
        assert "read" in (await auth.who(tokens[name], bank)).permissions
    await auth("PutGroup", pb.PutGroupRequest(group="team:crew", members=["user:x"]))
    await auth("PutGroup", pb.PutGroupRequest(group="team:none"))
    await auth("DeleteGrant", pb.DeleteGrantRequest(subject="user:wide", pattern="c*", effect="allow"))
    await auth("PutGrant", put("user:den", "client:*", "read", "deny"))
    await auth("PutGrant", put("user:never", "client:*", "read", "deny"))
    answers = {name: await told(token) for name, token in tokens.items()}
    assert answers == {name: "ACCESS_REVOKED" for name in ("gil", "wide", "den")} | {"never": "NOT_FOUND"}
    assert not (await auth.who(tokens["gil"], bank)).groups
    await auth("PutGroup", pb.PutGroupRequest(group="team:crew", members=["user:gil"]))
    assert "read" in (await auth.who(tokens["gil"], bank)).permissions


async def test_what_is_taken_from_a_grant_or_a_role_on_a_client_is_told_and_what_never_was_is_not(auth: Auth) -> None:
    bank = f"client:{TEAM}:acme"
    await auth("PutTeam", pb.PutTeamRequest(team_id=TEAM, name="T"))
    await auth("PutClient", pb.PutClientRequest(team_id=TEAM, client_id="acme"))

    async def told(token: str) -> tuple[str, str]:
        """What a call that needs admin says, and one that needs comply."""
        state = auth.built.authenticator.access
        await state._poll_once()
        caller = await state.of((await auth.who(token)).token_id)
        answers = []
        for word in ("admin", "comply"):
            with pytest.raises(Refusal) as caught:
                await state.require(caller, word, bank)
            answers.append(caught.value.reason)
        return answers[0], answers[1]

    async def member(name: str, role: str) -> None:
        request = pb.PutMembershipRequest(team_id=TEAM, principal=name, role=role, status="active")
        await auth("PutMembership", request)

    names = ("low", "own", "deny", "never", "group")
    tokens = {name: await auth.token(f"user:{name}", ("a:x", "read")) for name in names}
    await auth("PutGroup", pb.PutGroupRequest(group="team:g", members=["user:group"]))
    for who in ("user:low", "user:deny", "team:g"):
        await auth("PutGrant", put(who, bank, "read write admin"))
    await member("user:own", "admin")
    for who in ("user:low", "team:g"):
        await auth("PutGrant", put(who, bank, "read"))
    # Lowered once more: what went first is not forgotten.
    await auth("PutGrant", put("user:low", bank, "read write"))
    await auth("PutGrant", put("user:low", bank, "read"))
    await member("user:own", "member")
    await auth("PutGrant", put("user:own", bank, "read"))
    await auth("PutGrant", put("user:deny", bank, "admin", "deny"))
    await auth("PutGrant", put("user:never", bank, "read"))
    answers = {name: await told(token) for name, token in tokens.items()}
    lowered = ("ACCESS_REVOKED", "NOT_FOUND")
    assert answers == {name: lowered for name in names} | {"never": ("NOT_FOUND", "NOT_FOUND")}
    await auth("PutGrant", put("user:low", bank, "read write admin"))
    assert list((await auth.who(tokens["low"], bank)).permissions) == ["read", "write", "admin"]
    await auth("DeleteGrant", pb.DeleteGrantRequest(subject="user:low", pattern=bank, effect="allow"))
    assert await told(tokens["low"]) == ("ACCESS_REVOKED", "ACCESS_REVOKED")


async def test_what_a_token_s_own_groups_give_is_told_with_the_group(auth: Auth) -> None:
    await auth("PutGrant", put("team:own", "project:*", "read"))
    await auth("PutGrant", put("team:joined", "project:a*", "write"))
    await auth("PutGroup", pb.PutGroupRequest(group="team:joined", members=["user:ann"]))
    token = await auth.token("user:ann", groups=["team:own", "team:joined"])
    who = await auth.who(token)
    assert (list(who.groups), list(who.token_groups)) == (["team:joined", "team:own"], ["team:own"])
    request = auth_pb2.ExplainAccessRequest(bank="project:abc")
    given = {p.permission: list(p.given_by) for p in (await auth("ExplainAccess", request, token)).permissions}
    assert given["read"] == ["grant team:own project:*, a group of the token itself"]
    assert given["write"] == ["grant team:joined project:a*"]


async def test_whether_anything_is_known_of_a_principal_is_told(auth: Auth) -> None:
    async def known(who: str, **more: bool) -> bool:
        return bool((await auth("SuspendPrincipal", pb.SuspendPrincipalRequest(principal=who, **more))).known)

    assert not await known("user:typo", dry_run=True)
    assert not await known("user:typo")
    assert not await known("user:typo"), "its suspension says nothing of it"
    assert not await known("user:typo", resume=True)
    held = await auth("CreateToken", pb.CreateTokenRequest(principal="user:had", kind="agent"))
    await auth("RevokeToken", pb.RevokeTokenRequest(token_id=held.token_id))
    await auth("PutGrant", put("user:granted", "project:x", "read"))
    await auth("PutGroup", pb.PutGroupRequest(group="team:x", members=["user:joined"]))
    await auth("CreateToken", pb.CreateTokenRequest(principal="user:left", kind="agent"))
    await auth.database.execute("update auth.tokens set created_by = 'user:made' where principal = 'user:left'")
    for who in ("user:had", "user:granted", "user:joined", "user:made"):
        assert await known(who, dry_run=True), who


async def test_off_boarding_shows_the_patterns_that_hit_the_leaver_and_a_slip_is_still_unknown(auth: Auth) -> None:
    for subject in ("user:b*", "user:c*", "user:bob"):
        rule = pb.AccessGrant(subject=subject, pattern="project:*", permissions=["read"], effect="allow")
        await auth("PutGrant", pb.PutGrantRequest(grant=rule))
    for who, subjects, known in (("user:bob", ["user:bob", "user:b*"], True), ("user:bbo", ["user:b*"], False)):
        told = await auth("SuspendPrincipal", pb.SuspendPrincipalRequest(principal=who, dry_run=True))
        assert ([grant.subject for grant in told.grants], told.known) == (subjects, known)


async def test_off_boarding_shows_what_the_leaver_made_or_rotated_for_others(auth: Auth) -> None:
    every = ("*", "read write forget comply admin")
    dave = await auth.session("user:dave")
    await auth("PutGrant", put("user:dave", *every))
    bob, done = [
        (await auth("CreateToken", pb.CreateTokenRequest(principal="user:bob", kind="agent"))).token_id
        for _ in range(2)
    ]

    async def made(principal: str, kind: str) -> Any:
        request = pb.CreateTokenRequest(principal=principal, kind=kind, grants=[
            pb.Grant(pattern="*", permissions=every[1].split())])  # fmt: skip
        return await auth("CreateToken", request, dave)

    alice, eve, gone = [
        await made(who, kind)
        for who, kind in (("user:alice", "agent"), ("user:eve", "person"), ("user:alice", "agent"))
    ]
    own = await made("user:dave", "agent")
    rotated = await auth("RotateToken", pb.RotateTokenRequest(token_id=bob), dave)
    await auth("RevokeToken", pb.RevokeTokenRequest(token_id=gone.token_id))
    # Who signs in with the token that he made renews it in that name.
    as_eve = await auth("StartSession", auth_pb2.StartSessionRequest(person_token=eve.token))
    renewed = await auth("RotateToken", pb.RotateTokenRequest(token_id=eve.token_id), as_eve.session_token)
    request = pb.SuspendPrincipalRequest(principal="user:dave", revoke_tokens=True)
    told = await auth("SuspendPrincipal", request)
    assert [t.token_id for t in told.made] == [renewed.token_id, rotated.token_id, alice.token_id]
    assert own.token_id in [t.token_id for t in told.tokens] and done not in [t.token_id for t in told.made]
    assert (told.made[0].principal, told.made[2].created_by, told.made_left_out) == ("user:eve", "user:dave", 0)
    assert (await auth.who(alice.token)).principal == "user:alice", "it says the truth: they work"
    for token in told.made:
        await auth("RevokeToken", pb.RevokeTokenRequest(token_id=token.token_id))
    assert not (await auth("SuspendPrincipal", request)).made


async def test_what_outlives_a_key_is_changed_by_no_key(auth: Auth) -> None:
    every = ("*", "read write forget comply admin")
    await auth("PutGrant", put("user:ann", *every))
    await auth("PutTeam", pb.PutTeamRequest(team_id=TEAM, name="API"))
    session = await auth.session("user:ann")
    narrow = pb.CreatePersonalKeyRequest(grants=[pb.Grant(pattern="*", permissions=["admin"])])
    keys = [
        (await auth("CreatePersonalKey", request, session)).token
        for request in (narrow, pb.CreatePersonalKeyRequest())
    ]
    pipeline = await auth.token("service:ci", every, kind="service")
    document = pb.AccessDocument(grants=[rule("user:bob", "space:x", "read")])
    suspend = pb.SuspendPrincipalRequest(principal="user:bob")
    changes = (
        ("PutGrant", put("user:bob", "project:x", "admin")),
        ("DeleteGrant", pb.DeleteGrantRequest(subject="user:bob", pattern="project:x", effect="allow")),
        ("PutGroup", pb.PutGroupRequest(group="team:x", members=["user:bob"])),
        ("PutTeam", pb.PutTeamRequest(team_id=TEAM, name="Web")),
        ("PutMembership", pb.PutMembershipRequest(
            team_id=TEAM, principal="user:bob", role="owner", status="active")),
        ("PutClient", pb.PutClientRequest(team_id=TEAM, client_id="acme")),
        ("PutBank", pb.PutBankRequest(bank="project:x", owner="user:bob")),
        ("ApplyAccess", pb.ApplyAccessRequest(document=document)),
        ("SuspendPrincipal", pb.SuspendPrincipalRequest(principal="user:bob", resume=True)),
    )  # fmt: skip
    for key in keys:
        await auth("SuspendPrincipal", suspend, key)  # whom it shuts out, and what it compares, a key may ask for
        await auth("ApplyAccess", pb.ApplyAccessRequest(document=document, dry_run=True), key)
        version = await auth.version()
        for name, request in changes:
            refused = await auth.refusal(name, request, key)
            assert refused.reason == "PERMISSION_DENIED" and "no lasting rights" in refused.message, name
        assert await auth.version() == version
    behalf = ("x-teamlore-on-behalf-of", session)
    assert (await auth.refusal(*changes[0], pipeline, behalf)).reason == "PERMISSION_DENIED"
    for token in (pipeline, session):
        for name, request in changes:
            await auth(name, request, token)


async def test_what_a_leaver_made_for_others_fits_into_the_answer(
    auth: Auth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.auth.access_handlers.MOST_MADE", 2)
    for _ in range(3):
        await auth("CreateToken", pb.CreateTokenRequest(principal="user:bob", kind="agent"))
    dry = pb.SuspendPrincipalRequest(principal="user:root", dry_run=True)
    told = await auth("SuspendPrincipal", dry)
    assert (len(told.made), told.made_left_out) == (2, 1)


async def test_a_pattern_over_groups_is_refused_for_it_would_match_none(auth: Auth) -> None:
    for subject in ("team:ap*", "team:?", "team:[a-c]", "team:*"):
        for effect in ("allow", "deny"):
            refused = await auth.refusal("PutGrant", put(subject, "project:x", "read", effect))
            assert (refused.reason, refused.fields) == ("FIELD_INVALID", ["grant.subject"])
    assert (await auth("PutGrant", put("team:api", "project:x", "read", "deny"))).changed
    # One from before can still be taken away.
    assert not (
        await auth("DeleteGrant", pb.DeleteGrantRequest(subject="team:ap*", pattern="x", effect="deny"))
    ).deleted
