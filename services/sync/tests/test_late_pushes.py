"""What is pushed late: a chunk of a retain that went, and an id that was forgotten before anyone made its bank."""

import asyncio
import itertools
import uuid

import asyncpg
import pytest

from kit.errors import from_driver
from services.sync.pushing import FORGOTTEN, TAKEN, Terms
from services.sync.store import QUERIES
from services.sync.tests.test_forgetting import OTHER, PUT, forget, one
from services.sync.tests.test_guard import check_digest, unique_slot
from services.sync.tests.test_pushing import BANK, Bench, record


@pytest.mark.parametrize("erase", [True, False])
async def test_a_late_chunk_of_what_was_forgotten_is_refused_and_no_other(bench: Bench, erase: bool) -> None:
    for number in (1, 2):
        await one(bench, BANK, f"alice-c{number}", retain="retain-1")
    assert await one(bench, BANK, "bobs-one", "user:bob", "retain-1") == "stored"
    assert await forget(bench, BANK, "alice-c1", erase=erase) == (2, 2 * erase)
    head = "select head from memory.heads where bank = $1"
    before = await bench.superuser(head, BANK)
    sent = [record(f"alice-c{number}", f"chunk {number}") for number in (3, 4)]
    sent[0].metadata["_retain_id"].string_value = "retain-1"
    assert [f"{each.status} {each.reason}" for each in await bench.push(*sent)] == [
        f"rejected {FORGOTTEN}",
        "stored ",
    ]
    # For good, also without the word; and it is no step that a mirror would be told.
    assert await one(bench, BANK, "alice-c3") == f"rejected {FORGOTTEN}"
    assert await bench.superuser(head, BANK) == before + 1
    audited = (
        "select string_agg(name || ' ' || objects, ', ' order by audit_id desc) from compliance.audit_calls"
    )
    assert (await bench.superuser(audited)).startswith("memory.push 2, memory.forget 2, ")
    # Another author's, another retain and another bank are not touched.
    assert await one(bench, BANK, "bobs-two", "user:bob", "retain-1") == "stored"
    assert await one(bench, BANK, "alice-d1", retain="retain-2") == "stored"
    assert await one(bench, OTHER, "alice-e1", retain="retain-1") == "stored"


async def test_a_late_chunk_alone_counts_for_no_quota_and_tells_nobody_of_a_commit(bench: Bench) -> None:
    bench.under(Terms(records_per_day=2))
    await one(bench, BANK, "alice-c1", retain="retain-1")
    await forget(bench, BANK, "alice-c1")
    bench.heard.clear()
    for number in (2, 3, 4):
        assert await one(bench, BANK, f"alice-c{number}", retain="retain-1") == f"rejected {FORGOTTEN}"
    # What a refused push buries stands in the audit, like all that a call changes.
    audited = "select count(*) from compliance.audit_calls where name = 'memory.push' and objects = 1"
    assert await bench.superuser(audited) == 4
    assert (await one(bench, BANK, "alice-d1", retain="retain-2"), bench.heard) == ("stored", [BANK])


@pytest.mark.parametrize("what", ["erase", "hide"])
@pytest.mark.parametrize("order", ["push first", "forget first"])
async def test_a_chunk_that_comes_while_its_retain_goes_is_gone_or_refused(
    bench: Bench, database_url: str, order: str, what: str
) -> None:
    """Whoever has the head decides; a status change that holds the new chunk's row meanwhile makes no deadlock."""
    tag, push = b"retain-1", itertools.count(1)

    def chunk() -> tuple[object, ...]:
        ids = [f"chunk-000{next(push)}"]
        return (PUT, BANK, "user:alice", ids, [""], [None], [unique_slot()], [0], [b"x"], [tag])

    forget_first = {
        "erase": "select deleted + buried from memory.erase($1, $2, 'user:o', 'op')",
        "hide": "select deleted + buried from memory.hide($1, $2)",
    }[what]
    asked = (forget_first, BANK, ["chunk-0001"])
    first, second, third = [await asyncpg.connect(database_url) for _ in range(3)]
    try:
        await first.execute("select memory.open_bank($1)", BANK)
        await first.fetch(*chunk())
        held = first.transaction()
        await held.start()
        if order == "push first":
            assert len(await first.fetch(*chunk())) == 1
            later = asyncio.create_task(second.fetchval(*asked))
        else:
            assert await first.fetchval(*asked) == 1
            later = asyncio.create_task(second.fetch(*chunk()))
        await asyncio.wait({later}, timeout=0.2)
        assert not later.done()
        await held.commit()
        assert await later == (2 if order == "push first" else [])
        assert await third.fetchval("select count(*) from memory.live_memories where bank = $1", BANK) == 0
        assert await third.fetch(*chunk()) == []
        await check_digest(third, BANK)
    finally:
        for each in (first, second, third):
            await each.close()


async def test_what_is_erased_again_after_a_restore_binds_its_late_chunks_again(
    bench: Bench, database_url: str
) -> None:
    connection, slots = await asyncpg.connect(database_url), [unique_slot() for _ in range(2)]
    try:
        await connection.execute("select memory.open_bank($1)", BANK)
        sent = [
            (PUT, BANK, "user:alice", [memory_id], [""], [None], [slot], [0], [b"x"], [b"retain-1"])
            for memory_id, slot in zip(("chunk-0001", "chunk-0002"), slots, strict=True)
        ]
        assert len(await connection.fetch(*sent[0])) == 1
        again = "select memory.erase_again('op', $1, $2, $3, $4, 'user:o')"
        await connection.execute(again, BANK, ["chunk-0001"], slots[:1], [0])
        assert await connection.fetch(*sent[1]) == []
    finally:
        await connection.close()


async def test_what_was_hidden_before_the_upgrade_binds_its_late_chunks(bench: Bench) -> None:
    await one(bench, BANK, "alice-c1", retain="retain-1")
    await forget(bench, BANK, "alice-c1", erase=False)
    new = "memory.require_bank_id, memory.claim_for_burial, memory.spend_retains, memory.lock_doomed"
    migration = QUERIES.with_name("migrations") / "0080_pre_late_pushes.sql"
    connection = await asyncpg.connect(bench.url)
    try:
        await connection.execute(f"drop table memory.spent_retains; drop function {new};")
        await connection.execute(migration.read_text())
    finally:
        await connection.close()
    assert await one(bench, BANK, "alice-c2", retain="retain-1") == f"rejected {FORGOTTEN}"


async def test_under_a_storm_nothing_is_live_of_a_retain_that_went(bench: Bench, database_url: str) -> None:
    """Pushes of chunks, status changes of them and forgets of their first ones, all at once and without a deadlock."""
    retains = [f"{number:016}".encode() for number in range(6)]
    pool = await asyncpg.create_pool(database_url, min_size=8, max_size=8)
    await pool.execute("select memory.open_bank($1)", BANK)

    async def push(retain: int, number: int) -> None:
        ids = [f"chunk-{retain}-{number:03}-{part}" for part in range(3)]
        slots = [unique_slot() for _ in ids]
        row = (
            BANK,
            "user:alice",
            ids,
            [""] * 3,
            [None] * 3,
            slots,
            [0] * 3,
            [b"x"] * 3,
            [retains[retain]] * 3,
        )
        await pool.fetch(PUT, *row)
        change = "select outcome from memory.status($1, $2, 1, 'suspect', null, null, null, null, false)"
        await pool.fetch(change, BANK, ids[0])

    async def go(retain: int, number: int) -> None:
        await asyncio.sleep(0.01 * retain)
        asked = (BANK, [f"chunk-{retain}-{number:03}-0"])
        if number % 2:
            await pool.fetch("select memory.hide($1, $2)", *asked)
        else:
            await pool.fetch("select memory.erase($1, $2, 'user:o', $3)", *asked, uuid.uuid4().hex)

    try:
        pushes = [push(retain, number) for number in range(12) for retain in range(len(retains))]
        forgets = [go(retain, number) for number in (0, 1) for retain in range(len(retains))]
        await asyncio.gather(*pushes, *forgets)
        left = """select count(*) from memory.live_memories m join memory.memories using (bank, id)
            join memory.spent_retains using (bank, retain_tag)"""
        assert await pool.fetchval("select count(*) from memory.spent_retains") > 0
        assert await pool.fetchval(left) == 0
        async with pool.acquire() as connection:
            await check_digest(connection, BANK)
    finally:
        await pool.close()


@pytest.mark.parametrize("erase", [True, False])
async def test_an_absent_bank_stays_absent_and_buries_all_the_same(bench: Bench, erase: bool) -> None:
    new = "project:forget-new"
    await one(bench, BANK, "elsewhere")
    assert await forget(bench, new, "late-one", "elsewhere", erase=erase) == (0, 0)
    assert await bench.superuser("select count(*) from memory.banks where bank = $1", new) == 0
    audited = "select name || ' ' || objects from compliance.audit_calls where bank = $1"
    assert await bench.superuser(audited, new) == "memory.forget 2"
    assert await one(bench, new, "early-one") == "stored"
    assert await one(bench, new, "late-one") == f"rejected {FORGOTTEN}"
    assert await one(bench, new, "elsewhere") == f"rejected {FORGOTTEN}"
    assert await one(bench, BANK, "elsewhere") == "unchanged"
    assert await one(bench, OTHER, "late-one") == f"rejected {TAKEN}"
    assert await bench.superuser("select head from memory.heads where bank = $1", new) == 1


@pytest.mark.parametrize("bank", ["nonsense", "team:api", "client:x:y", "private:bob"])
async def test_what_no_bank_can_be_called_claims_no_id(bench: Bench, bank: str) -> None:
    with pytest.raises(asyncpg.CheckViolationError) as caught:
        await forget(bench, bank, "late-one")
    seen = from_driver(caught.value)
    assert seen is not None and seen.reason == "INVALID_SCOPE"
    assert await bench.superuser("select count(*) from memory.memory_ids") == 0


@pytest.mark.parametrize("order", ["forget first", "push first"])
async def test_a_forget_and_the_push_that_makes_the_bank_decide_by_who_commits_first(
    bench: Bench, database_url: str, order: str
) -> None:
    new, slot = "project:forget-new", unique_slot()
    first, second = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
    store = [new, "user:alice", ["late-one"], [""], [None], [slot], [0], [b"x"], [None]]
    erase = ("select deleted, erased, buried from memory.erase($1, $2, 'user:o', 'op')", new, ["late-one"])
    try:
        held = first.transaction()
        await held.start()
        if order == "push first":
            await first.execute("select memory.open_bank($1)", new)
            assert len(await first.fetch(PUT, *store)) == 1
            later = asyncio.create_task(second.fetchrow(*erase))
        else:
            assert tuple(await first.fetchrow(*erase)) == (0, 0, 1)
            await second.execute("select memory.open_bank($1)", new)
            later = asyncio.create_task(second.fetch(PUT, *store))
        await asyncio.wait({later}, timeout=0.2)
        assert not later.done()
        await held.commit()
        if order == "push first":
            assert tuple(await later) == (1, 1, 0)
        else:
            assert await later == []
        assert await first.fetchval("select count(*) from memory.live_memories where bank = $1", new) == 0
    finally:
        await first.close()
        await second.close()
