"""What has a stated end goes, once it is past it and not before; what the audit says stays."""

import asyncio
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from teamlore.auth.v1 import access_pb2 as pb
from teamlore.auth.v1 import auth_pb2

from kit.database import Database
from services.auth import sweeping
from services.auth.store import QUERIES, Store
from services.auth.sweeping import Sweep
from services.auth.tests.conftest import Auth
from services.auth.tests.test_rules import TEAM, put
from services.auth.tests.test_sessions import Desk, desk, sign_in

__all__ = ["desk"]
MONTH = 2_592_000.0


async def swept(auth: Auth, days: int = 400, seconds: float = MONTH) -> int:
    """One round of all; counts the groups that ended."""
    database = await Database.connect(auth.url, "auth", QUERIES, size=2)
    try:
        sweep = Sweep(Store(database), seconds, days)
        await sweep.rows()
        return await sweep.groups()
    finally:
        await database.close()


async def aged(auth: Auth, token_id: str, column: str, days: float) -> None:
    await auth.database.execute(
        f"update auth.tokens set {column} = clock_timestamp() - make_interval(secs => $2) where token_id = $1",
        token_id, 86_400 * days,
    )  # fmt: skip


async def ids(auth: Auth) -> set[str]:
    return {row["token_id"] for row in await auth.database.fetch("select token_id from auth.tokens")}


async def test_ended_tokens_go_after_the_retention_and_no_sooner(auth: Auth) -> None:
    async def made(**more: object) -> str:
        request = pb.CreateTokenRequest(
            principal="user:ann", kind="agent", grants=[pb.Grant(pattern="a:*", permissions=["read"])]
        )
        return str((await auth("CreateToken", request)).token_id)

    standing = await ids(auth)
    revoked, ended, young, endless, both = [await made() for _ in range(5)]
    await aged(auth, revoked, "revoked_at", 401)
    await aged(auth, ended, "expires_at", 401)
    await aged(auth, young, "revoked_at", 399)
    # Revoked long ago, and would have gone on for long.
    await aged(auth, both, "revoked_at", 500)
    await aged(auth, both, "expires_at", -500)
    before = len(await auth.audited())
    await swept(auth)
    assert await ids(auth) == {*standing, young, endless}
    assert (await auth.audited())[before:] == [sweeping.SWEPT]
    assert not await auth.database.fetchval("select count(*) from auth.token_grants where token_id = $1", revoked)
    await swept(auth)
    assert (await auth.audited())[before:] == [sweeping.SWEPT], "what changes nothing is not audited"
    assert not (await auth("RevokeToken", pb.RevokeTokenRequest(token_id=young))).revoked
    assert (await auth.refusal("RevokeToken", pb.RevokeTokenRequest(token_id=revoked))).reason == "NOT_FOUND"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "STEP_SECONDS", 0.05)


async def test_the_service_sweeps_by_itself(quick: None, auth: Auth) -> None:
    await auth.database.execute(
        "insert into auth.group_members values ('team:x', 'user:ann', 'issuer', now() - interval '31 days')"
    )
    for _ in range(200):
        if not await auth.database.fetchval("select count(*) from auth.group_members"):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it was never swept")


async def test_a_token_stays_while_another_comes_from_it(auth: Auth, monkeypatch: pytest.MonkeyPatch) -> None:
    request = pb.CreateTokenRequest(principal="user:ann", kind="person")
    person = await auth("CreateToken", request, await auth.present())
    session = await auth("StartSession", auth_pb2.StartSessionRequest(person_token=person.token))
    key = await auth("CreatePersonalKey", pb.CreatePersonalKeyRequest(), session.session_token)
    standing = await ids(auth) - {person.token_id, session.token_id, key.token_id}
    for token_id in (person.token_id, session.token_id):
        await aged(auth, token_id, "expires_at", 401)
    await swept(auth)
    assert await ids(auth) == {*standing, person.token_id, key.token_id}
    assert (await auth.who(key.token)).principal == "user:ann"
    await aged(auth, key.token_id, "revoked_at", 401)
    # One a round: what remains is taken up again at once, and a token goes once nothing comes from it.
    monkeypatch.setattr(sweeping, "AT_ONCE", 1)
    await swept(auth)
    assert await ids(auth) == standing


async def test_old_counts_go_and_young_ones_and_the_audit_stay(auth: Auth) -> None:
    audits = await auth.database.fetchval("select count(*) from compliance.audit_calls")
    for days in (30, 399, 401, 800):
        await auth.database.execute(
            "insert into compliance.decisions values (date_trunc('minute', now()) - make_interval(days => $1), 'feed',"
            " 'm', 'access.denied', $2, '', 'PERMISSION_DENIED', 'b', 1)", days, uuid.UUID(int=0),
        )  # fmt: skip
        await auth.database.execute(
            "insert into memory.quota_use values ('user:ann', (now() at time zone 'utc')::date - $1::int, 5)", days
        )
    await swept(auth)
    today = datetime.now(UTC)
    seen = [r["minute"] for r in await auth.database.fetch("select minute from compliance.decisions where service = 'feed'")]
    assert sorted((today - minute) // timedelta(days=1) for minute in seen) == [30, 399]
    assert await auth.database.fetchval("select count(*) from memory.quota_use") == 2
    assert await auth.database.fetchval("select count(*) from compliance.audit_calls") == audits + 1
    # Whoever is auth's role cannot wipe the last month either.
    await auth.database.execute("select compliance.sweep_decisions(0, 100), memory.sweep_quota_use(-9, 100)")
    assert await auth.database.fetchval("select count(*) from compliance.decisions where service = 'feed'") == 1
    assert await auth.database.fetchval("select count(*) from memory.quota_use") == 1


async def test_an_issuer_s_word_about_groups_ends_and_a_sign_in_renews_it(auth: Auth, desk: Desk) -> None:
    bank = f"client:{TEAM}:acme"
    await auth("PutTeam", pb.PutTeamRequest(team_id=TEAM, name="T"))
    await auth("PutClient", pb.PutClientRequest(team_id=TEAM, client_id="acme"))
    await auth("PutGrant", put("team:web", bank, "read"))
    await auth("PutGroup", pb.PutGroupRequest(group="team:ops", members=["user:alice"]))
    await desk.start(sign_in("team:web"))
    key = await auth.token("user:alice", ("a:x", "read"))
    age = "update auth.group_members set said_at = said_at - make_interval(secs => $1)"
    await auth.database.execute(age, MONTH - 60)
    assert await swept(auth) == 0
    await desk.start(sign_in("team:web"))
    await auth.database.execute(age, 120.0)
    assert await swept(auth) == 0, "the sign-in named it anew"
    assert list((await auth.who(key, bank)).groups) == ["team:ops", "team:web"]
    await auth.database.execute(age, MONTH)
    before, version = len(await auth.audited()), await auth.version()
    assert await swept(auth) == 1
    assert await auth.version() == version + 1
    assert (await auth.audited())[before:] == [sweeping.GROUPS_ENDED]
    assert list((await auth.who(key)).groups) == ["team:ops"], "what a call said does not age"
    refused = await auth.refusal("ExplainAccess", auth_pb2.ExplainAccessRequest(bank=bank), key)
    assert refused.reason == "ACCESS_REVOKED"
