"""The schema's own guard: wrong writes are refused, whoever makes them, and numbers stay dense under a crowd."""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

PUT = "select stored_id, stored_seq from memory.put($1, 'user:alice', $2, $3, $4, $5, $6, $7)"
ROLES = ("auth", "sync", "feed", "compliance", "index")


def unique_slot() -> int:
    return int.from_bytes(os.urandom(8), "big") >> 2


async def put(connection: asyncpg.Connection, bank: str, ids: list[str]) -> list[tuple[str, int]]:
    n = len(ids)
    async with connection.transaction():
        rows = await connection.fetch(
            PUT, bank, ids, [""] * n, [None] * n, [unique_slot() for _ in ids], [0] * n, [b"sealed"] * n
        )
        if rows:
            won = [(r[0], r[1]) for r in rows]
            await connection.fetch(
                "select memory.add_to_digest($1, $2, $3)", bank, [w[0] for w in won], [w[1] for w in won]
            )
    return [(r[0], r[1]) for r in rows]


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database_url)
    for bank in ("project:a", "project:b"):
        await connection.execute("select memory.open_bank($1)", bank)
    await put(connection, "project:a", ["aaaaaaaa", "bbbbbbbb"])
    yield connection
    await connection.close()


WRONG = {
    "update without a change": "update memory.memories set version = 2 where id = 'aaaaaaaa'",
    "update with an invented seq": "update memory.memories set version = 2, last_seq = 99 where id = 'aaaaaaaa'",
    "update with another memory's seq": "update memory.memories set version = 2, last_seq = 2 where id = 'aaaaaaaa'",
    "insert without a change": "insert into memory.memories (bank, id, author, key_page, key_slot, sealed, last_seq)"
    " values ('project:a', 'dddddddd', 'u', 1, 1, 'x', 50)",
    "insert with a foreign seq": "insert into memory.memories (bank, id, author, key_page, key_slot, sealed, last_seq)"
    " values ('project:a', 'dddddddd', 'u', 1, 1, 'x', 1)",
    "delete without a tombstone": "delete from memory.memories where id = 'aaaaaaaa'",
    "a row moved to another bank": "update memory.memories set bank = 'project:b', last_seq = 9 where id = 'aaaaaaaa'",
    "truncate of memories": "truncate memory.memories",
    "truncate of changes": "truncate memory.changes cascade",
    "truncate of tombstones": "truncate memory.tombstones",
}


@pytest.mark.parametrize("what", WRONG)
async def test_even_the_owner_cannot_write_wrongly(db: asyncpg.Connection, what: str) -> None:
    with pytest.raises(asyncpg.PostgresError) as caught:
        async with db.transaction():
            await db.execute(WRONG[what])
    assert caught.value.sqlstate in ("23514", "23503")


@pytest.mark.parametrize("role", ROLES)
async def test_no_service_writes_the_tables_itself(db: asyncpg.Connection, role: str) -> None:
    tries = {
        **WRONG,
        "a change for nobody": "insert into memory.changes (bank, seq, memory_id, kind)"
        " values ('project:a', 3, 'zzzzzzzz', 'upsert')",
        "a change removed": "delete from memory.changes",
        "a head moved": "update memory.heads set head = head + 1",
        "a hold lifted by hand": "delete from memory.holds",
        "an erasure declared done": "update memory.erasures set state = 'server_done'",
    }
    for what, sql in tries.items():
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with db.transaction():
                await db.execute(f"set local role teamlore_{role}")
                await db.execute(sql)
        assert await db.fetchval("select current_user") == "postgres", what


async def test_an_id_twice_in_one_call_stores_nothing(db: asyncpg.Connection) -> None:
    before = await db.fetchval("select head from memory.heads where bank = 'project:a'")
    with pytest.raises(asyncpg.PostgresError):
        await put(db, "project:a", ["cccccccc", "cccccccc"])
    assert await db.fetchval("select head from memory.heads where bank = 'project:a'") == before


async def test_an_id_lives_in_one_bank_only_and_never_returns(db: asyncpg.Connection) -> None:
    assert await put(db, "project:b", ["aaaaaaaa"]) == []
    assert [i for i, _ in await put(db, "project:a", ["aaaaaaaa", "eeeeeeee"])] == ["eeeeeeee"]
    row = await db.fetchrow("select * from memory.erase('project:a', '{aaaaaaaa,nothere1}', 'user:a', 'op1')")
    assert (row["deleted"], row["erased"], row["through"], row["buried"]) == (1, 1, 5, 1)
    assert await put(db, "project:a", ["aaaaaaaa"]) == []
    assert await db.fetchval("select count(*) from memory.key_destructions where done_at is null") == 1


async def test_the_trail_of_a_subject_names_each_memory_once_until_it_is_erased(
    db: asyncpg.Connection,
) -> None:
    put_tagged = "select stored_id from memory.put('project:b', 'user:bob', $1, $2, $3, $4, $5, $6, $7)"
    assert await db.fetchval(put_tagged, ["cccccccc"], [""], [None], [7], [0], [b"x"], [None]) == "cccccccc"
    trail = (
        "select bank, object_id from memory.subject_trail where principal = $1 and role = 'author' order by 2"
    )
    assert [tuple(r) for r in await db.fetch(trail, "user:bob")] == [("project:b", "cccccccc")]
    assert [r["object_id"] for r in await db.fetch(trail, "user:alice")] == ["aaaaaaaa", "bbbbbbbb"]
    await db.execute(
        "insert into memory.subject_links values ('user:bob', 'entry', 'project:b', 'e1', 'editor')"
    )
    assert await db.fetchval("select count(*) from memory.subject_trail where principal = 'user:bob'") == 2
    await db.execute("select memory.erase('project:a', '{aaaaaaaa}', 'user:a', 'op1')")
    assert [r["object_id"] for r in await db.fetch(trail, "user:alice")] == ["bbbbbbbb"]


async def test_a_hold_stops_forget_and_erase_and_moves_no_number(db: asyncpg.Connection) -> None:
    await db.execute("select memory.place_hold('project:a', 'h1', 'M-1', 'user:officer', null)")
    for sql in (
        "select memory.forget('project:a', '{aaaaaaaa}')",
        "select * from memory.erase('project:a', '{aaaaaaaa}', 'user:a', 'op1')",
    ):
        with pytest.raises(asyncpg.PostgresError) as caught:
            await db.execute(sql)
        assert caught.value.sqlstate == "TL001"
    assert await db.fetchval("select head from memory.heads where bank = 'project:a'") == 2
    assert await db.fetchval("select memory.lift_hold('project:a', 'h1', 'user:officer')")
    assert await db.fetchval("select memory.forget('project:a', '{aaaaaaaa}')") == 1


async def check_digest(db: asyncpg.Connection, bank: str) -> None:
    """The head's digest is that of the rows."""
    row = await db.fetchrow(
        "select h.live, h.digest, count(m.id) as n,"
        " coalesce(sum(memory.digest_term(m.id, m.last_seq)), 0) % 18446744073709551616 as d"
        " from memory.heads h left join memory.memories m on m.bank = h.bank and not m.forgotten where h.bank = $1"
        " group by h.live, h.digest",
        bank,
    )
    assert (row["live"], row["digest"]) == (row["n"], row["d"])


async def race(
    url: str, seconds: float, banks: int = 8, writers: int = 32, puts_only: bool = False
) -> list[str]:
    """32 writers on 8 banks while a watcher follows each; gives what the checker has to complain of."""
    names = [f"project:race{i}" for i in range(banks)]
    setup = await asyncpg.connect(url)
    for name in names:
        await setup.execute("select memory.open_bank($1)", name)
    stop = time.monotonic() + seconds
    acknowledged: dict[str, int] = dict.fromkeys(names, 0)
    seen: dict[str, list[int]] = {name: [] for name in names}
    writing = writers

    async def writer(number: int) -> None:
        nonlocal writing
        connection = await asyncpg.connect(url)
        rng, mine = random.Random(number), []
        while time.monotonic() < stop:
            bank = rng.choice(names)
            if mine and not puts_only and rng.random() < 0.2:
                victim_bank, victim = mine.pop()
                if rng.random() < 0.5:
                    done = await connection.fetchval("select memory.forget($1, $2)", victim_bank, [victim])
                else:
                    sql = "select erased from memory.erase($1, $2, 'user:a', $3)"
                    done = await connection.fetchval(sql, victim_bank, [victim], os.urandom(8).hex())
                acknowledged[victim_bank] += done
            else:
                ids = [f"{rng.getrandbits(64):016x}" for _ in range(rng.choice((1, 5, 20)))]
                won = await put(connection, bank, ids)
                acknowledged[bank] += len(won)
                mine.append((bank, ids[0]))
        writing -= 1
        await connection.close()

    async def watcher(bank: str) -> None:
        connection, cursor, idle = await asyncpg.connect(url), 0, 0
        while idle < 3:
            rows = await connection.fetch(
                "select seq from memory.change_log where bank = $1 and seq > $2 order by seq limit 500",
                bank,
                cursor,
            )
            seen[bank] += [row["seq"] for row in rows]
            cursor = rows[-1]["seq"] if rows else cursor
            idle = 0 if rows or writing else idle + 1
            await asyncio.sleep(0.01)
        await connection.close()

    await asyncio.gather(*(writer(i) for i in range(writers)), *(watcher(name) for name in names))
    complaints = []
    for name in names:
        if seen[name] != list(range(1, len(seen[name]) + 1)):
            complaints.append(f"{name}: gap, repeat or wrong order")
        if len(seen[name]) != acknowledged[name]:
            complaints.append(f"{name}: {acknowledged[name]} acknowledged, {len(seen[name])} seen")
        if not puts_only:
            await check_digest(setup, name)
    await setup.close()
    return complaints


async def test_thirty_two_writers_leave_no_gap(database_url: str) -> None:
    assert await race(database_url, float(os.environ.get("RACE_SECONDS", "3"))) == []


async def test_without_the_head_lock_the_checker_goes_red(database_url: str) -> None:
    """The checker can fail: numbers taken from a sequence instead of the locked head are skipped by the watchers."""
    connection = await asyncpg.connect(database_url)
    sabotage = Path(__file__).with_name("sabotage_no_head_lock.sql").read_text()
    await connection.execute(sabotage)
    await connection.close()
    complaints = await race(database_url, 2, banks=1, writers=16, puts_only=True)
    assert any("gap" in complaint or "seen" in complaint for complaint in complaints)


async def test_a_device_is_one_principals_in_every_bank(db: asyncpg.Connection) -> None:
    register = "select memory.register_device($1, $2, $3)"
    assert await db.fetchval(register, "project:a", "d" * 32, "user:bob")
    assert await db.fetchval(register, "project:a", "d" * 32, "user:bob")
    assert await db.fetchval(register, "project:b", "d" * 32, "user:alice") is None
    assert await db.fetchval(register, "project:b", "d" * 32, "user:bob")


async def test_a_bank_without_a_name_is_refused(db: asyncpg.Connection) -> None:
    for bank in ("project:", "client::x", "client:a:", "nolayer"):
        with pytest.raises(asyncpg.CheckViolationError):
            await db.execute("select memory.open_bank($1)", bank)
