"""A process opens the key store of its database or does not start; on a fresh deployment exactly one is made."""

import asyncio
import os
import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import asyncpg
import pytest

from kit.database import Database
from kit.errors import Refusal
from kit.keystore import open_key_store
from kit.sealing import KeyStore

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("auth", "sync", "feed", "compliance", "index")
BANK = "project:keys-1"
PUT = """select memory.put($1, 'user:alice', array[$2], array[''], array[null::timestamptz], array[$3::bigint],
 array[0], array['\\x00'::bytea])"""


class World:
    """One database, opened in every service's role, and a folder for key stores."""

    def __init__(self, sql: asyncpg.Connection, databases: dict[str, Database], folder: Path) -> None:
        self.sql, self.databases, self.folder = sql, databases, folder

    async def open(self, name: str = "keystore.db", service: str = "sync") -> KeyStore:
        return await open_key_store(self.databases[service], str(self.folder / name), service)

    async def refused(self, name: str) -> str:
        with pytest.raises(Refusal) as caught:
            await self.open(name)
        assert caught.value.reason == "KEYSTORE_UNAVAILABLE"
        assert f"TEAMLORE_KEYSTORE={self.folder / name}: " in str(caught.value)
        return str(caught.value)

    async def put(self, page: int) -> None:
        await self.sql.execute("select memory.open_bank($1)", BANK)
        await self.sql.execute(PUT, BANK, os.urandom(8).hex(), page)

    async def known(self) -> str | None:
        return await self.sql.fetchval("select id from memory.key_store")

    async def forget(self, *names: str) -> None:
        """Makes the database, and the key stores named, those of an older version."""
        await self.sql.execute("delete from memory.key_store")
        for name in names:
            with apsw.Connection(str(self.folder / name)) as file:
                file.execute("drop table identity; drop table dropped")

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if path.suffix == ".db")


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    sql = await asyncpg.connect(database_url)
    queries = {name: ROOT / "services" / name / "queries.sql" for name in SERVICES}
    databases = {name: await Database.connect(database_url, name, queries[name], size=2) for name in SERVICES}
    yield World(sql, databases, tmp_path)
    for database in databases.values():
        await database.close()
    await sql.close()


async def test_services_that_start_at_once_make_one_and_agree(world: World) -> None:
    for _ in range(5):
        starts = [(name, service) for service in SERVICES for name in ("a.db", "b.db")]
        random.shuffle(starts)
        opened = await asyncio.gather(*(world.open(*start) for start in starts), return_exceptions=True)
        stores = [store for store in opened if isinstance(store, KeyStore)]
        assert len(stores) == 5 and len({store.identity() for store in stores}) == 1
        assert sum(isinstance(store, Refusal) for store in opened) == 5
        assert len(world.files()) == 1 and stores[0].identity() == await world.known()
        await world.sql.execute("delete from memory.key_store; delete from compliance.audit_calls")
        for path in world.folder.iterdir():
            path.unlink()


async def test_the_binding_leaves_one_audit_row(world: World) -> None:
    for _ in range(2):
        await world.open()
    rows = await world.sql.fetch("select name, bank, objects from compliance.audit_calls")
    assert [tuple(row) for row in rows] == [("keystore.bound", "", 1)]


async def test_a_mistyped_path_makes_no_file_and_says_so(world: World) -> None:
    await world.open()
    assert "no such file" in await world.refused("keystor.db")
    assert world.files() == ["keystore.db"]


async def test_the_key_store_of_another_database_is_refused(world: World) -> None:
    await world.open()
    KeyStore(world.folder / "other.db", make=True)
    assert "not the key store of this database" in await world.refused("other.db")


async def test_one_that_is_in_use_elsewhere_is_not_taken_by_a_fresh_database(world: World) -> None:
    KeyStore(world.folder / "other.db", make=True).make_pages("b", "a", 8, 1)[0]
    assert "not the key store of this database" in await world.refused("other.db")
    assert await world.known() is None


async def test_a_start_that_died_after_making_the_file_is_taken_up(world: World) -> None:
    half = KeyStore(world.folder / "keystore.db", make=True)
    assert (await world.open()).identity() == half.identity() == await world.known()
    await world.sql.execute("delete from memory.key_store")
    (world.folder / "empty.db").touch()
    assert (await world.open("empty.db")).identity() == await world.known() != half.identity()


async def test_an_older_one_is_adopted_by_a_page_that_the_database_needs(world: World) -> None:
    first = await world.open()
    pages = [first.make_pages(BANK, "user:alice", 8, 1)[0] for _ in range(1500)]
    first.close()
    KeyStore(world.folder / "wrong.db", make=True).make_pages(BANK, "user:alice", 8, 1)[0]
    await world.put(max(pages))
    await world.forget("keystore.db", "wrong.db")
    assert "no such file" in await world.refused("missing.db")
    assert "not the key store" in await world.refused("wrong.db")
    assert await world.known() is None and world.files() == ["keystore.db", "wrong.db"]
    adopted = await world.open()
    assert adopted.identity() == await world.known() and len(adopted.identity()) == 32
    assert "not the key store" in await world.refused("wrong.db")


async def test_an_older_backup_of_the_key_store_gets_the_identity_it_lacks(world: World) -> None:
    store = await world.open()
    page = store.make_pages(BANK, "user:alice", 8, 1)[0]
    store.close()
    shutil.copy(world.folder / "keystore.db", world.folder / "backup.db")
    known = await world.known()
    await world.forget("backup.db")
    await world.sql.execute("insert into memory.key_store (id) values ($1)", known)
    assert "not the key store" in await world.refused("backup.db"), "nothing proves it yet"
    await world.put(page)
    assert (await world.open("backup.db")).identity() == known


async def test_an_older_one_is_believed_where_the_database_names_no_page(world: World) -> None:
    KeyStore(world.folder / "keystore.db", make=True).make_pages(BANK, "user:alice", 8, 1)[0]
    await world.forget("keystore.db")
    assert (await world.open()).identity() == await world.known()


@pytest.mark.parametrize(
    "trace",
    [
        "insert into auth.signing_keys (kid, public_key, sealed_private_key) values ('k', '', '')",
        "insert into memory.erasures (erasure_id, bank, requested_by, through_seq, statement)"
        " values ('e', 'b', 'u', 1, 'x')",
    ],
)
async def test_a_database_that_was_in_use_gets_no_new_one(world: World, trace: str) -> None:
    await world.sql.execute(trace)
    assert "no such file" in await world.refused("keystore.db")
    assert world.files() == []
