"""A page that was fetched ahead of its time tells no less, no more and nothing older than one that was not."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kit.sealing import Slot
from services.feed.tests.history import WRITES, Bank, Op, changes_in, connected

OPS = st.lists(st.one_of(WRITES, st.tuples(st.just("read"), st.just(()))), min_size=4, max_size=20)
# The page after the first is fetched, then the bank grows, then that page is read.
GROWS: list[Op] = [("put", (0, 1, 2)), ("read", ()), ("put", (3,)), ("read", ()), ("read", ())]


async def play(url: str, folder: Path, ops: list[Op], limit: int) -> None:
    sql, database, keys = await connected(url, folder)
    try:
        bank = await Bank.made(sql, database, keys, 128)
        cursor, holds = None, dict[str, int]()

        async def read() -> bool:
            nonlocal cursor
            head = (await bank.head())["head"]
            page = await bank.store.page(bank.name, cursor, limit, 10**6, ahead)
            if ahead._task is not None:
                await asyncio.wait([ahead._task])
            assert page.more or page.end.seq >= head, "a watcher would wait for a bell that has rung"
            assert cursor is None or page.start == cursor
            for change in changes_in(page.changes):
                assert page.start.seq < change.seq <= page.end.seq
                if change.deleted:
                    holds.pop(change.id, None)
                else:
                    holds[change.id] = change.seq
            cursor = page.end
            return page.more

        async with bank.store.reading_ahead(bank.name, limit) as ahead:
            for what, numbers in ops:
                if what == "read":
                    await read()
                else:
                    await bank.write(what, numbers)
            while await read():
                pass
            assert holds == await bank.live()
    finally:
        keys.close()
        await database.close()
        await sql.close()


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ops=OPS, limit=st.integers(1, 3))
@example(ops=GROWS, limit=2)
def test_reading_ahead_misses_nothing_and_waits_for_nothing(
    database_url: str, tmp_path_factory: pytest.TempPathFactory, ops: list[Op], limit: int
) -> None:
    asyncio.run(play(database_url, tmp_path_factory.mktemp("keys"), ops, limit))


async def test_what_is_erased_while_it_waits_is_not_told(database_url: str, tmp_path: Path) -> None:
    sql, database, keys = await connected(database_url, tmp_path)
    bank = await Bank.made(sql, database, keys)
    await bank.put(0, 1, 2, 3, 4)
    async with bank.store.reading_ahead(bank.name, 2) as ahead:
        page = await bank.store.page(bank.name, None, 2, 10**6, ahead)
        assert ahead._task is not None
        await ahead._task
        await bank.erase(2)
        keys.destroy([Slot(bank.page, 2)])
        page = await bank.store.page(bank.name, page.end, 2, 10**6, ahead)
    assert [change.id for change in changes_in(page.changes)] == [bank.id(3)]
    assert ahead._task is None and page.more
    keys.close()
    await database.close()
    await sql.close()


async def test_who_asks_for_another_place_gets_that(database_url: str, tmp_path: Path) -> None:
    sql, database, keys = await connected(database_url, tmp_path)
    bank = await Bank.made(sql, database, keys)
    await bank.put(0, 1, 2, 3, 4)
    async with bank.store.reading_ahead(bank.name, 2) as ahead:
        for _ in range(2):
            page = await bank.store.page(bank.name, None, 2, 10**6, ahead)
            assert [change.id for change in changes_in(page.changes)] == [bank.id(0), bank.id(1)]
    keys.close()
    await database.close()
    await sql.close()


async def test_a_page_reads_its_own_memories_and_not_all_of_the_bank(database_url: str, tmp_path: Path) -> None:
    sql, database, keys = await connected(database_url, tmp_path)
    bank = await Bank.made(sql, database, keys)
    n = 5_000
    put = "select count(*) from memory.put($1, 'user:alice', $2, $3, $4, $5, $6, $7, $8)"
    ids, none = [bank.id(number) for number in range(n)], [None] * n
    await sql.execute(put, bank.name, ids, [""] * n, none, list(range(n)), [0] * n, [b"x" * 500] * n, none)
    # As a server does by itself: tables of one row, as `memory.history` is, stay unknown to the planner.
    await sql.execute("analyze memory.memories, memory.changes")
    for query, values in (
        ("page", (bank.name, 1000, 500)),
        ("live", (bank.name, "", 500)),
        ("live_as_of", (bank.name, "", n, 500)),
    ):
        plan = await sql.fetchval(f"explain (analyze, format json) {database.sql(query)}", *values)
        steps = list(_steps(json.loads(plan)[0]["Plan"]))
        assert "Memoize" not in {step["Node Type"] for step in steps}, "no memory is asked for twice"
        seen = [
            step["Actual Rows"] * step["Actual Loops"]
            for step in steps
            if step.get("Relation Name") in ("memories", "changes")
        ]
        assert seen and max(seen) <= 501, (query, seen)
    keys.close()
    await database.close()
    await sql.close()


def _steps(step: Any) -> Iterator[Any]:
    yield step
    for below in step.get("Plans", []):
        yield from _steps(below)
