"""Turns and claims on a real database: what waits for what, and what the server ends."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import numpy as np
import pytest
from teamlore.sync.v1 import sync_pb2

from kit.audit import CallContext, calling
from kit.database import Database
from kit.sealing import Allocator, KeyStore, seal
from services.index import indexing, store
from services.index.embedding import Urgency
from services.index.flight import InFlight
from services.index.following import Seen
from services.index.indexing import Follower, VectorWork
from services.index.store import QUERIES, VECTORS, Store

BANK = "project:turns"
PATIENCE = 1.0


class Slow:
    """A model that takes its time, and points that nobody keeps."""

    def __init__(self) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self.writing, self.write = asyncio.Event(), asyncio.Event()
        self.write.set()
        self.rewriting, self.rewritten = 0, asyncio.Event()
        self.rewritten.set()
        self.points: set[str] = set()

    async def embed(self, texts: Sequence[str], urgency: Urgency) -> list[Seen]:
        self.asked.set()
        await self.go.wait()
        return [Seen(np.ones(3, dtype=np.float32), True)] * len(texts)

    async def exists(self) -> bool:
        return True

    async def present(self, bank: str, ids: Sequence[str]) -> set[str]:
        return self.points & set(ids)

    async def put(self, bank: str, points: Sequence[Any]) -> None:
        self.writing.set()
        await self.write.wait()
        self.points |= {point.id for point in points}

    async def delete(self, bank: str, ids: Sequence[str], *, wait: bool) -> None:
        if wait:
            self.rewriting += 1
            await self.rewritten.wait()
        self.points -= set(ids)


class World:
    """A bank of two memories whose terms were followed, and stores as two replicas have them."""

    def __init__(self, databases: Sequence[Database], keys: KeyStore, admin: Any) -> None:
        self.stores = [Store(database, keys) for database in databases]
        self.admin = admin
        self.slow = Slow()

    def follower(self, replica: int = 0) -> Follower:
        slow: Any = self.slow
        return Follower(self.stores[replica], VectorWork(self.stores[replica], slow, slow, InFlight(), 3))

    def erase(self, memory_id: str, erasure_id: str, replica: int = 1) -> "asyncio.Task[int]":
        slow: Any = self.slow
        with calling(CallContext("index.purge", "service:compliance", "")):
            return asyncio.create_task(
                indexing.erase(self.stores[replica], (slow,), InFlight(), erasure_id, BANK, [memory_id])
            )

    async def bury(self, memory_id: str, erasure_id: str) -> None:
        await self.admin.execute(
            "select memory.erase($1, array[$2], 'user:alice', $3)", BANK, memory_id, erasure_id
        )

    async def seq(self) -> int | None:
        found: int | None = await self.admin.fetchval("select seq from index.cursors where bank = $1", BANK)
        return found


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    keys = KeyStore(tmp_path / "k.db", make=True)
    databases = [await Database.connect(database_url, "index", QUERIES, patience=PATIENCE) for _ in range(2)]
    admin = await asyncpg.connect(database_url)
    await admin.execute("select memory.open_bank($1)", BANK)
    for memory_id, slot in zip("ab", Allocator(keys).take(BANK, "user:alice", 2), strict=True):
        content = sync_pb2.MemoryContent(text=f"text of {memory_id}").SerializeToString()
        await admin.execute(
            "select memory.put($1, 'user:alice', array[$2], array[''], array[null::timestamptz], array[$3::bigint],"
            " array[$4::int], array[$5::bytea])",
            BANK, memory_id, slot.page, slot.index, seal(keys.fresh_key(slot), BANK, memory_id, content),
        )  # fmt: skip
    await admin.execute("insert into index.leading_term_cursors values ($1, 2)", BANK)
    yield World(databases, keys, admin)
    await admin.close()
    for database in databases:
        await database.close()
    keys.close()


async def test_a_model_that_takes_longer_than_the_server_has_patience_still_gets_done(world: World) -> None:
    following = asyncio.create_task(world.follower().follow(BANK))
    await world.slow.asked.wait()
    await asyncio.sleep(PATIENCE * 1.5)
    world.slow.go.set()
    assert not await following
    assert await world.seq() == 2 and world.slow.points == {"a", "b"}


async def test_an_erasure_waits_for_no_model_and_what_it_buried_is_not_written(world: World) -> None:
    following = asyncio.create_task(world.follower().follow(BANK))
    await world.slow.asked.wait()
    await world.bury("a", "1" * 32)
    assert await world.erase("a", "1" * 32) == 1
    assert not following.done()
    world.slow.go.set()
    await following
    assert world.slow.points == {"b"}


async def test_an_erasure_waits_for_the_one_who_saw_its_memory_live_and_deletes_after_it(world: World) -> None:
    world.slow.go.set()
    world.slow.write.clear()
    following = asyncio.create_task(world.follower().follow(BANK))
    await world.slow.writing.wait()
    await world.bury("a", "1" * 32)
    erasing = world.erase("a", "1" * 32)
    await asyncio.wait([erasing], timeout=PATIENCE / 3)
    assert not erasing.done()
    world.slow.write.set()
    await following
    assert await erasing == 1 and world.slow.points == {"b"}


async def test_erasures_whose_files_take_long_wait_for_each_other_no_more_than_a_follower_does(
    world: World,
) -> None:
    world.slow.go.set()
    world.slow.rewritten.clear()
    await world.bury("a", "1" * 32)
    await world.bury("b", "2" * 32)
    erasing = [world.erase("a", "1" * 32, 0), world.erase("b", "2" * 32, 1)]
    async with asyncio.timeout(20):
        while world.slow.rewriting < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(PATIENCE * 1.5)  # nor does the server end what they hold
        assert not await world.follower().follow(BANK) and await world.seq() == 2
    world.slow.rewritten.set()
    assert await asyncio.gather(*erasing) == [1, 1] and not world.slow.points


async def test_one_process_at_a_time_has_the_turn_and_a_dead_one_leaves_it(world: World) -> None:
    following = asyncio.create_task(world.follower().follow(BANK))
    await world.slow.asked.wait()
    assert not await world.follower(1).follow(BANK) and await world.seq() == 0
    following.cancel()
    await asyncio.wait([following])
    world.slow.go.set()
    assert not await world.follower(1).follow(BANK) and await world.seq() == 2


async def test_a_stopped_process_loses_its_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "TURN_SECONDS", 1)
    async with asyncio.timeout(20):
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
            async with world.stores[0].turn(VECTORS, BANK) as turn:
                assert turn is not None
                while True:
                    async with world.stores[1].turn(VECTORS, BANK) as other:
                        if other is not None:
                            break
                    await asyncio.sleep(0.1)
    async with world.stores[0].turn(VECTORS, BANK) as again:
        assert again is not None


async def test_a_turn_that_ends_leaves_the_session_as_it_was(world: World) -> None:
    database = world.stores[0].database
    async with world.stores[0].turn(VECTORS, BANK):
        pass
    async with database.connection() as connection:
        assert await connection.fetchval("show idle_session_timeout") == "0"
    assert not await world.admin.fetchval("select count(*) from pg_locks where locktype = 'advisory'")


async def test_a_cursor_that_was_moved_meanwhile_is_left_where_it_is(world: World) -> None:
    async with world.stores[0].turn(VECTORS, BANK) as turn:
        assert turn is not None
        await world.admin.execute("update index.cursors set seq = 1 where bank = $1", BANK)
        async with turn.claim(2) as claimed:
            assert not claimed
    assert await world.seq() == 1
