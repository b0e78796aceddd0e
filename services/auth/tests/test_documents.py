"""ApplyAccess: what stands becomes what the document says, once, or only the difference is told."""

import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from teamlore.auth.v1 import access_pb2 as pb

from services.auth.tests.conftest import Auth, Refused
from services.auth.tests.test_rules import TEAM, put, rule

OTHER = str(uuid.UUID(int=8))


def team(
    team_id: str, *members: tuple[str, str], clients: dict[str, bool] | None = None, **more: Any
) -> pb.Team:
    return pb.Team(
        team_id=team_id,
        name=more.pop("name", "T"),
        members=[pb.Membership(principal=p, role=r, status="active") for p, r in members],
        clients=[pb.TeamClient(client_id=c, archived=a) for c, a in (clients or {}).items()],
        **more,
    )


def whole() -> pb.AccessDocument:
    return pb.AccessDocument(
        default_access="owner_only",
        groups=[pb.Group(group="team:web", members=["user:cid"]), pb.Group(group="team:api", members=["user:bob", "user:ann"])],
        grants=[
            rule("team:web", "project:web*", "read"),
            rule("team:api", "project:api*", "write read"),
            rule("user:bob", "project:api-x", "write", "deny"),
        ],
        teams=[team(TEAM, ("user:bob", "member"), ("user:ann", "owner"), clients={"acme": False})],
        banks=[
            pb.BankDocument(bank=f"client:{TEAM}:acme", name="Acme"),
            pb.BankDocument(bank="project:api", owner="user:ann",
                            policy=pb.Policy(min_lane="entry", barrier="redact", pii="reject")),
        ],
    )  # fmt: skip


async def apply(auth: Auth, document: pb.AccessDocument, dry_run: bool = False) -> list[tuple[str, ...]]:
    answer = await auth("ApplyAccess", pb.ApplyAccessRequest(document=document, dry_run=dry_run))
    return [(d.kind, d.action, d.name, d.before, d.after) for d in answer.differences]


async def test_a_document_is_told_then_applied_then_stands(auth: Auth) -> None:
    rows, version = len(await auth.audited()), await auth.version()
    told = await apply(auth, whole(), dry_run=True)
    assert told == [
        ("default", "change", "default_access", "deny", "owner_only"),
        ("group", "add", "team:api", "", "user:ann, user:bob"),
        ("group", "add", "team:web", "", "user:cid"),
        ("grant", "add", "team:api project:api*", "", "allow read, write"),
        ("grant", "add", "team:web project:web*", "", "allow read"),
        ("grant", "add", "user:bob project:api-x", "", "deny write"),
        ("team", "add", TEAM, "", "T, active"),
        ("membership", "add", f"user:ann in {TEAM}", "", "owner, active"),
        ("membership", "add", f"user:bob in {TEAM}", "", "member, active"),
        ("client", "add", f"client:{TEAM}:acme", "", "active"),
        ("bank", "add", f"client:{TEAM}:acme", "", "name Acme"),
        ("bank", "add", "project:api", "", "owner user:ann"),
        ("policy", "change", "project:api",
         "near_duplicates skip, near_duplicate_threshold 0.95, classification internal, team_memory yes, min_lane synced, "
         "publish_requires_review no, pii off",
         "barrier redact, near_duplicates skip, near_duplicate_threshold 0.95, classification internal, team_memory yes, "
         "min_lane entry, publish_requires_review no, pii reject"),
    ]  # fmt: skip
    assert (len(await auth.audited()), await auth.version()) == (rows, version)
    assert not await auth.database.fetchval("select count(*) from memory.banks")
    assert await apply(auth, whole()) == told
    assert (await auth.audited())[rows:] == ["access.applied"]
    assert await auth.version() == version + 1
    assert await apply(auth, whole()) == await apply(auth, whole(), dry_run=True) == []
    assert (await auth.audited())[rows:] == ["access.applied"]
    bob = await auth.token("user:bob", ("a:x", "read"))
    assert list((await auth.who(bob, "project:api-x")).permissions) == ["read"]
    bank = (await auth("GetBank", pb.GetBankRequest(bank="project:api"))).bank
    assert (bank.owner, bank.policy.min_lane, bank.policy.barrier) == ("user:ann", "entry", "redact")


async def test_what_the_document_no_longer_names(auth: Auth) -> None:
    await auth("PutGroup", pb.PutGroupRequest(group="team:hand", members=["user:eve"]))
    await auth("PutGrant", put("user:eve", "project:hand", "read"))
    await apply(auth, whole())
    less = pb.AccessDocument(teams=[team(TEAM, ("user:ann", "admin"))], sections=["groups", "grants"])
    assert [line[:3] for line in await apply(auth, less)] == [
        ("group", "remove", "team:api"),
        ("group", "remove", "team:web"),
        ("grant", "remove", "team:api project:api*"),
        ("grant", "remove", "team:web project:web*"),
        ("grant", "remove", "user:bob project:api-x"),
        ("membership", "change", f"user:ann in {TEAM}"),
        ("membership", "remove", f"user:bob in {TEAM}"),
    ]
    groups = (await auth("ListGroups", pb.ListGroupsRequest())).groups
    assert [group.group for group in groups] == ["team:hand"]
    grants = (await auth("ListGrants", pb.ListGrantsRequest(pattern="*"))).grants
    assert [grant.subject for grant in grants] == ["user:eve"]
    found = (await auth("ListTeams", pb.ListTeamsRequest())).teams[0]
    assert [(m.principal, m.role, m.status) for m in found.members] == [
        ("user:ann", "admin", "active"), ("user:bob", "member", "removed"),
    ]  # fmt: skip
    assert [client.client_id for client in found.clients] == ["acme"]
    assert await auth.database.fetchval("select count(*) from memory.banks") == 2
    assert await auth.database.fetchval("select default_access from auth.access_head") == "owner_only"
    taken = pb.AccessDocument(
        groups=[pb.Group(group="team:hand", members=["user:eve"])],
        grants=[rule("user:eve", "project:hand", "read")],
    )
    assert [line[1:] for line in await apply(auth, taken)] == [
        ("change", "team:hand", "user:eve (by a call)", "user:eve"),
        ("change", "user:eve project:hand", "allow read (by a call)", "allow read"),
    ]
    nothing = pb.AccessDocument(sections=["grants", "groups"])
    assert [line[1] for line in await apply(auth, nothing)] == ["remove", "remove"]


async def test_a_section_that_is_absent_leaves_alone_and_an_empty_one_removes(auth: Auth) -> None:
    await apply(auth, whole())
    none = pb.ApplyAccessRequest(document=pb.AccessDocument(default_access="open"), dry_run=True)
    told = await auth("ApplyAccess", none)
    assert [d.kind for d in told.differences] == ["default"]
    assert (told.groups_left_alone, told.grants_left_alone) == (2, 3)
    one = pb.ApplyAccessRequest(document=pb.AccessDocument(sections=["groups"]), dry_run=True)
    told = await auth("ApplyAccess", one)
    assert [(d.kind, d.action) for d in told.differences] == [("group", "remove")] * 2
    assert (told.groups_left_alone, told.grants_left_alone) == (0, 3)


async def test_no_call_changes_what_a_document_manages(auth: Auth) -> None:
    await apply(auth, whole())
    rows, version = len(await auth.audited()), await auth.version()
    gone = pb.DeleteGrantRequest(subject="user:bob", pattern="project:api-x", effect="deny")
    for name, request in (
        ("PutGrant", put("team:web", "project:web*", "read write")),
        ("DeleteGrant", gone),
        ("PutGroup", pb.PutGroupRequest(group="team:web", members=["user:cid", "user:eve"])),
        ("PutGroup", pb.PutGroupRequest(group="team:web")),
    ):
        refused = await auth.refusal(name, request)
        assert (refused.reason, refused.code) == ("ACCESS_MANAGED", "FAILED_PRECONDITION"), name
        assert "access.yaml" in refused.message
    # The same again is no change, and a deny beside it is in force at once.
    assert not (await auth("PutGrant", put("team:web", "project:web*", "read"))).changed
    assert (await auth("PutGroup", pb.PutGroupRequest(group="team:web", members=["user:cid"]))).added == 0
    assert (len(await auth.audited()), await auth.version()) == (rows, version)
    assert (await auth("PutGrant", put("team:web", "project:web*", "read", "deny"))).changed
    assert await apply(auth, whole(), dry_run=True) == []
    assert {line[1] for line in await apply(auth, pb.AccessDocument(sections=["groups", "grants"]))} == {"remove"}
    assert await standing(auth, "file") == (set(), set())


def broken() -> list[tuple[pb.AccessDocument, list[str]]]:
    good = rule("user:a", "project:a", "read")
    return [
        (pb.AccessDocument(grants=[good, rule("user:a", "bad bank", "read")]), ["document.grants[1].pattern"]),
        (pb.AccessDocument(grants=[good, good]), ["document.grants[1]"]),
        (pb.AccessDocument(grants=[good, rule("user:root", "project:b", "admin", "deny")]), ["document.grants[1]"]),
        (pb.AccessDocument(groups=[pb.Group(group="team:a"), pb.Group(group="team:a")]), ["document.groups[1]"]),
        (pb.AccessDocument(groups=[pb.Group(group="team:a", members=["nobody"])]), ["document.groups[0].members[0]"]),
        (pb.AccessDocument(teams=[team(TEAM), team(TEAM)]), ["document.teams[1]"]),
        (pb.AccessDocument(teams=[team(TEAM, name="")]), ["document.teams[0].name"]),
        (pb.AccessDocument(teams=[team("ABCDEF00-0000-0000-0000-000000000000")]), ["document.teams[0].team_id"]),
        (
            pb.AccessDocument(teams=[team(TEAM, ("user:a", "owner"), ("user:a", "member"))]),
            ["document.teams[0].members[1]"],
        ),
        (
            pb.AccessDocument(teams=[pb.Team(team_id=TEAM, name="T", members=[
                pb.Membership(team_id=OTHER, principal="user:a", role="owner", status="active")])]),
            ["document.teams[0].members[0].team_id"],
        ),
        (
            pb.AccessDocument(teams=[pb.Team(team_id=TEAM, name="T", clients=[pb.TeamClient(client_id="a")] * 2)]),
            ["document.teams[0].clients[1]"],
        ),
        (
            pb.AccessDocument(banks=[pb.BankDocument(bank=b) for b in ("project:a", "team:x", "private:user:b", "project:a")]),
            ["document.banks[3]", "document.banks[1].bank", "document.banks[2].bank"],
        ),
        (pb.AccessDocument(banks=[pb.BankDocument(bank=f"client:{TEAM}:x")]), ["document.banks[0].bank"]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("document", "fields"), broken(), ids=lambda value: str(value)[:40] if isinstance(value, list) else ""
)
@pytest.mark.parametrize("dry_run", [False, True])
async def test_one_wrong_line_refuses_the_whole(
    auth: Auth, document: pb.AccessDocument, fields: list[str], dry_run: bool
) -> None:
    document = pb.AccessDocument.FromString(document.SerializeToString())
    document.groups.append(pb.Group(group="team:zzz", members=["user:a"]))
    refused = await auth.refusal("ApplyAccess", pb.ApplyAccessRequest(document=document, dry_run=dry_run))
    assert refused.reason == ("NOT_FOUND" if "banks[0]" in fields[0] else "FIELD_INVALID")
    assert refused.fields == fields
    assert not (await auth("ListGroups", pb.ListGroupsRequest())).groups


async def test_a_document_gives_comply_by_who_holds_it_alone(auth: Auth) -> None:
    plain = await auth.token("user:plain", ("*", "read write forget admin"))
    document = pb.AccessDocument(grants=[rule("user:a", "project:a", "comply")])
    request = pb.ApplyAccessRequest(document=document)
    refused = await auth.refusal("ApplyAccess", request, plain)
    assert (refused.reason, refused.metadata) == (
        "PERMISSION_DENIED", {"permission": "comply", "field": "document.grants[0]"},
    )  # fmt: skip
    assert (await auth("ApplyAccess", request)).differences


GROUP, USER = (
    st.sampled_from(["team:a", "team:b", "team:c"]),
    st.sampled_from(["user:a", "user:b", "agent:c"]),
)
PERSON = st.sampled_from(["user:a", "user:b", "user:c"])
WORDS = st.lists(st.sampled_from(["read", "write", "forget", "comply", "admin"]), min_size=1, unique=True)
RULES = st.builds(
    lambda s, p, w, e: rule(s, p, " ".join(w), e),
    GROUP | USER, st.sampled_from(["project:*", "project:a", "client:*"]), WORDS, st.sampled_from(["allow", "deny"]),
)  # fmt: skip
GROUPS = st.builds(lambda g, m: pb.Group(group=g, members=m), GROUP, st.lists(USER, unique=True))
MEMBERS = st.builds(
    lambda p, r, s: pb.Membership(principal=p, role=r, status=s),
    PERSON, st.sampled_from(["owner", "admin", "member"]), st.sampled_from(["active", "suspended", "removed"]),
)  # fmt: skip
CLIENTS = st.builds(
    lambda c, a: pb.TeamClient(client_id=c, archived=a), st.sampled_from("xyz"), st.booleans()
)
TEAMS = st.builds(
    lambda t, n, a, m, c: pb.Team(team_id=t, name=n, archived=a, members=m, clients=c),
    st.sampled_from([TEAM, OTHER]), st.sampled_from(["T", "U"]), st.booleans(),
    st.lists(MEMBERS, max_size=3, unique_by=lambda m: m.principal),
    st.lists(CLIENTS, max_size=3, unique_by=lambda c: c.client_id),
)  # fmt: skip
POLICIES = st.builds(
    lambda b, t, m, lane: pb.Policy(barrier=b, near_duplicate_threshold=t, team_memory=m, min_lane=lane),
    st.none() | st.sampled_from(["off", "redact"]), st.none() | st.floats(0.5, 1, width=32),
    st.none() | st.booleans(), st.none() | st.sampled_from(["synced", "entry"]),
)  # fmt: skip
BANKS = st.builds(
    lambda b, n, o, p: pb.BankDocument(bank=b, name=n, owner=o, policy=p),
    st.sampled_from(["project:a", "space:b"]), st.sampled_from(["", "N"]), st.just("") | USER, st.none() | POLICIES,
)  # fmt: skip
DOCUMENTS = st.builds(
    lambda d, g, r, t, b, s: pb.AccessDocument(default_access=d, groups=g, grants=r, teams=t, banks=b, sections=s),
    st.none() | st.sampled_from(["deny", "owner_only", "open"]),
    st.lists(GROUPS, max_size=3, unique_by=lambda g: g.group),
    st.lists(RULES, max_size=4, unique_by=lambda r: (r.subject, r.pattern, r.effect)),
    st.lists(TEAMS, max_size=2, unique_by=lambda t: t.team_id),
    st.lists(BANKS, max_size=2, unique_by=lambda b: b.bank),
    st.lists(st.sampled_from(["groups", "grants"]), unique=True),
)  # fmt: skip
HAND = st.lists(st.one_of(
    st.builds(lambda r: ("PutGrant", pb.PutGrantRequest(grant=r)), RULES),
    st.builds(lambda g: ("PutGroup", pb.PutGroupRequest(group=g.group, members=g.members)), GROUPS),
), max_size=4)  # fmt: skip


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(HAND, DOCUMENTS, HAND, DOCUMENTS)
async def test_whatever_stood_the_document_stands_and_stands_still(
    auth: Auth, first: Any, earlier: pb.AccessDocument, then: Any, document: pb.AccessDocument
) -> None:
    # Whatever an example before left to documents.
    await apply(auth, pb.AccessDocument(sections=["groups", "grants"]))
    for name, request in first:
        await auth(name, request)
    await apply(auth, earlier)
    managed = await standing(auth, "file")
    for name, request in then:
        try:
            await auth(name, request)
        except Refused as refused:
            assert refused.reason == "ACCESS_MANAGED", name
    assert await standing(auth, "file") == managed, "no call changes or detaches what a document manages"
    told = await apply(auth, document, dry_run=True)
    hand_groups, hand_rules = await standing(auth, "call")
    assert await apply(auth, document) == told
    rows = len(await auth.audited())
    assert await apply(auth, document) == []
    assert len(await auth.audited()) == rows
    groups, rules = await standing(auth, "file")
    says = {*document.sections, *(["groups"] if document.groups else []), *(["grants"] if document.grants else [])}
    named_groups = {(g.group, m) for g in document.groups for m in g.members}
    named_rules = {(r.subject, r.pattern, r.effect, frozenset(r.permissions)) for r in document.grants}
    assert groups == (named_groups if "groups" in says else managed[0])
    assert rules == (named_rules if "grants" in says else managed[1])
    # What calls made and the document does not name is as it was; what it names is the document's now.
    kept_groups, kept_rules = await standing(auth, "call")
    assert kept_groups == {row for row in hand_groups if row[0] not in {g.group for g in document.groups}}
    named = {(r.subject, r.pattern, r.effect) for r in document.grants}
    assert kept_rules == {row for row in hand_rules if row[:3] not in named}
    teams = {t.team_id: t for t in (await auth("ListTeams", pb.ListTeamsRequest())).teams}
    for wanted in document.teams:
        found = teams[wanted.team_id]
        assert (found.name, found.archived) == (wanted.name, wanted.archived)
        now = {m.principal: (m.role, m.status) for m in found.members if m.status != "removed"}
        assert now == {m.principal: (m.role, m.status) for m in wanted.members if m.status != "removed"}
        clients = {c.client_id: c.archived for c in found.clients}
        assert clients.items() >= {c.client_id: c.archived for c in wanted.clients}.items()
    for bank in document.banks:
        there = (await auth("GetBank", pb.GetBankRequest(bank=bank.bank))).bank
        assert bank.name in ("", there.name) and bank.owner in ("", there.owner)
        both = pb.Policy()
        both.CopyFrom(there.policy)
        both.MergeFrom(bank.policy)
        assert both == there.policy
    if document.HasField("default_access"):
        default = await auth.database.fetchval("select default_access from auth.access_head")
        assert default == document.default_access


async def standing(auth: Auth, source: str) -> tuple[set[Any], set[Any]]:
    groups = await auth.database.fetch(
        "select group_name, principal from auth.group_members where source = $1", source
    )
    rules = await auth.database.fetch(
        "select * from auth.access_grants where source = $1 and revoked_at is null", source
    )
    return (
        {tuple(row) for row in groups},
        {(r["subject"], r["pattern"], r["effect"], frozenset(r["permissions"])) for r in rules},
    )
