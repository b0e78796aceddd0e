"""The operator's way out: what nobody can read is listed, then buried, with tombstones, audit rows and an honest receipt."""

import json
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from kit.database import Database
from kit.errors import from_driver
from kit.sealing import KeyStore, Slot, seal
from services.compliance.bury_unreadable import bury
from services.compliance.erasures import Runner
from services.compliance.receipts import Terms, signing_key
from services.compliance.store import QUERIES, Store

BANK = "project:bury-1"
ROOT = Path(__file__).resolve().parents[3]
PUT = """select memory.put($1, 'user:alice', array[$2], array[''], array[null::timestamptz], array[$3::bigint],
 array[$4::int], array[$5::bytea])"""


class World:
    """A bank with memories of this key store and of one that is lost."""

    def __init__(self, sql: asyncpg.Connection, database: Database, folder: Path) -> None:
        self.sql = sql
        self.keys = KeyStore(folder / "keystore.db", make=True)
        self.lost = KeyStore(folder / "lost.db", make=True)
        self.heard: list[str] = []
        self.store = Store(database, self.heard.append)

    async def put(self, keys: KeyStore) -> str:
        memory_id, slot = f"memory-{uuid.uuid4().hex}", Slot(keys.make_pages(BANK, "user:alice", 8, 1)[0], 0)
        await self.sql.execute(
            PUT, BANK, memory_id, slot.page, 0, seal(keys.key(slot), BANK, memory_id, b"x")
        )
        return memory_id

    async def erase(self, *ids: str) -> str:
        erasure_id = uuid.uuid4().hex
        await self.sql.execute("select memory.erase($1, $2, 'user:olga', $3)", BANK, list(ids), erasure_id)
        return erasure_id

    async def live(self) -> set[str]:
        return {
            row["id"]
            for row in await self.sql.fetch("select id from memory.live_memories where bank = $1", BANK)
        }

    async def bury(self, really: bool = True) -> tuple[int, int]:
        return await bury(self.store, self.keys, BANK, "user:olga", really)

    async def run(self) -> None:
        async def sync(erasure_id: str, bank: str, memory_ids: Any) -> None:
            await self.sql.execute(
                "select memory.finish_key_destruction($1, array(select id from memory.doomed_keys where key_page = any($2)))",
                erasure_id,
                [page for pages in self.keys.pages() for page in pages],
            )

        await Runner(self.store, {"sync": sync}, signing_key(bytes(32)), Terms(35)).pass_once()


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    sql, database = (
        await asyncpg.connect(database_url),
        await Database.connect(database_url, "compliance", QUERIES),
    )
    await sql.execute("select memory.open_bank($1)", BANK)
    yield World(sql, database, tmp_path)
    await database.close()
    await sql.close()


async def test_it_lists_first_and_buries_only_what_nobody_can_read(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = (
        [await world.put(world.keys) for _ in range(3)],
        [await world.put(world.lost) for _ in range(101)],
    )
    assert await world.bury(really=False) == (101, 0)
    assert await world.live() == {*good, *bad} and capsys.readouterr().out.count("live, unreadable: ") == 101
    assert await world.bury() == (101, 0)
    assert await world.live() == set(good) and world.heard == [BANK, BANK]
    assert await world.bury() == (0, 0)
    rows = await world.sql.fetch("select name, objects, bank from compliance.audit_calls order by audit_id")
    assert [tuple(row) for row in rows] == [("erasure.unreadable_buried", n, BANK) for n in (100, 1)]
    await world.run()
    receipts = await world.sql.fetch("select statement from memory.erasures where state = 'server_done'")
    said = [json.loads(row["statement"]) for row in receipts]
    assert sorted(len(words["keys_not_found"]) for words in said) == [1, 100]
    assert all(words["keys_not_found"] == words["memory_ids"] for words in said)


async def test_an_erasure_that_waits_for_a_lost_key_ends_and_its_receipt_says_so(world: World) -> None:
    good, bad = await world.put(world.keys), await world.put(world.lost)
    erasure_id = await world.erase(good, bad)
    state = "select state from memory.erasures where erasure_id = $1"
    await world.run()
    assert await world.sql.fetchval(state, erasure_id) == "hidden"
    assert await world.bury() == (0, 1)
    await world.sql.execute("select pg_sleep(0.25)")
    await Runner(world.store, {}, signing_key(bytes(32)), Terms(35)).pass_once()
    assert await world.sql.fetchval(state, erasure_id) == "server_done"
    words = json.loads(await world.sql.fetchval("select statement from memory.erasures"))
    assert (words["keys_not_found"], words["memory_count"]) == ([bad], 2)
    names = [
        row["name"]
        for row in await world.sql.fetch("select name from compliance.audit_calls order by audit_id")
    ]
    assert names.count("erasure.keys_written_off") == 1 and "erasure.unreadable_buried" not in names


async def test_a_hold_stops_it_as_it_stops_every_erasure(world: World) -> None:
    bad, gone = await world.put(world.lost), await world.put(world.lost)
    await world.erase(gone)
    await world.sql.execute("select memory.place_hold($1, 'h', 'M-1', 'user:olga', null)", BANK)
    with pytest.raises(asyncpg.PostgresError) as caught:
        await world.bury()
    refusal = from_driver(caught.value)
    assert refusal is not None and refusal.reason == "BANK_HELD" and await world.live() == {bad}
    with pytest.raises(asyncpg.PostgresError):
        await world.store.write_off(BANK, [gone])
    assert await world.sql.fetchval("select count(*) from memory.key_destructions where written_off") == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--bank", ""), "--bank: a bank"),
        (("--bank", "a b"), "--bank: a bank"),
        (("--bank", BANK, "--bury", "--principal", "olga"), "--principal: a principal"),
        (("--bank", BANK, "--bury"), "--bury needs --principal"),
    ],
)
def test_the_command_refuses_what_names_no_bank_and_nobody(words: tuple[str, ...], said: str) -> None:
    command = [sys.executable, "-m", "services.compliance.bury_unreadable", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and said in done.stderr, done.stderr
