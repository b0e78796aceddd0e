"""Decisions of access: counted, written in few statements, and holding up nobody where the database is away."""

import asyncio
from typing import Any

import asyncpg
import pytest
from teamlore.auth.v1 import auth_pb2

from kit import decisions
from kit.access import Caller
from kit.database import Database
from kit.decisions import Decisions
from kit.tests.served import HEAD, QUERIES, Served, refused


async def test_a_denial_is_written_before_it_is_answered(served: Served) -> None:
    for _ in range(2):
        assert (await refused(served.head("eve", "project:other")))[0] == "PERMISSION_DENIED"
    assert await served.counted("access.denied") == {
        ("GetHead", "user:eve", "t-eve", "PERMISSION_DENIED", "project:other", 2)
    }
    await refused(served.head(""))
    await refused(served.auth.ExchangeToken(auth_pb2.ExchangeTokenRequest(token="tlk_guess")))
    await refused(served.head("eve", "project:serve-gone"))
    stream = served.watch("eve", "project:serve-revoked")
    await stream.read()
    await refused(stream.read())
    assert await served.counted("access.denied") == {
        ("GetHead", "user:eve", "t-eve", "PERMISSION_DENIED", "project:other", 2),
        ("GetHead", "", "", "CREDENTIAL_MISSING", "", 1),
        ("ExchangeToken", "", "", "CREDENTIAL_INVALID", "", 1),
        ("GetHead", "user:eve", "t-eve", "ACCESS_REVOKED", "project:serve-gone", 1),
        ("WatchChanges", "user:eve", "t-eve", "CREDENTIAL_REVOKED", "project:serve-revoked", 1),
    }
    # What a handler does not find is no decision; a malformed bank is told to those who may something.
    await refused(served.head("eve", "project:serve-nowhere"))
    await refused(served.head("eve", "no bank at all"))
    assert len(await served.counted("access.denied")) == 5


async def test_a_private_bank_and_a_principal_stand_as_numbers(served: Served) -> None:
    await refused(served.head("eve", "private:user:bob"))
    await refused(served.head("eve", "private:bob"))
    connection = await asyncpg.connect(served.url)
    try:
        rows = await connection.fetch("select * from compliance.decisions")
        bob = await connection.fetchval("select compliance.ref_of('user:bob')")
    finally:
        await connection.close()
    assert {row["bank"] for row in rows} == {f"private:{bob}", "private:"}
    assert not any(name in str([dict(row) for row in rows]).replace("t-eve", "") for name in ("bob", "eve"))


async def test_what_is_granted_is_counted_and_written_at_the_end(served: Served) -> None:
    for _ in range(3):
        await served.head()
    await served.head("bob")
    await served.auth.ExchangeToken(auth_pb2.ExchangeTokenRequest(token="tlk_known"))
    assert await served.counted("access.granted") == set()
    await served.decisions.stop()
    assert await served.counted("access.granted") == {
        ("GetHead", "user:alice", "t-alice", "", "", 3),
        ("GetHead", "user:bob", "t-bob", "", "", 1),
    }


async def test_what_is_granted_is_written_every_few_seconds(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "FLUSH_SECONDS", 0.05)
    database = await Database.connect(database_url, "feed", QUERIES)
    counted = Decisions(database, "feed")
    counted.granted(HEAD, Caller("user:alice", "agent", "t"))
    connection = await asyncpg.connect(database_url)
    for _ in range(200):
        if await connection.fetchval("select sum(count) from compliance.decisions") == 1:
            break
        await asyncio.sleep(0.02)
    else:
        raise AssertionError("nothing was written")
    await connection.close()
    await counted.stop()
    await database.close()


async def test_many_denials_at_once_are_few_statements_and_all_counted(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = 0
    count = Decisions._count

    async def counting(self: Decisions, batch: Any) -> None:
        nonlocal statements
        statements += 1
        await count(self, batch)

    monkeypatch.setattr(Decisions, "_count", counting)
    alice = Caller("user:alice", "agent", "t")
    await asyncio.gather(
        *(served.decisions.denied(HEAD, alice, "PERMISSION_DENIED", f"project:{n % 300}") for n in range(900))
    )
    rows = await served.counted("access.denied")
    assert sum(row[5] for row in rows) == 900 and statements <= 3
    # A caller chooses the banks it is denied, not how many rows that makes.
    assert len(rows) == decisions.BANKS_A_MINUTE + 1 and any(row[4] == "*" for row in rows)


async def test_a_database_that_is_away_holds_up_no_refusal_and_loses_no_count(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = True
    run = Database.execute_raw

    async def execute(self: Database, sql: str, *args: Any) -> Any:
        if away and "count_decisions" in sql:
            raise asyncpg.CannotConnectNowError("starting up")
        return await run(self, sql, *args)

    monkeypatch.setattr(Database, "execute_raw", execute)
    for _ in range(2):
        assert (await refused(served.head("")))[0] == "CREDENTIAL_MISSING"
    assert await served.counted("access.denied") == set()
    away = False
    await refused(served.head(""))
    assert await served.counted("access.denied") == {("GetHead", "", "", "CREDENTIAL_MISSING", "", 3)}


async def test_a_database_that_hangs_holds_up_a_refusal_for_a_moment(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(self: Database, sql: str, *args: Any) -> Any:
        await asyncio.sleep(60)

    monkeypatch.setattr(decisions, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(decisions, "WRITE_SECONDS", 60)
    with monkeypatch.context() as hung:
        hung.setattr(Database, "execute_raw", hang)
        assert (await refused(served.head("")))[0] == "CREDENTIAL_MISSING"


async def test_a_database_that_hangs_does_not_hold_up_the_end(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = await Database.connect(database_url, "feed", QUERIES)
    counted = Decisions(database, "feed")
    counted.granted(HEAD, Caller("user:alice", "agent", "t"))

    async def stubborn(self: Database, sql: str, *args: Any) -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(60)

    monkeypatch.setattr(Database, "execute_raw", stubborn)
    monkeypatch.setattr(decisions, "WRITE_SECONDS", 0.05)
    async with asyncio.timeout(20):
        await counted.stop()
    await database.close()
