"""The sweep on a real Postgres and a real key store: no page goes that a memory needs, or may yet."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import asyncpg
import pytest

from kit.database import Database
from kit.foundation import Drain, Foundation
from kit.sealing import UNUSED_SECONDS, KeyMissing, KeyStore, Slot
from services.compliance import sweeping
from services.compliance.main import Config, build
from services.compliance.store import QUERIES, Store
from services.compliance.sweeping import Sweep

BANK = "project:sweep-1"
PUT = """select memory.put($1, 'user:alice', array[$2], array[''], array[null::timestamptz], array[$3::bigint],
 array[0], array['\\x00'::bytea])"""


class World:
    """A database with a superuser in it, a key store, and a sweep over both."""

    def __init__(self, sql: asyncpg.Connection, store: Store, path: Path) -> None:
        self.sql, self.path = sql, path
        self.keys = KeyStore(path, make=True)
        self.sweep = Sweep(store, KeyStore(path))

    def page(self, age: float = UNUSED_SECONDS + 60) -> int:
        page = self.keys.make_pages(BANK, "user:alice", 8, 1)[0]
        with apsw.Connection(str(self.path)) as file:
            file.execute("update pages set created_at = created_at - ? where page = ?", (age, page))
        return page

    async def put(self, page: int) -> str:
        memory_id = uuid.uuid4().hex
        await self.sql.execute(PUT, BANK, memory_id, page)
        return memory_id

    def there(self, *pages: int) -> list[bool]:
        file = apsw.Connection(str(self.path))
        return [
            file.execute("select 1 from pages where page = ?", (p,)).fetchone() is not None for p in pages
        ]


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    sql, database = (
        await asyncpg.connect(database_url),
        await Database.connect(database_url, "compliance", QUERIES),
    )
    await sql.execute("select memory.open_bank($1)", BANK)
    made = World(sql, Store(database, print), tmp_path / "keystore.db")
    yield made
    await made.sweep.stop()
    await database.close()
    await sql.close()


async def test_only_old_pages_that_nothing_needs_go_and_only_at_the_second_look(world: World) -> None:
    live, hidden, erasing, erased, orphan = [world.page() for _ in range(5)]
    young = world.page(age=UNUSED_SECONDS - 60)
    await world.put(live)
    ids = [await world.put(page) for page in (hidden, erasing, erased)]
    await world.sql.execute("select memory.forget($1, $2)", BANK, ids[:1])
    await world.sql.execute("select memory.erase($1, $2, 'user:olga', 'open')", BANK, ids[1:2])
    await world.sql.execute("select memory.erase($1, $2, 'user:olga', 'done')", BANK, ids[2:])
    await world.sql.execute("select memory.finish_key_destruction('done', $1)", ids[2:])
    assert await world.sweep.pass_once() == 0
    assert await world.sweep.pass_once() == 2
    assert world.there(live, hidden, erasing, young, erased, orphan) == [True] * 4 + [False] * 2
    await world.sql.execute("select memory.finish_key_destruction('open', $1)", ids[1:2])
    assert [await world.sweep.pass_once() for _ in range(3)] == [0, 1, 0]
    assert world.there(erasing) == [False]


async def test_a_page_whose_commit_is_still_open_stays(world: World) -> None:
    await world.put(world.page())
    page = world.keys.make_pages(BANK, "user:alice", 8, 1)[0]
    async with world.sql.transaction():
        await world.put(page)
        assert [await world.sweep.pass_once() for _ in range(3)] == [0, 0, 0]
    assert world.keys.key(Slot(page, 0))


async def test_a_page_that_a_jump_of_the_clock_made_old_stays_when_its_commit_ends_within_the_hour(
    world: World,
) -> None:
    await world.put(world.page())
    page = world.page()
    async with world.sql.transaction():
        await world.put(page)
        assert await world.sweep.pass_once() == 0
    assert [await world.sweep.pass_once() for _ in range(3)] == [0, 0, 0]
    assert world.keys.key(Slot(page, 0))


async def test_commits_and_sweeps_side_by_side_lose_no_key(world: World, database_url: str) -> None:
    await world.put(world.page())
    done = asyncio.Event()
    pages: list[int] = []

    async def write() -> None:
        connection = await asyncpg.connect(database_url)
        for _ in range(40):
            page = world.keys.make_pages(BANK, "user:bob", 8, 1)[0]
            async with connection.transaction():
                await connection.execute(PUT, BANK, uuid.uuid4().hex, page)
                await asyncio.sleep(0.005)
            pages.append(page)
        await connection.close()
        done.set()

    async def sweep() -> None:
        while not done.is_set():
            await world.sweep.pass_once()

    await asyncio.gather(write(), sweep())
    assert all(world.keys.fresh_key(Slot(page, 0)) for page in pages)


async def test_a_database_that_names_none_of_the_pages_is_not_believed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    page = world.page()
    assert [await world.sweep.pass_once() for _ in range(3)] == [0, 0, 0]
    assert world.there(page) == [True] and "names none" in caplog.text


async def test_the_service_sweeps_and_goes_on_after_a_failure(
    world: World, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.put(world.page())
    orphan = world.page()
    monkeypatch.setattr(sweeping, "SWEEP_SECONDS", 0.05)
    real, failed = KeyStore.old_pages, []

    def shaky(keys: KeyStore) -> list[int]:
        if not failed:
            failed.append(1)
            raise KeyMissing("once")
        return real(keys)

    monkeypatch.setattr(KeyStore, "old_pages", shaky)
    config = Config(
        database_url=database_url, keystore=str(world.path), auth_target="127.0.0.1:1", sync_target="127.0.0.1:1",
        service_token="token",
    )  # fmt: skip
    async with Foundation.laid("compliance", config, QUERIES, Drain(), 10) as base:
        await build(config, base)
        async with asyncio.timeout(20):
            while world.there(orphan) == [True]:
                await asyncio.sleep(0.05)
    assert failed
