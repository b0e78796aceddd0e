"""Person sessions on a real database: what starts one, what ends it, and what an ID token leaves behind."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit import audit
from kit.access import Caller, Grant
from kit.access_state import AccessState
from kit.database import Database
from kit.errors import Refusal
from services.auth import sessions, tokens
from services.auth.access_store import AccessStore
from services.auth.oidc import SignIn
from services.auth.sessions import PersonToken
from services.auth.store import QUERIES, Store
from services.auth.usage import LastUsed

ALICE = "user:alice"


class Desk:
    """A store, its database and a superuser's look at it."""

    def __init__(self, database: Database, eye: "asyncpg.Connection[asyncpg.Record]") -> None:
        self.database, self.store, self.eye = database, Store(database), eye

    async def token(
        self, kind: str = "person", principal: str = ALICE, grants: tuple[Grant, ...] = (), **more: Any
    ) -> tokens.NewToken:
        made = tokens.make_token(principal, kind, grants, more.pop("expires_at", None))
        with audit.calling(audit.CallContext("test", "user:admin", "t")):
            await self.store.add_token(made, "user:admin")
        for column, value in more.items():
            await self.eye.execute(
                f"update auth.tokens set {column} = $1 where token_id = $2", value, made.token_id
            )
        return made

    async def start(self, origin: SignIn | PersonToken) -> tuple[sessions.NewSession, datetime]:
        session = sessions.new_session()
        with audit.calling(audit.CallContext("auth.session_started", origin.principal, session.token_id)):
            return session, await self.store.start_session(session, origin)

    async def from_token(self, token: tokens.NewToken) -> tuple[sessions.NewSession, datetime]:
        return await self.start(sessions.check(await self.store.person_token(token.secret_hash)))

    async def refused(self, what: Any) -> str:
        with pytest.raises(Refusal) as found:
            await what
        return found.value.reason

    async def version(self) -> int:
        return int(await self.eye.fetchval("select version from auth.access_head"))


@pytest.fixture
async def desk(database_url: str) -> AsyncIterator[Desk]:
    database = await Database.connect(database_url, "auth", QUERIES, size=4)
    eye = await asyncpg.connect(database_url)
    yield Desk(database, eye)
    await eye.close()
    await database.close()


def sign_in(*groups: str, seconds: float = 3600, principal: str = ALICE) -> SignIn:
    return SignIn(principal, groups, time.time() + seconds, os.urandom(32))


def left(ends: datetime) -> float:
    return (ends - datetime.now(timezone.utc)).total_seconds()


async def test_a_session_is_a_persons_and_lasts_15_minutes(desk: Desk) -> None:
    session, ends = await desk.start(sign_in())
    assert 890 < left(ends) <= 900
    row = await desk.eye.fetchrow("select * from auth.tokens where token_id = $1", session.token_id)
    assert row is not None
    assert (row["principal"], row["kind"], row["personal"], row["session"]) == (ALICE, "person", True, True)
    audits = await desk.eye.fetch("select token_id, objects from compliance.audit_calls")
    assert [(one["token_id"], one["objects"]) for one in audits] == [(session.token_id, 1)]
    access = AccessState(desk.database)
    await access.start()
    assert (await access.of(session.token_id)).person_present
    await access.stop()


async def test_it_ends_with_what_it_was_started_from(desk: Desk) -> None:
    _, ends = await desk.start(sign_in(seconds=60))
    assert 50 < left(ends) <= 60
    soon = datetime.now(timezone.utc) + timedelta(seconds=100)
    _, ends = await desk.from_token(await desk.token(expires_at=soon))
    assert ends == soon


async def test_an_id_token_starts_one_session(desk: Desk) -> None:
    once = sign_in()
    answers = await asyncio.gather(*(desk.start(once) for _ in range(4)), return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in answers) == ["Refusal", "Refusal", "Refusal", "tuple"]
    assert await desk.eye.fetchval("select count(*) from auth.tokens") == 1
    assert await desk.refused(desk.start(once)) == "CREDENTIAL_INVALID"


async def test_used_id_tokens_are_forgotten_an_hour_after_their_end(desk: Desk) -> None:
    for age in (7200, 1800):
        await desk.eye.execute(
            "insert into auth.used_id_tokens values ($1, clock_timestamp() - make_interval(secs => $2))",
            os.urandom(32), float(age),
        )  # fmt: skip
    await desk.start(sign_in())
    assert await desk.eye.fetchval("select count(*) from auth.used_id_tokens") == 2


async def test_the_issuers_groups_replace_its_earlier_ones_and_no_others(desk: Desk) -> None:
    await desk.eye.execute("insert into auth.group_members values ('team:ops', $1, 'call')", ALICE)
    await desk.eye.execute("insert into auth.group_members values ('team:api', 'user:bob', 'issuer')")
    before = await desk.version()
    await desk.start(sign_in("team:api", "team:web"))
    assert await desk.version() == before + 1
    await desk.start(sign_in("team:web", "team:api"))
    assert await desk.version() == before + 1, "groups that did not change concern nobody"
    await desk.start(sign_in("team:web"))
    assert await desk.version() == before + 2
    rows = await desk.eye.fetch(
        "select group_name, source from auth.group_members where principal = $1 order by 1", ALICE
    )
    assert [tuple(row) for row in rows] == [("team:ops", "call"), ("team:web", "issuer")]
    await desk.start(sign_in())
    assert await desk.eye.fetchval("select count(*) from auth.group_members") == 2
    await desk.from_token(await desk.token())
    assert await desk.eye.fetchval("select count(*) from auth.group_members") == 2


async def test_what_is_no_persons_own_token_starts_none(desk: Desk) -> None:
    assert await desk.refused(desk.from_token(await desk.token("agent"))) == "CREDENTIAL_INVALID"
    assert await desk.refused(desk.from_token(await desk.token("service"))) == "CREDENTIAL_INVALID"
    assert await desk.refused(desk.from_token(await desk.token(principal="agent:x"))) == "CREDENTIAL_INVALID"
    assert (
        await desk.refused(desk.from_token(tokens.make_token(ALICE, "person", (), None)))
        == "CREDENTIAL_INVALID"
    )
    session, _ = await desk.start(sign_in())
    again = tokens.NewToken(session.token_id, session.secret, session.secret_hash, ALICE, "person", (), None)
    assert await desk.refused(desk.from_token(again)) == "CREDENTIAL_INVALID"
    ended = datetime.now(timezone.utc) - timedelta(seconds=1)
    assert await desk.refused(desk.from_token(await desk.token(expires_at=ended))) == "CREDENTIAL_EXPIRED"
    assert await desk.refused(desk.from_token(await desk.token(revoked_at=ended))) == "CREDENTIAL_REVOKED"


async def test_a_suspended_principal_starts_none_and_keeps_its_id_token(desk: Desk) -> None:
    token, once = await desk.token(), sign_in("team:api")
    await desk.eye.execute("insert into auth.suspensions values ($1, 'user:admin')", ALICE)
    assert await desk.refused(desk.from_token(token)) == "ACCESS_REVOKED"
    assert await desk.refused(desk.start(once)) == "ACCESS_REVOKED"
    assert await desk.eye.fetchval("select count(*) from auth.group_members") == 0
    await desk.eye.execute("delete from auth.suspensions")
    await desk.start(once)


async def test_a_narrowed_key_starts_a_session_as_narrow(desk: Desk) -> None:
    narrow = await desk.token(
        grants=(Grant("project:x", frozenset(("read",))),), personal=True, groups=["team:api"]
    )
    session, _ = await desk.from_token(narrow)
    access = AccessState(desk.database)
    await access.start()
    caller = await access.of(session.token_id)
    await access.stop()
    assert caller.ceiling == (Grant("project:x", frozenset(("read",))),)
    assert caller.groups == ("team:api",)


async def revoke(desk: Desk, token_id: str) -> None:
    """As any statement might."""
    async with desk.database.connection() as connection:
        await connection.execute("update auth.tokens set revoked_at = now() where token_id = $1", token_id)
        await connection.execute("select auth.bump()")


async def test_a_session_has_what_an_admin_made_token_adds(desk: Desk) -> None:
    added = Grant("project:*", frozenset(("admin",)))
    session, _ = await desk.from_token(await desk.token(grants=(added,)))
    access = AccessState(desk.database)
    await access.start()
    caller = await access.of(session.token_id)
    await access.stop()
    assert (caller.grants, caller.ceiling) == ((added,), None)


async def test_revoking_a_token_ends_the_sessions_it_started(desk: Desk) -> None:
    token = await desk.token()
    session, _ = await desk.from_token(token)
    other, _ = await desk.start(sign_in())
    await revoke(desk, token.token_id)
    access = AccessState(desk.database)
    await access.start()
    assert await desk.refused(access.of(session.token_id)) == "CREDENTIAL_REVOKED"
    await access.of(other.token_id)
    await access.stop()


async def test_a_revoke_between_look_up_and_start_wins(desk: Desk) -> None:
    token = await desk.token()
    seen = sessions.check(await desk.store.person_token(token.secret_hash))
    await revoke(desk, token.token_id)
    assert await desk.refused(desk.start(seen)) == "CREDENTIAL_REVOKED"
    assert seen == replace(seen, revoked=False)


async def test_a_session_waits_for_an_off_boarding_and_sees_it(desk: Desk) -> None:
    token = await desk.token()
    seen = sessions.check(await desk.store.person_token(token.secret_hash))
    for origin in (seen, sign_in()):
        leaving = desk.eye.transaction()
        await leaving.start()
        await desk.eye.execute("select 1 from auth.access_head for update")
        await desk.eye.execute("insert into auth.suspensions values ($1, 'user:admin')", ALICE)
        starting = asyncio.create_task(desk.start(origin))
        await asyncio.sleep(0.2)
        assert not starting.done(), "it would be there, and unseen by who off-boards"
        await leaving.commit()
        assert await desk.refused(starting) == "ACCESS_REVOKED"
        await desk.eye.execute("delete from auth.suspensions")


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(("sign in", "token", "mint", "key")), min_size=1, max_size=4), st.integers(0, 4))
async def test_nothing_of_an_off_boarded_principal_outlives_it(
    desk: Desk, starts: list[str], leaves_after: int
) -> None:
    """However sign-ins, keys and an off-boarding overlap: after a later `resume` nothing made before works."""
    who = f"user:{os.urandom(4).hex()}"
    everything = (Grant("*", frozenset(("admin",))),)
    root = await desk.token(principal="user:admin", grants=everything)
    admin = Caller("user:admin", "person", root.token_id, everything)
    person = await desk.token(principal=who)
    origin = sessions.check(await desk.store.person_token(person.secret_hash))
    early, _ = await desk.start(origin)

    async def make(how: str) -> None:
        with contextlib.suppress(Refusal), audit.calling(audit.CallContext("test", who, "t")):
            if how == "sign in":
                await desk.start(sign_in(principal=who))
            elif how == "token":
                await desk.start(origin)
            else:
                made = replace(tokens.make_token(who, "agent", (), None), personal=how == "key")
                await desk.store.add_token(made, who, early.token_id)

    async def leave() -> None:
        for _ in range(leaves_after):
            await asyncio.sleep(0)
        with audit.calling(audit.CallContext("test", "user:admin", "t")):
            await AccessStore(desk.database).suspend(who, False, True, False, admin)

    await asyncio.gather(leave(), *(make(how) for how in starts))
    left_over = "select count(*) from auth.tokens where principal = $1 and revoked_at is null"
    assert await desk.eye.fetchval(left_over, who) == 0


async def test_the_last_use_is_written_once_a_minute(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    token = await desk.token()
    written = []

    async def write(ids: Any) -> None:
        written.append(list(ids))
        await desk.store.touch_tokens(ids)

    async def last() -> Any:
        return await desk.eye.fetchval("select last_used_at from auth.tokens")

    one, two = LastUsed(write), LastUsed(write)
    assert await last() is None
    for _ in range(3):
        one.note(token.token_id)
    await one.flush()
    first = await last()
    assert first is not None
    one.note(token.token_id)
    await one.flush()
    two.note(token.token_id)
    await two.flush()
    assert written == [[token.token_id]] * 2, "a process asks once a minute"
    assert await last() == first, "and the row changes once a minute"
    await desk.eye.execute("update auth.tokens set last_used_at = last_used_at - interval '61 s'")
    three = LastUsed(write)
    three.note(token.token_id)
    transaction = desk.eye.transaction()
    await transaction.start()
    await desk.eye.execute("select 1 from auth.tokens for update")
    await asyncio.wait_for(three.flush(), 2)
    await transaction.rollback()
    await three.stop()


async def test_a_database_that_is_away_fails_no_use() -> None:
    async def write(ids: Any) -> None:
        raise ConnectionResetError

    used = LastUsed(write)
    used.note("x")
    await used.stop()
