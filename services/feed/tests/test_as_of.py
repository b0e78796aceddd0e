"""What was live at an earlier seq, against a model that remembers every state the bank has been in."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kit.errors import Refusal
from kit.sealing import Slot
from services.feed.tests.history import WRITES, Bank, Op, changes_in, connected

OPS = st.lists(st.one_of(WRITES, WRITES, WRITES, st.tuples(st.just("raise"), st.just((0,)))), min_size=3, max_size=18)
# A memory that came after the seq asked for and was changed since, so that its last step is not its first.
LATE = [("put", (0,)), ("put", (1,)), ("status", (1,)), ("status", (1,)), ("forget", (1,))]


async def play(url: str, folder: Path, ops: list[Op], size: int) -> None:
    sql, database, keys = await connected(url, folder)
    try:
        bank = await Bank.made(sql, database, keys, 128)
        states: dict[int, set[str]] = {}
        for what, numbers in ops:
            # One at a time, so that each seq's state is known.
            for number in sorted(numbers):
                if what == "raise":
                    await bank.raise_horizon()
                    await bank.compact(3)
                else:
                    await bank.write(what, (number,))
                states[(await bank.head())["head"]] = set(await bank.live())
        head = await bank.head()
        erased = {row[0] for row in await sql.fetch("select id from memory.tombstones where bank = $1", bank.name)}
        newest = await bank.live()
        taken = dict(await sql.fetch("select seq, changed_at from memory.changes where bank = $1", bank.name))
        for change in (await bank.listed(size)).values():
            assert change.changed_at.ToDatetime(UTC) == taken[change.seq]
        for seq, live in states.items():
            if seq == 0:
                continue
            if seq < head["horizon"]:
                with pytest.raises(Refusal) as caught:
                    await bank.listed(size, seq)
                assert caught.value.reason == "CURSOR_BEFORE_HORIZON"
                continue
            listed = await bank.listed(size, seq)
            assert set(listed) == live - erased, seq
            for memory_id, change in listed.items():
                assert change.text == f"text of {memory_id}" and not change.deleted
                assert change.changed_at.ToDatetime(UTC) == taken[change.seq]
                assert memory_id not in newest or change.seq == newest[memory_id]
        if head["head"]:
            assert {i: c.seq for i, c in (await bank.listed(size, head["head"])).items()} == newest
    finally:
        keys.close()
        await database.close()
        await sql.close()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ops=OPS, size=st.integers(1, 4))
@example(ops=LATE, size=2)
def test_an_earlier_seq_lists_what_was_live_then_but_for_what_was_erased(
    database_url: str, tmp_path_factory: pytest.TempPathFactory, ops: list[Op], size: int
) -> None:
    asyncio.run(play(database_url, tmp_path_factory.mktemp("keys"), ops, size))


@pytest.fixture
async def bank(database_url: str, tmp_path: Path) -> AsyncIterator[Bank]:
    sql, database, keys = await connected(database_url, tmp_path)
    yield await Bank.made(sql, database, keys)
    keys.close()
    await database.close()
    await sql.close()


async def test_pages_hold_still_while_the_bank_moves_on(bank: Bank) -> None:
    await bank.put(1, 3, 5, 7)
    body, after = await bank.store.live(bank.name, "", 2, 10**6, 4)
    await bank.put(2, 4, 6)
    await bank.forget(1, 5)
    await bank.status(7)
    rest = await bank.store.live(bank.name, after, 1000, 10**6, 4)
    ids = [bank.id(n) for n in (1, 3, 5, 7)]
    seen = changes_in(body) + changes_in(rest[0])
    assert [change.id for change in seen] == ids
    assert [change.seq > 4 for change in seen] == [False, False, True, True]
    assert set(await bank.listed()) == {bank.id(n) for n in (2, 3, 4, 6, 7)}


async def test_a_seq_to_come_and_an_absent_bank_are_refused_by_the_field(bank: Bank) -> None:
    await bank.put(1)
    for name, seq in ((bank.name, 2), (bank.name, 2**62), ("project:nowhere-1", 1)):
        with pytest.raises(Refusal) as caught:
            await bank.store.live(name, "", 10, 10**6, seq)
        assert (caught.value.reason, caught.value.violations[0].field) == ("FIELD_INVALID", "as_of")


async def test_a_forgotten_memory_without_a_key_is_an_alarm_and_no_hole(bank: Bank) -> None:
    await bank.put(1, 2)
    await bank.forget(2)
    bank.keys.destroy([Slot(bank.page, 1)])
    bank.keys._cache.clear()
    body, after = await bank.store.live(bank.name, "", 10, 10**6, 2)
    assert after == bank.id(1) and body
    with pytest.raises(Refusal) as caught:
        await bank.store.live(bank.name, after, 10, 10**6, 2)
    assert (caught.value.reason, caught.value.metadata["memory_id"]) == ("KEY_MISSING", bank.id(2))
