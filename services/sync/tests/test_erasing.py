"""Sync's part in an erasure: what is marked as destroyed is destroyed, and a key that is not there is an alarm."""

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from teamlore.compliance.v1 import compliance_pb2

from kit import audit
from kit.database import Database
from kit.errors import Refusal
from kit.sealing import KeyMissing, KeyStore, Slot
from services.sync.handlers import ParticipantHandlers
from services.sync.store import QUERIES, Store

BANK = "project:erase-1"
PUT = """select memory.put($1, 'user:alice', array[$2], array[''], array[null::timestamptz], array[$3::bigint],
 array[$4::int], array['\\x00'::bytea])"""


class World:
    """A database with a superuser in it, a key store, and the participant over both."""

    def __init__(self, sql: asyncpg.Connection, database: Database, keys: KeyStore) -> None:
        self.sql, self.keys = sql, keys
        self.participant = ParticipantHandlers(Store(database, print), KeyStore(keys.path))

    async def erase(self, *slots: Slot, begin: bool = True) -> tuple[str, list[str]]:
        """An erasure of one memory for each slot, in the order given."""
        ids = [f"memory-{n}-{uuid.uuid4().hex}" for n in range(len(slots))]
        for memory_id, slot in zip(ids, slots, strict=True):
            await self.sql.execute(PUT, BANK, memory_id, slot.page, slot.index)
        erasure_id = uuid.uuid4().hex
        await self.sql.execute("select memory.erase($1, $2, 'user:olga', $3)", BANK, ids, erasure_id)
        if begin:
            await self.sql.execute("select memory.begin_key_destruction($1)", erasure_id)
        return erasure_id, ids

    async def ask(self, erasure_id: str, ids: list[str]) -> int:
        request = compliance_pb2.EraseObjectsRequest(erasure_id=erasure_id, bank=BANK, memory_ids=ids)
        with audit.calling(audit.CallContext("erasure.objects_erased", "service:compliance", "t")):
            return int((await self.participant.EraseObjects(request, None)).erased_count)

    async def open(self, erasure_id: str) -> list[str]:
        rows = await self.sql.fetch(
            "select id from memory.key_destructions where erasure_id = $1 and done_at is null order by id",
            erasure_id,
        )
        return [row["id"] for row in rows]


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    sql, database = await asyncpg.connect(database_url), await Database.connect(database_url, "sync", QUERIES)
    await sql.execute("select memory.open_bank($1)", BANK)
    yield World(sql, database, KeyStore(tmp_path / "keystore.db", make=True))
    await database.close()
    await sql.close()


async def test_a_key_that_is_not_there_is_never_marked_as_destroyed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    here, nowhere = Slot(world.keys.make_pages(BANK, "user:alice", 8, 1)[0], 0), Slot(4711, 3)
    erasure_id, (kept, lost) = await world.erase(here, nowhere)
    for _ in range(2):
        with pytest.raises(Refusal) as caught:
            await world.ask(erasure_id, [kept, lost])
        assert (caught.value.reason, caught.value.metadata) == ("KEY_MISSING", {"memory_id": lost})
        assert await world.open(erasure_id) == [lost]
    with pytest.raises(KeyMissing):
        KeyStore(world.keys.path).key(here)
    advance = "select memory.advance_erasure($1, 'hidden', 'keys_destroyed')"
    assert not await world.sql.fetchval(advance, erasure_id)
    (line, _) = caplog.records
    assert line.levelname == "CRITICAL"
    assert all(word in line.getMessage() for word in ("ALARM", erasure_id, BANK, lost, "4711"))


async def test_nothing_is_destroyed_before_the_point_of_no_return(world: World) -> None:
    slot = Slot(world.keys.make_pages(BANK, "user:alice", 8, 1)[0], 0)
    erasure_id, ids = await world.erase(slot, begin=False)
    assert await world.ask(erasure_id, ids) == 0
    assert world.keys.fresh_key(slot) and await world.open(erasure_id) == ids
    await world.sql.execute("select memory.begin_key_destruction($1)", erasure_id)
    assert [await world.ask(erasure_id, ids) for _ in "12"] == [1, 0]
    with pytest.raises(KeyMissing):
        KeyStore(world.keys.path).key(slot)


async def test_a_key_store_that_cannot_be_written_leaves_the_erasure_open(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = Slot(world.keys.make_pages(BANK, "user:alice", 8, 1)[0], 0)
    erasure_id, ids = await world.erase(slot)
    away = world.keys.path.rename(world.keys.path.with_name("away.db"))
    with pytest.raises(Refusal) as caught:
        await world.ask(erasure_id, ids)
    assert caught.value.reason == "KEYSTORE_UNAVAILABLE" and await world.open(erasure_id) == ids
    away.rename(world.keys.path)
    assert await world.ask(erasure_id, ids) == 1
