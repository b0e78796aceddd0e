"""Postgres' disk fills up in the middle of erasures: none claims more than was written, and all end once there is room."""

import asyncio
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import asyncpg
import pytest

from kit.database import Database
from kit.errors import from_driver
from kit.migrate import find_migrations, migrate
from services.compliance.erasures import Runner
from services.compliance.receipts import Terms, signing_key
from services.compliance.store import QUERIES, Store
from stack.postgres import Postgres

ROOT = Path(__file__).resolve().parents[2]
BANK = "project:full-1"
PUT = """select memory.put($1, 'user:alice', array[$2], array[''], array[null::timestamptz],
 array[(random() * 9e18)::bigint], array[0], array['\\x00'::bytea])"""


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A folder on a disk of its own that just holds a cluster."""
    folder = Path(tempfile.mkdtemp(prefix="teamlore-full-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=160m,mode=755", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        folder.rmdir()
        pytest.skip("a disk of its own needs the right to mount one")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
    folder.rmdir()


def fill(folder: Path) -> None:
    """Takes all the room there is."""
    with (folder / "filler").open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


async def test_erasures_claim_nothing_on_a_full_disk_and_end_on_a_larger_one(small_disk: Path) -> None:
    small = {"wal_recycle": "off", "min_wal_size": "32MB", "max_wal_size": "32MB", "autovacuum": "off"}
    server = Postgres(small_disk / "postgres", options=small)
    await asyncio.to_thread(server.start)
    try:
        await migrate(server.dsn, find_migrations(ROOT / "services"))
        sql, database = (
            await asyncpg.connect(server.dsn),
            await Database.connect(server.dsn, "compliance", QUERIES),
        )
        await sql.execute("select memory.open_bank($1)", BANK)
        store, erasures = Store(database, lambda _: None), []
        for _ in range(300):
            memory_id, erasure_id = uuid.uuid4().hex, uuid.uuid4().hex
            await sql.execute(PUT, BANK, memory_id)
            await sql.execute(
                "select memory.erase($1, array[$2], 'user:olga', $3)", BANK, memory_id, erasure_id
            )
            erasures.append(erasure_id)
        # What the disk lacks is room for a next segment of the log and for rows.
        await sql.execute("create table ballast (x text)")

        async def sync(erasure_id: str, bank: str, memory_ids: Sequence[str]) -> None:
            await sql.execute("select memory.finish_key_destruction($1, $2)", erasure_id, list(memory_ids))

        def runner() -> Runner:
            return Runner(store, {"sync": sync}, signing_key(bytes(32)), Terms(35))

        fill(small_disk)
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)) as caught:
            while True:
                await sql.execute(
                    "insert into ballast select repeat('x', 1000) from generate_series(1, 1000)"
                )
        refusal = from_driver(caught.value)
        assert refusal is not None and refusal.reason == "DEPENDENCY_UNAVAILABLE" and refusal.retry_after
        try:
            await runner().pass_once()
        except Exception as error:
            assert from_driver(error) is not None
        (small_disk / "filler").unlink()
        if not server.is_running() or sql.is_closed():
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            sql = await asyncpg.connect(server.dsn)
        after = await sql.fetch("select state, statement is not null as signed from memory.erasures")
        assert all(row["signed"] == (row["state"] == "server_done") for row in after)
        async with asyncio.timeout(60):
            while await sql.fetchval("select count(*) from memory.erasures where state <> 'server_done'"):
                try:
                    await runner().pass_once()
                except Exception as error:
                    assert from_driver(error) is not None
        steps = await sql.fetch(
            "select count(*) from compliance.audit_calls where name like 'erasure.%' group by name"
        )
        assert [row["count"] for row in steps] == [300] * 4
        await sql.close()
        await database.close()
    finally:
        await asyncio.to_thread(server.stop)
