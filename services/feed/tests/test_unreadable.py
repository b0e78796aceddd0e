"""A live memory without a key stops a reader at it, by name, and never before it; its tombstone lets them go on."""

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from teamlore.feed.v1 import feed_pb2

from kit.database import Database
from kit.errors import Refusal
from kit.sealing import KeyStore, Slot, seal
from services.feed.cursors import Cursor
from services.feed.store import QUERIES, Page, Store

BANK = "project:feed-1"
PUT = """select memory.put($1, 'user:alice', array[$2], array[''], array[null::timestamptz], array[$3::bigint],
 array[$4::int], array[$5::bytea])"""


class World:
    """A bank of five memories, the third of which is sealed under a page of another key store."""

    def __init__(self, sql: asyncpg.Connection, database: Database, folder: Path) -> None:
        self.sql, self.database, self.folder = sql, database, folder
        self.keys = KeyStore(folder / "keystore.db", make=True)
        self.other = KeyStore(folder / "other.db", make=True)
        self.store = Store(database, self.keys)
        self.ids = [f"memory-{n}" for n in range(1, 6)]

    async def fill(self) -> None:
        await self.sql.execute("select memory.open_bank($1)", BANK)
        for number, memory_id in enumerate(self.ids):
            keys = self.other if number == 2 else self.keys
            slot = Slot(keys.make_pages(BANK, "user:alice", 8, 1)[0], 0)
            sealed = seal(keys.key(slot), BANK, memory_id, b"plain words")
            await self.sql.execute(PUT, BANK, memory_id, slot.page, slot.index, sealed)

    async def page(self, after: int, limit: int = 100) -> Page:
        nonce = await self.sql.fetchval(
            "select nonce from memory.changes where bank = $1 and seq = $2", BANK, after
        )
        return await self.store.page(BANK, Cursor(1, after, nonce or 0), limit, 10**6)


def read(changes: bytes) -> list[feed_pb2.Change]:
    return list(feed_pb2.ListChangesResponse.FromString(changes).changes)


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    sql, database = await asyncpg.connect(database_url), await Database.connect(database_url, "feed", QUERIES)
    made = World(sql, database, tmp_path)
    await made.fill()
    yield made
    await database.close()
    await sql.close()


async def test_a_reader_gets_what_comes_before_it_and_is_then_refused_by_its_id(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    page = await world.page(0)
    assert [change.id for change in read(page.changes)] == world.ids[:2]
    assert (page.end.seq, page.more) == (2, True), "nobody may believe that this was all"
    memories, last = await world.store.live(BANK, "", 100, 10**6)
    assert ([change.id for change in read(memories)], last) == (world.ids[:2], "memory-2")
    for reading in (world.page(2), world.store.live(BANK, last, 100, 10**6), world.page(2, limit=1)):
        with pytest.raises(Refusal) as caught:
            await reading
        assert (caught.value.reason, caught.value.metadata) == ("KEY_MISSING", {"memory_id": "memory-3"})
    for line in caplog.records:
        assert line.levelname == "CRITICAL" and "memory-3" in line.getMessage() and BANK in line.getMessage()
        assert "memory-2" not in line.getMessage() and "plain words" not in line.getMessage()
    assert len(caplog.records) == 5
    assert [change.id for change in read((await world.page(3)).changes)] == world.ids[3:]


async def test_its_tombstone_lets_readers_go_on(world: World) -> None:
    await world.sql.execute("select memory.erase($1, array['memory-3'], 'user:olga', 'e')", BANK)
    page = await world.page(2)
    assert [(change.id, change.deleted) for change in read(page.changes)] == [
        ("memory-4", False), ("memory-5", False), ("memory-3", True),
    ]  # fmt: skip
    assert not page.more
    assert len(read((await world.store.live(BANK, "", 100, 10**6))[0])) == 4


async def test_one_that_was_forgotten_is_missed_by_nobody(world: World) -> None:
    await world.sql.execute("select memory.forget($1, array['memory-3'])", BANK)
    assert len(read((await world.page(0)).changes)) == 5


async def test_the_owner_of_a_private_bank_is_not_named_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    bank = "private:user:alice"
    await world.sql.execute("select memory.open_bank($1)", bank)
    await world.sql.execute(PUT, bank, "memory-9", 4711, 0, b"s" * 40)
    with pytest.raises(Refusal):
        await world.store.page(bank, None, 10, 10**6)
    assert "memory-9" in caplog.text and "4711" in caplog.text and "alice" not in caplog.text
