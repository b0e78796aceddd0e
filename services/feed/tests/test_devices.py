"""Devices: how many one principal may have, who may retire which, and what is left of them for receipts."""

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from kit import audit
from kit.database import Database
from kit.sealing import KeyStore
from services.feed import store as feed_store
from services.feed.store import QUERIES, Store

BANK = "project:devices-1"
MIGRATIONS = Path(__file__).parents[2] / "sync" / "migrations"


@pytest.fixture
async def store(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    monkeypatch.setattr(feed_store, "DEVICES", 3)
    database = await Database.connect(database_url, "feed", QUERIES)
    with audit.calling(audit.CallContext("device.registered", "user:alice", "t")):
        yield Store(database, KeyStore(tmp_path / "keystore.db", make=True))
    await database.close()


async def register(store: Store, *devices: str, principal: str = "user:alice", bank: str = BANK) -> list[str]:
    return [await store.register_device(bank, device, principal) for device in devices]


async def standing(store: Store, principal: str | None = None) -> dict[str, bool]:
    return {each.device_id: each.retired_at is None for each in await store.devices(BANK, principal, "", 100)}


async def test_one_principal_fills_a_bank_for_itself_alone(store: Store) -> None:
    assert await register(store, "a", "b", "c", "a", "d") == ["new", "new", "new", "known", "full"]
    assert await register(store, "e", principal="user:bob") == ["new"]
    assert await register(store, "d", bank="project:devices-2") == ["new"]
    assert await store.retire_device(BANK, "b", "user:alice")
    assert await register(store, "d", "b") == ["new", "full"]
    assert await standing(store, "user:alice") == {"a": True, "b": False, "c": True, "d": True}


async def test_a_device_is_its_principal_s_and_an_admin_may_retire_it(store: Store) -> None:
    await register(store, "a")
    assert await register(store, "a", principal="user:bob") == ["foreign"]
    assert not await store.retire_device(BANK, "a", "user:bob")
    assert not await store.retire_device("project:devices-2", "a", "user:alice")
    assert await standing(store, "user:bob") == {} and await standing(store) == {"a": True}
    assert await store.retire_device(BANK, "a", None)
    assert await store.retire_device(BANK, "a", "user:alice"), "to call again is harmless"
    assert not await store.retire_device(BANK, "a", "user:bob")


async def test_coming_and_going_swells_no_receipt(store: Store) -> None:
    for number in range(12):
        assert await register(store, f"d{number:02}") == ["new"]
        assert await store.retire_device(BANK, f"d{number:02}", "user:alice")
    left = await standing(store)
    assert sorted(left) == ["d08", "d09", "d10", "d11"], "the newest retired ones, and the last"
    assert not any(left.values())


async def test_one_that_comes_back_still_owes_what_it_had_not_confirmed(store: Store, database_url: str) -> None:
    sql = await asyncpg.connect(database_url)
    await sql.execute("select memory.open_bank($1)", BANK)
    await register(store, "a")
    await sql.execute("update memory.heads set head = 9 where bank = $1", BANK)
    await sql.close()
    await store.retire_device(BANK, "a", "user:alice")
    assert await register(store, "a", "b") == ["new", "new"]
    acked = {each.device_id: each.acked_seq for each in await store.devices(BANK, None, "", 10)}
    assert acked == {"a": 0, "b": 9}


async def test_nothing_is_confirmed_before_it_is_there(store: Store, database_url: str) -> None:
    await register(store, "a", "b")
    assert await store.ack_erasures(BANK, "a", "user:alice", 2**63 - 1)
    sql = await asyncpg.connect(database_url)
    await sql.execute("select memory.open_bank($1)", BANK)
    await sql.execute("update memory.heads set head = 9 where bank = $1", BANK)

    async def acked() -> dict[str, int]:
        return {each.device_id: each.acked_seq for each in await store.devices(BANK, None, "", 10)}

    assert await acked() == {"a": 0, "b": 0}
    assert await store.ack_erasures(BANK, "a", "user:alice", 2**63 - 1)
    assert await store.ack_erasures(BANK, "b", "user:alice", 4)
    assert await acked() == {"a": 9, "b": 4}
    # What an older release let pass does not count.
    await sql.execute("update memory.mirrors set acked_seq = 10 where device_id = 'a'")
    await sql.execute((MIGRATIONS / "0061_pre_ack_in_advance.sql").read_text())
    await sql.close()
    assert await acked() == {"a": 0, "b": 4}
