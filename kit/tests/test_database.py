"""The one way to the database: no change without its audit row, and nothing left behind on a connection."""

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from kit import audit
from kit.database import Database, UnauditedChange

QUERIES = """-- name: change
-- Changes something, and writes the audit row.
select compliance.record_call($2, $3, $4, $5, 'project:a', $1)
"""


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
