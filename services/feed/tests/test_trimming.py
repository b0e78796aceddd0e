"""Trimming takes nothing from anybody: whoever is told that the horizon passed reconciles, and then holds what all hold."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.errors import Refusal
from services.feed.cursors import Cursor
from services.feed.tests.history import WRITES, Bank, Mirror, Op, connected, digest_of

OPS = st.lists(
    st.one_of(
        WRITES,
        WRITES,
        st.tuples(st.sampled_from(["raise", "compact", "step"]), st.tuples(st.integers(1, 4))),
    ),
    min_size=4,
    max_size=25,
)


async def play(url: str, folder: Path, ops: list[Op]) -> None:
    sql, database, keys = await connected(url, folder)
    try:
        bank = await Bank.made(sql, database, keys, 128)
        every, late = Mirror(bank), Mirror(bank)
        for what, numbers in ops:
            if what == "step":
                await late.step(numbers[0])
                continue
            before = await bank.head()
            if what == "raise":
                await bank.raise_horizon()
            elif what == "compact":
                await bank.compact(numbers[0])
            else:
                await bank.write(what, numbers)
                await every.catch_up()
                assert every.reconciled == 0, "who keeps up is never sent back"
                continue
            after = await bank.head()
            assert [before[w] for w in ("head", "live", "digest")] == [after[w] for w in ("head", "live", "digest")]
        await late.catch_up(2)
        fresh = Mirror(bank)
        await fresh.catch_up()
        head, live = await bank.head(), await bank.live()
        for mirror in (every, late, fresh):
            assert mirror.holds == live
            assert mirror.cursor is None or mirror.cursor.seq == head["head"]
        assert digest_of(live) == (head["live"], int(head["digest"]))
        # Nothing dead is left below the horizon once the last of it was compacted, and nothing alive has gone.
        await bank.compact(5)
        left = await sql.fetch(
            "select seq from memory.changes where bank = $1 and seq <= $2 order by seq", bank.name, head["horizon"]
        )
        rows = await sql.fetch(
            "select last_seq from memory.memories where bank = $1 and last_seq <= $2 order by 1", bank.name, head["horizon"]
        )
        assert [row[0] for row in left] == [row[0] for row in rows]
    finally:
        keys.close()
        await database.close()
        await sql.close()


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ops=OPS)
def test_a_mirror_through_any_trimming_equals_one_that_followed_all(
    database_url: str, tmp_path_factory: pytest.TempPathFactory, ops: list[Op]
) -> None:
    asyncio.run(play(database_url, tmp_path_factory.mktemp("keys"), ops))


@pytest.fixture
async def bank(database_url: str, tmp_path: Path) -> AsyncIterator[Bank]:
    sql, database, keys = await connected(database_url, tmp_path)
    yield await Bank.made(sql, database, keys)
    keys.close()
    await database.close()
    await sql.close()


async def test_at_exactly_the_horizon_one_goes_on_and_one_before_it_does_not(bank: Bank) -> None:
    await bank.put(1, 2, 3)
    there = await bank.store.head(bank.name)
    below = (await bank.store.page(bank.name, None, 2, 10**6)).end
    await bank.erase(3)
    mirror = Mirror(bank, Cursor(there.epoch, 3, there.nonce))
    await bank.sql.execute("update index.cursors set seq = 3 where bank = $1", bank.name)
    row = await bank.raise_horizon()
    assert (row["was"], row["now_at"], row["waits_for"]) == (0, 3, "index")
    assert await bank.compact(10) == 1  # the step that the erasure superseded, and with it the horizon's own
    await mirror.catch_up()
    assert mirror.reconciled == 0 and mirror.cursor is not None and mirror.cursor.seq == 4
    for cursor, reason in (
        (below, "CURSOR_BEFORE_HORIZON"),
        (None, "CURSOR_BEFORE_HORIZON"),
        (Cursor(there.epoch, 3, there.nonce + 1), "CURSOR_DIVERGED"),
    ):
        with pytest.raises(Refusal) as caught:
            await bank.store.page(bank.name, cursor, 10, 10**6)
        assert caught.value.reason == reason
    # At the head, whose own step has gone, the cursor is still that of the head.
    await bank.sql.execute("update index.cursors set seq = 9 where bank = $1", bank.name)
    await bank.raise_horizon()
    await bank.compact(10)
    head = await bank.store.head(bank.name)
    assert (head.horizon, head.head) == (4, 4)
    assert not (await bank.store.page(bank.name, Cursor(head.epoch, 4, head.nonce), 10, 10**6)).more
