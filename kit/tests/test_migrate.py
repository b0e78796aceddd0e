"""A database is migrated where it is empty or ours, and left as it is where it is somebody else's."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from kit.migrate import MigrationError, find_migrations, migrate

MIGRATIONS = find_migrations(Path(__file__).resolve().parents[2] / "services")


async def run(url: str, sql: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(sql) if sql.startswith("select") else [await connection.execute(sql)]
    finally:
        await connection.close()


@pytest.fixture
def empty(postgres: Any) -> Iterator[str]:
    """The address of a database that holds nothing."""
    asyncio.run(run(postgres.dsn, "create database t_strangers"))
    yield postgres.url("t_strangers")
    asyncio.run(run(postgres.dsn, "drop database t_strangers with (force)"))


@pytest.mark.parametrize(
    "theirs",
    [
        "create table orders (id int)",
        "create table schema_migrations (version text primary key)",
        "create schema auth; create table auth.users (id int)",
        "create schema memory; create table memory.parts (id int) partition by range (id)",
    ],
)
async def test_a_strangers_database_is_left_as_it_is(empty: str, theirs: str) -> None:
    await run(empty, theirs)
    everything = "select oid::regclass::text from pg_class where relnamespace > 16383 or relnamespace = 2200 order by 1"
    before = await run(empty, everything)
    with pytest.raises(MigrationError, match="t_strangers holds what is not Teamlore's") as refused:
        await migrate(empty, MIGRATIONS)
    assert theirs.rpartition("table ")[2].split()[0] in str(refused.value)
    assert await run(empty, everything) == before


async def test_an_empty_one_and_ours_are_migrated(empty: str) -> None:
    await run(empty, "create schema theirs; create table theirs.orders (id int)")
    assert len(await migrate(empty, MIGRATIONS)) == len(MIGRATIONS)
    await run(empty, "create table public.notes (id int)")
    assert await migrate(empty, MIGRATIONS) == []
