"""The one way to the database: no change without its audit row, and nothing left behind on a connection."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import asyncpg
import pytest

from kit import audit
from kit.database import Database, UnauditedChange
from kit.errors import LOST, from_driver

QUERIES = """-- name: change
-- Changes something, and writes the audit row.
select compliance.record_call($2, $3, $4, $5, 'project:a', $1)

-- name: lock
-- Takes a lock that one transaction holds at a time.
select pg_advisory_xact_lock(4711)

-- name: moment
-- A time, as it went and as it came.
select $1::timestamptz as back, ($1::timestamptz at time zone 'utc')::text as there,
       array[$1::timestamptz] || $2::timestamptz[] as all

-- name: infinite
-- What has no place in a calendar.
select '-infinity'::timestamptz as first, 'infinity'::timestamptz as last
"""

FIRST, LAST, NOW = (moment.replace(tzinfo=UTC) for moment in (datetime.min, datetime.max, datetime(2026, 5, 4, 3, 2, 1, 987654)))
TICK = timedelta(microseconds=1)


@pytest.fixture
async def database(database_url: str, tmp_path: Path) -> AsyncIterator[Database]:
    path = tmp_path / "queries.sql"
    path.write_text(QUERIES)
    opened = await Database.connect(database_url, "sync", path, size=1)
    yield opened
    await opened.close()


async def test_one_statement_carries_the_call_and_none_runs_outside_of_one(
    database: Database, database_url: str
) -> None:
    with pytest.raises(UnauditedChange):
        await database.audited_value("change", 7)
    call = audit.CallContext("memory.push", "user:alice", "t-1")
    with audit.calling(call):
        await database.audited_value("change", 7)
    look = await asyncpg.connect(database_url)
    rows = await look.fetch("select call_id, name, token_id, objects from compliance.audit_calls")
    await look.close()
    assert [tuple(row) for row in rows] == [(call.call_id, "memory.push", "t-1", 7)]


async def test_what_a_connection_was_left_with_does_not_stay(database: Database) -> None:
    async with database.connection() as connection:
        await connection.execute("begin")
        first = await connection.fetchval("select txid_current()")
    async with database.connection() as connection:  # the same one: there is no other
        assert not connection.is_in_transaction()
        assert await connection.fetchval("select txid_current()") != first
        assert await connection.fetchval("select current_user") == "teamlore_sync"


@pytest.mark.parametrize("moment", [FIRST, FIRST + TICK, NOW, LAST - TICK, LAST])
async def test_a_time_is_kept_to_the_microsecond_and_never_infinite(database: Database, moment: datetime) -> None:
    row = await database.row("moment", moment, [None, moment])
    assert row is not None and row["back"] == moment and row["all"] == [moment, None, moment]
    assert row["there"] == str(moment.replace(tzinfo=None))
    elsewhere = NOW.astimezone(timezone(timedelta(hours=3)))
    row = await database.row("moment", elsewhere, [])
    assert row is not None and row["back"] == NOW
    row = await database.row("infinite")
    assert row is not None and tuple(row) == (FIRST, LAST), "what an older release has written can be read"


async def test_who_holds_a_lock_and_does_nothing_is_ended_and_told_so(database_url: str, tmp_path: Path) -> None:
    path = tmp_path / "queries.sql"
    path.write_text(QUERIES)
    holder = await Database.connect(database_url, "sync", path, size=1, patience=0.4)
    other = await Database.connect(database_url, "sync", path, size=1, patience=60)
    through = False
    with audit.calling(audit.CallContext("memory.push", "user:alice", "t-1")):
        with pytest.raises(LOST) as caught:
            async with holder.transaction() as held:
                await held.value("lock")
                async with asyncio.timeout(20), other.transaction() as waiting:
                    await waiting.value("lock")
                    through = True
                held.changed("project:a", 1)
    refusal = from_driver(caught.value)
    assert through and refusal is not None and refusal.reason == "DEPENDENCY_UNAVAILABLE"
    await holder.fetch("lock")  # on a new connection
    await holder.close()
    await other.close()


async def test_who_waits_for_a_lock_that_is_not_given_up_is_told_to_come_again(
    database_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "queries.sql"
    path.write_text(QUERIES)
    database = await Database.connect(database_url, "sync", path, size=1, patience=0.3)
    session = await asyncpg.connect(database_url)
    await session.execute("select pg_advisory_lock(4711)")
    with pytest.raises(asyncpg.PostgresError) as caught:
        await database.fetch("lock")
    refusal = from_driver(caught.value)
    assert refusal is not None and refusal.reason == "DEPENDENCY_UNAVAILABLE" and refusal.retry_after
    await session.close()
    await database.close()
