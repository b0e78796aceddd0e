"""A database restored from an older backup is told what was erased since, before any service opens it."""

import asyncio
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from kit.database import Database
from kit.errors import Refusal
from kit.keystore import open_key_store
from kit.ledger import Ledger
from kit.sealing import KeyStore, Slot, seal
from services.compliance.erasures import Runner
from services.compliance.ledgering import Ledgered
from services.compliance.receipts import Terms, signing_key
from services.compliance.restored import restored
from services.compliance.store import QUERIES, Store

ROOT = Path(__file__).resolve().parents[3]
BANK, LATER = "project:restore-1", "project:restore-2"
ROLES = ("auth", "sync", "feed", "compliance", "index")
PUT = """select memory.put($1, 'user:alice', array[$2], array[''], array[null::timestamptz], array[$3::bigint],
 array[$4::int], array[$5::bytea])"""


class World:
    """One key store, and the database that it stands beside just now."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.keystore = url, folder / "keystore.db"

    @asynccontextmanager
    async def opened(self, *, after_restore: bool = False) -> AsyncIterator[tuple[Store, KeyStore]]:
        """The store and the keys, as compliance opens them."""
        database = await Database.connect(self.url, "compliance", QUERIES, size=2)
        try:
            keys = await open_key_store(database, str(self.keystore), "compliance", restored=after_restore)
            yield Store(database, lambda _: None), keys
            keys.close()
        finally:
            await database.close()

    async def sql(self, statement: str, *values: object) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.url)
        try:
            return list(await connection.fetch(statement, *values))
        finally:
            await connection.close()

    async def put(self, memory_id: str, bank: str = BANK) -> str:
        async with self.opened() as (_, keys):
            slot = Slot(keys.make_pages(bank, "user:alice", 8, 1)[0], 0)
            await self.sql("select memory.open_bank($1)", bank)
            await self.sql(PUT, bank, memory_id, slot.page, 0, seal(keys.key(slot), bank, memory_id, b"x"))
        return memory_id

    async def erase(self, *ids: str, bank: str = BANK) -> str:
        """Erases, and runs what is open through all stages."""
        erasure_id = uuid.uuid4().hex
        await self.sql("select memory.erase($1, $2, 'user:olga', $3)", bank, list(ids), erasure_id)
        await self.run()
        return erasure_id

    async def run(self) -> None:
        async with self.opened() as (store, keys):

            async def sync(erasure_id: str, bank: str, memory_ids: Sequence[str]) -> None:
                rows = await self.sql("select * from memory.doomed_keys where erasure_id = $1", erasure_id)
                done = keys.destroy([Slot(row["key_page"], row["key_slot"]) for row in rows])
                assert not done.missing
                await self.sql("select memory.finish_key_destruction($1, $2)", erasure_id, list(memory_ids))

            ledgered = Ledgered(store, Ledger(self.keystore), sync)
            await Runner(store, {"sync": ledgered}, signing_key(bytes(32)), Terms(35)).pass_once()
            await ledgered.close()

    async def back_up(self) -> str:
        """A copy of the database as it is; gives the URL by which it is restored."""
        server, _, name = self.url.rpartition("/")
        connection = await asyncpg.connect(f"{server}/postgres")
        try:
            await connection.execute(f"drop database if exists {name}_old with (force)")
            await connection.execute(f"create database {name}_old template {name}")
        finally:
            await connection.close()
        return f"{self.url}_old"

    async def restore(self) -> tuple[int, int, int]:
        async with self.opened(after_restore=True) as (store, _):
            ledger = Ledger(self.keystore)
            done = await restored(store, ledger, "user:olga")
            ledger.close()
        return done.epoch, done.erasures, done.memories


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    made = World(database_url, tmp_path)
    yield made
    server, _, name = database_url.rpartition("/")
    connection = await asyncpg.connect(f"{server}/postgres")
    await connection.execute(f"drop database if exists {name}_old with (force)")
    await connection.close()


async def test_what_was_erased_since_the_backup_is_erased_again_before_anyone_is_served(world: World) -> None:
    kept, here = await world.put("kept-0001"), await world.put("here-0001")
    before = await world.erase(await world.put("before-01"))
    backup = await world.back_up()
    one = await world.erase(here)
    new = await world.erase(await world.put("new-00001"), await world.put("new-00002"))
    other = await world.erase(await world.put("other-001", LATER), bank=LATER)
    world.url = backup
    for role in ROLES:
        database = await Database.connect(backup, role, QUERIES, size=1)
        with pytest.raises(Refusal, match=r"services\.compliance\.restored"):
            await open_key_store(database, str(world.keystore), role)
        await database.close()
    assert await world.restore() == (2, 3, 4)
    live = await world.sql("select id from memory.live_memories")
    assert [row["id"] for row in live] == [kept]
    buried = await world.sql("select bank, id from memory.tombstones order by id")
    assert [tuple(row) for row in buried] == [
        (BANK, "before-01"), (BANK, here), (BANK, "new-00001"), (BANK, "new-00002"), (LATER, "other-001"),
    ]  # fmt: skip
    # They go through their stages again, vectors included, and each gets a receipt that names what it erased.
    await world.run()
    rows = await world.sql("select erasure_id, state, statement from memory.erasures")
    assert {row["state"] for row in rows} == {"server_done"}
    named = {row["erasure_id"]: json.loads(row["statement"])["memory_ids"] for row in rows}
    assert named == {
        before: ["before-01"], one: [here], new: ["new-00001", "new-00002"], other: ["other-001"],
    }  # fmt: skip
    # An old mirror that pushes what was erased gets nowhere.
    async with world.opened() as (_, keys):
        slot = Slot(keys.make_pages(BANK, "user:alice", 8, 1)[0], 0)
        for bank, memory_id in ((BANK, here), (BANK, "new-00001"), (LATER, "other-001")):
            [won] = await world.sql(
                PUT.replace("select", "select count(*) from"), bank, memory_id, slot.page, 0, b"x"
            )
            assert won["count"] == 0
    head = await world.sql("select head, live from memory.heads where bank = $1", BANK)
    assert tuple(head[0]) == (7, 1)
    names = await world.sql(
        "select name, objects, bank from compliance.audit_calls order by audit_id desc limit 100"
    )
    assert {(row["name"], row["bank"]) for row in names} >= {
        ("history.restored", ""), ("erasure.reapplied", BANK), ("erasure.reapplied", LATER),
    }  # fmt: skip


async def test_a_second_time_changes_nothing_but_the_epoch(world: World) -> None:
    here = await world.put("here-0001")
    backup = await world.back_up()
    await world.erase(here)
    world.url = backup
    assert await world.restore() == (2, 1, 1)
    assert await world.restore() == (3, 0, 0)
    async with world.opened():
        pass


async def test_the_same_backup_twice_begins_an_epoch_that_never_was(world: World) -> None:
    await world.put("here-0001")
    original, backup = world.url, await world.back_up()
    assert await world.restore() == (2, 0, 0)
    world.url = backup
    with pytest.raises(Refusal, match="older"):
        async with world.opened():
            pass
    assert await world.restore() == (3, 0, 0)
    world.url = original


async def test_a_hold_that_was_lifted_before_the_erasure_does_not_bring_the_memory_back(world: World) -> None:
    here = await world.put("here-0001")
    await world.sql("select memory.place_hold($1, 'h1', 'M-1', 'user:olga', null)", BANK)
    backup = await world.back_up()
    await world.sql("select memory.lift_hold($1, 'h1', 'user:olga')", BANK)
    await world.erase(here)
    world.url = backup
    assert await world.restore() == (2, 1, 1)
    assert await world.sql("select 1 from memory.live_memories") == []
    # It binds again, all else and from the same day on.
    hold = await world.sql("select lifted_at, lifted_by from memory.holds")
    assert tuple(hold[0]) == (None, None)
    with pytest.raises(asyncpg.PostgresError) as caught:
        await world.sql("select memory.forget($1, '{nothere1}')", BANK)
    assert caught.value.sqlstate == "TL001"


async def test_no_key_is_destroyed_that_the_ledger_could_not_take(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await world.put("here-0001")

    def fails(*_: object) -> None:
        raise Refusal("KEYSTORE_UNAVAILABLE", "the disk is full", retry_after=1)

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "record", fails)
        await world.erase(here)
    [row] = await world.sql(
        "select state, (select done_at from memory.key_destructions) as done from memory.erasures"
    )
    assert tuple(row) == ("hidden", None)
    await asyncio.sleep(0.25)
    await world.run()
    ledger = Ledger(world.keystore)
    assert [list(entry.slots) for entry in ledger.entries()] == [[here]]
    ledger.close()


async def test_the_command_changes_nothing_where_nothing_tells_of_a_restore(world: World) -> None:
    await world.erase(await world.put("gone-0001"))
    backup = await world.back_up()

    async def command(*more: str, who: str = "user:olga") -> tuple[int, str]:
        env = {"PATH": os.environ["PATH"], "DATABASE_URL": world.url, "TEAMLORE_KEYSTORE": str(world.keystore)}
        targets = {f"TEAMLORE_{name}_TARGET": "127.0.0.1:1" for name in ("AUTH", "SYNC", "INDEX")}
        done = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.compliance.restored", "--principal", who, *more,
            cwd=ROOT, env=env | targets | {"TEAMLORE_SERVICE_TOKEN": "t"}, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, said = await done.communicate()
        return done.returncode or 0, said.decode()

    async def epoch() -> int:
        return int((await world.sql("select epoch from memory.history"))[0]["epoch"])

    code, said = await command()
    assert (code, await epoch()) == (3, 1) and "--force" in said and len(said.splitlines()) == 1
    for who in ("olga", "user:o lga", "user:", "team:x"):
        assert (await command("--force", who=who))[0] == 2
    assert await epoch() == 1
    assert ((await command("--force"))[0], await epoch()) == (0, 2)
    world.url = backup
    assert ((await command())[0], await epoch()) == (0, 3)
    assert ((await command())[0], await epoch()) == (3, 3)
