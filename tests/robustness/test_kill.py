"""kill -9 of any one process in the middle of a push loop and an erase loop: nothing acknowledged is lost."""

import asyncio
import os
import random
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import apsw
import asyncpg
import pytest
from teamlore.feed.v1 import feed_pb2
from teamlore.sync.v1 import sync_pb2

from kit.errors import LOST
from services.compliance.erasures import STAGES
from tests.integration.conftest import RunningStack, running_stack
from tests.robustness.calls import Metadata, mirror, until_done
from tests.robustness.checker import term
from tests.robustness.processes import MODULES, kill, pid_of, postmaster_of

SECONDS = float(os.environ.get("KILL_SECONDS", "4"))


@dataclass
class History:
    """What was acknowledged: ids stored, ids whose erasure began."""

    stored: set[str] = field(default_factory=set)
    erased: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    """Erasures asked for, answered or not: either outcome is right."""
    wrong: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def shaken() -> Iterator[RunningStack]:
    with running_stack() as running:
        yield running


async def pusher(stack: RunningStack, bank: str, metadata: Metadata, history: History, stop: float) -> None:
    async with stack.channel("sync") as channel:
        stub = stack.sync(channel)
        while going_on(history, stop):
            records = [
                sync_pb2.Record(id=uuid.uuid4().hex[:16], text=f"{uuid.uuid4()} {uuid.uuid4()}")
                for _ in range(random.choice((1, 3, 10)))
            ]
            answer = await until_done(
                stub.Push, sync_pb2.PushRequest(bank=bank, records=records), metadata, history.wrong
            )
            if answer is not None:
                # After a lost answer the same push is `unchanged`: it was stored all the same.
                history.stored |= {r.id for r in answer.results if r.status in ("stored", "unchanged")}


def going_on(history: History, stop: float) -> bool:
    """Until `stop`; on a machine that is slow just now, until something was erased."""
    now = time.monotonic()
    return now < stop or (not history.erased and now < stop + 60)


async def eraser(stack: RunningStack, bank: str, metadata: Metadata, history: History, stop: float) -> None:
    async with stack.channel("sync") as channel:
        stub = stack.sync(channel)
        while going_on(history, stop):
            await asyncio.sleep(0.15)
            candidates = sorted(history.stored - history.asked)
            if candidates:
                victims = random.sample(candidates, min(2, len(candidates)))
                history.asked |= set(victims)
                request = sync_pb2.ForgetRequest(bank=bank, memory_ids=victims, erase=True)
                if await until_done(stub.Forget, request, metadata, history.wrong) is not None:
                    history.erased |= set(victims)


OPEN = (
    "select e.bank, e.erasure_id, e.state, count(k.id) filter (where k.done_at is null) as keys"
    " from memory.erasures e left join memory.key_destructions k using (erasure_id)"
    " where e.state <> 'server_done' group by e.erasure_id order by e.requested_at"
)


async def settled(stack: RunningStack) -> None:
    """Waits until every erasure is through all its stages; says which are not."""
    deadline, left = time.monotonic() + 60, ["the database was never reached"]
    while time.monotonic() < deadline:
        try:
            database = await asyncpg.connect(stack.facts.database_url)
            try:
                rows = await database.fetch(OPEN)
            finally:
                await database.close()
            if not rows:
                return
            left = [
                f"{r['erasure_id']} of {r['bank']}: {r['state']}, next {STAGES[r['state']].to_state},"
                f" {r['keys']} keys stand"
                for r in rows
            ]
        except LOST:
            pass
        await asyncio.sleep(0.3)
    raise AssertionError(f"{len(left)} erasures did not settle within a minute:\n" + "\n".join(left[:20]))


@pytest.mark.parametrize("victim", ["postgres", *MODULES])
async def test_nothing_acknowledged_is_lost(shaken: RunningStack, victim: str) -> None:
    bank = f"project:kill-{victim}"
    metadata = shaken.credential(await shaken.token("user:alice", ("project:*", "read write forget")))
    history, stop = History(), time.monotonic() + SECONDS
    work = [
        asyncio.create_task(pusher(shaken, bank, metadata, history, stop)),
        asyncio.create_task(pusher(shaken, bank, metadata, history, stop)),
        asyncio.create_task(eraser(shaken, bank, metadata, history, stop)),
    ]
    await asyncio.sleep(SECONDS * random.uniform(0.3, 0.6))
    kill(await postmaster_of(shaken) if victim == "postgres" else pid_of(shaken, victim))
    await asyncio.gather(*work)
    assert history.wrong == []
    assert history.stored and history.erased
    await settled(shaken)
    live, gone, reached = await mirror(shaken, bank, metadata)
    again, _, _ = await mirror(shaken, bank, metadata)
    assert live == again
    assert history.stored - history.asked <= set(live), "an acknowledged memory is lost"
    assert history.erased <= gone and not history.erased & set(live), "an erased memory is back"
    async with shaken.channel("feed") as channel:
        feed: Any = shaken.feed(channel)
        digest = await feed.GetDigest(feed_pb2.GetDigestRequest(bank=bank), metadata=metadata)
    assert (digest.seq, digest.count) == (reached, len(live))
    assert digest.sum == sum(term(memory_id, seq) for memory_id, seq in live.items()) % 2**64
    await check_keys(shaken, bank)


async def check_keys(stack: RunningStack, bank: str) -> None:
    """No live row lacks its key, no erased one has it."""
    database = await asyncpg.connect(stack.facts.database_url)
    rows = await database.fetch(
        "select id, key_page, key_slot, true as live from memory.memories where bank = $1", bank
    )
    rows += await database.fetch(
        "select id, key_page, key_slot, false as live from memory.key_destructions where bank = $1", bank
    )
    await database.close()
    store = apsw.Connection(str(stack.data / "keys" / "keystore.db"), flags=apsw.SQLITE_OPEN_READONLY)
    pages = dict(store.execute("select page, keys from pages where bank = ?", (bank,)))
    store.close()
    lacking, standing = [], []
    for row in rows:
        key = pages.get(row["key_page"], b"")[row["key_slot"] * 32 : row["key_slot"] * 32 + 32]
        if row["live"] and not any(key):
            lacking.append(row["id"])
        if not row["live"] and any(key):
            standing.append(row["id"])
    assert not lacking, f"live rows without a key: {sorted(lacking)}"
    assert not standing, f"erased rows whose key stands: {sorted(standing)}"
