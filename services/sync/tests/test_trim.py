"""The command that raises horizons: what it waits for, what it keeps for ever, and what it leaves behind when stopped."""

import asyncio
import os
import subprocess
import sys
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from kit import audit
from kit.database import Database
from services.sync.pushing import FORGOTTEN
from services.sync.store import QUERIES
from services.sync.tests.test_guard import check_digest, put
from services.sync.tests.test_pushing import BANK, Bench, record
from services.sync.trim import Done, NoBank, Terms, trim

ROOT = Path(__file__).resolve().parents[3]
NOW = Terms(timedelta(0), timedelta(days=90))
DEVICE = "select memory.admit_device($1, $2, 'user:bob', 50)"
DAY_OLD = "update memory.changes set changed_at = changed_at - interval '1 day' where bank = $1 and seq <= $2"


async def followed(bench: Bench, seq: int = 1_000_000, bank: str = BANK) -> None:
    await bench.superuser(
        "insert into index.cursors values ($1, $2) on conflict (bank) do update set seq = excluded.seq",
        bank,
        seq,
    )


async def horizon(bench: Bench, bank: str = BANK) -> int:
    return int(await bench.superuser("select horizon from memory.heads where bank = $1", bank))


async def forget(bench: Bench, *ids: str, erase: bool = True) -> None:
    with audit.calling(audit.CallContext("memory.forget", "user:alice", "t")):
        if erase:
            await bench.store.erase(BANK, ids, "user:alice", uuid.uuid4().hex)
        else:
            await bench.store.forget(BANK, ids)


async def seqs(bench: Bench) -> list[int]:
    return list(
        await bench.superuser("select array_agg(seq order by seq) from memory.changes where bank = $1", BANK)
    )


async def test_what_was_erased_or_buried_before_the_horizon_never_returns(bench: Bench) -> None:
    await bench.push(record("aaaaaaaa"), record("bbbbbbbb", "other"), record("cccccccc", "third"))
    await forget(bench, "aaaaaaaa", "neverhere")
    await forget(bench, "bbbbbbbb", erase=False)
    await followed(bench)
    assert await trim(bench.database, NOW, BANK) == Done(1, 1, 0, 4)
    assert await seqs(bench) == [3, 6], "what is live and what is hidden keep their last step"
    again = await bench.push(record("aaaaaaaa"), record("neverhere"), record("bbbbbbbb", "other"))
    assert [answer.reason for answer in again] == [FORGOTTEN] * 3
    await forget(bench, "aaaaaaaa", "neverhere", "bbbbbbbb")
    assert await horizon(bench) == 6
    assert await bench.superuser("select head from memory.heads where bank = $1", BANK) == 7, (
        "only bbbbbbbb was there"
    )
    db = await asyncpg.connect(bench.url)
    await check_digest(db, BANK)
    await db.close()


async def test_it_leaves_what_is_young(bench: Bench) -> None:
    await bench.push(*(record(f"memory-{n}", f"text {n}") for n in range(4)))
    await followed(bench)
    day = Terms(timedelta(hours=12), timedelta(days=90))
    assert (await trim(bench.database, day, BANK)).raised == 0
    await bench.superuser(DAY_OLD, BANK, 3)
    assert (await trim(bench.database, day, BANK)).raised == 1
    assert await horizon(bench) == 3
    # A clock that was set back makes a later step older: the first young one still stops it.
    await bench.superuser("update memory.changes set changed_at = now() where bank = $1 and seq = 4", BANK)
    await bench.push(record("memory-9", "text 9"))
    await bench.superuser(
        "update memory.changes set changed_at = now() - interval '9 days' where bank = $1 and seq = 5", BANK
    )
    assert (await trim(bench.database, day, BANK)).raised == 0


async def test_it_waits_for_the_index(bench: Bench) -> None:
    await bench.push(*(record(f"memory-{n}", f"text {n}") for n in range(4)))
    assert await trim(bench.database, NOW, BANK) == Done(1, 0, 1, 0)
    await followed(bench, 2)
    assert await trim(bench.database, NOW, BANK) == Done(1, 1, 1, 0)
    assert await horizon(bench) == 2
    # The index begins again from nothing: the horizon does not come back.
    await followed(bench, 0)
    assert await trim(bench.database, NOW, BANK) == Done(1, 0, 1, 0)
    assert await horizon(bench) == 2


async def test_it_waits_for_the_word_of_devices_in_use(bench: Bench) -> None:
    await bench.push(*(record(f"memory-{n}", f"text {n}") for n in range(4)))
    await followed(bench)
    db = await asyncpg.connect(bench.url)
    for device in ("quick", "slow", "away"):
        await db.execute(DEVICE, BANK, device)
    await bench.push(record("memory-5", "text 5"))
    await forget(bench, "memory-0")
    await forget(bench, "memory-1", erase=False)
    assert await trim(bench.database, NOW, BANK) == Done(1, 1, 1, 2)
    assert await horizon(bench) == 5, "up to before the first tombstone that nobody has confirmed"
    ack = "select memory.ack_erasure($1, $2, 'user:bob', $3)"
    await db.execute(ack, BANK, "quick", 7)
    await db.execute(ack, BANK, "slow", 6)
    assert (await trim(bench.database, NOW, BANK)).waiting == 1 and await horizon(bench) == 5
    await db.execute(
        "update memory.mirrors set last_seen_at = now() - interval '91 days' where device_id = 'away'"
    )
    assert (await trim(bench.database, NOW, BANK)).waiting == 1 and await horizon(bench) == 6
    await db.execute("select memory.retire_device($1, 'slow', null)", BANK)
    assert await trim(bench.database, NOW, BANK) == Done(1, 1, 0, 0)
    assert (await horizon(bench), await seqs(bench)) == (7, [3, 4, 5, 7]), "the hidden one's last step stays"
    await db.close()


async def test_a_held_bank_keeps_its_history(bench: Bench) -> None:
    await bench.push(record("aaaaaaaa"), record("bbbbbbbb", "other"))
    await forget(bench, "aaaaaaaa")
    await followed(bench)
    await bench.superuser("select memory.raise_horizon($1, interval '0', interval '1 day')", BANK)
    await bench.push(record("cccccccc", "third"))
    await bench.superuser("select memory.place_hold($1, 'h', 'M-1', 'user:o', null)", BANK)
    assert await trim(bench.database, NOW, BANK) == Done(1, 0, 1, 0)
    assert (await horizon(bench), await seqs(bench)) == (3, [1, 2, 3, 4])
    await bench.superuser("select memory.lift_hold($1, 'h', 'user:o')", BANK)
    assert await trim(bench.database, NOW, BANK) == Done(1, 1, 0, 2)


async def test_a_hold_that_comes_at_the_same_time_is_seen(bench: Bench) -> None:
    await bench.push(record("aaaaaaaa"))
    await followed(bench)
    holder = await asyncpg.connect(bench.url)
    try:
        async with holder.transaction():
            await holder.execute("select memory.place_hold($1, 'h', 'M-1', 'user:o', null)", BANK)
            waiting = asyncio.create_task(trim(bench.database, NOW, BANK))
            while not await bench.superuser("select exists (select from pg_locks where not granted)"):
                await asyncio.sleep(0.01)
        assert await waiting == Done(1, 0, 1, 0)
    finally:
        await holder.close()


async def test_a_raised_horizon_is_audited_and_what_changes_nothing_is_not(bench: Bench) -> None:
    await bench.push(record("aaaaaaaa"), record("bbbbbbbb", "other"))
    await followed(bench)
    for _ in range(2):
        await trim(bench.database, NOW, BANK, "user:olga")
    rows = "select array_agg(array[p.principal, a.bank, a.objects::text]) from compliance.audit_calls a"
    rows += " join compliance.principals p using (principal_ref) where a.name = 'bank.horizon_raised'"
    assert await bench.superuser(rows) == [["user:olga", BANK, "2"]]
    with pytest.raises(NoBank):
        await trim(bench.database, NOW, "project:nowhere-1")


async def test_all_banks_and_the_command_itself(bench: Bench, database_url: str) -> None:
    db = await asyncpg.connect(database_url)
    banks = [f"project:trim-{n}" for n in range(3)]
    for bank in banks:
        await db.execute("select memory.open_bank($1)", bank)
        await put(db, bank, [f"{bank[8:]}-a", f"{bank[8:]}-b"])
        await db.execute("select memory.erase($1, $2, 'user:o', $1)", bank, [f"{bank[8:]}-a"])
        await followed(bench, bank=bank)

    def command(*arguments: str, **environment: str) -> Any:
        return subprocess.run(
            [sys.executable, "-m", "services.sync.trim", *arguments],
            cwd=ROOT, env={"PATH": os.environ["PATH"], "DATABASE_URL": database_url, **environment},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    done = await asyncio.to_thread(command, "--older-than", "0", "--bank", banks[0])
    assert (done.returncode, done.stdout) == (
        0,
        "1 banks: 2 changes left, 1 horizons rose, 0 wait for the index, a device or a hold\n",
    )
    done = await asyncio.to_thread(command, "--older-than", "0")
    assert (done.returncode, done.stdout.split(":")[0], done.stderr) == (0, "3 banks", "")
    for bank in banks:
        assert await horizon(bench, bank) == 3
    for arguments, environment, code in (
        (("--older-than", "0", "--bank", "project:nowhere-1"), {}, 1),
        (("--older-than", "0"), {"DATABASE_URL": "postgresql://127.0.0.1:1/x"}, 1),
        (("--older-than", "0"), {"DATABASE_URL": "nonsense"}, 2),
        (("--older-than", "0"), {"TEAMLORE_RETENTION": "1"}, 2), (("--older-than", "0", "--principal", "olga"), {}, 2),
        (("--older-than", "0", "--principal", "user:o lga"), {}, 2), (("--older-than", "nan"), {}, 2),
        (("--older-than", "-1"), {}, 2), ((), {}, 2),
        (("--older-than", "0", "--bank", ""), {}, 2), (("--older-than", "0", "--bank", "a b"), {}, 2),
    ):  # fmt: skip
        done = await asyncio.to_thread(command, *arguments, **environment)
        assert done.returncode == code and "Traceback" not in done.stderr, (arguments, done.stderr)
    await db.close()


async def test_a_window_reads_its_own_changes_and_not_all_of_the_bank(bench: Bench) -> None:
    db, n = await asyncpg.connect(bench.url), 5000
    await db.execute("select memory.open_bank($1)", BANK)
    await put(db, BANK, [f"memory-{number}" for number in range(n)])
    dead = [f"memory-{number}" for number in range(0, n, 2)]
    await db.execute("select memory.erase($1, $2, 'user:o', 'op')", BANK, dead)
    await followed(bench)
    await db.execute("analyze")
    await db.execute("select memory.raise_horizon($1, interval '0', interval '1 day')", BANK)
    for after, removed in ((0, 100), (n, 200)):
        async with db.transaction():
            row = await db.fetchrow("select * from memory.trim($1, $2, 200)", BANK, after)
            assert (row["through"], row["removed"]) == (after + 200, removed)
            scanned = "select max(seq_tup_read) from pg_stat_xact_user_tables where relname = any ($1)"
            assert await db.fetchval(scanned, ["changes", "memories", "tombstones"]) == 0
    await db.close()


async def test_no_other_service_raises_a_horizon(bench: Bench, database_url: str) -> None:
    for service in ("feed", "index", "auth", "compliance"):
        database = await Database.connect(database_url, service, QUERIES)
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await database.row("raise_horizon", BANK, timedelta(0), timedelta(0))
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await database.row("trim", BANK, 0, 10)
        await database.close()
