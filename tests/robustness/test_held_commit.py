"""A commit that is held open: nobody skips it, other banks do not wait for it, and a process that holds one is ended."""

import asyncio
import os
import random
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest
from teamlore.feed.v1 import feed_pb2
from teamlore.sync.v1 import sync_pb2

from kit.sealing import KeyStore
from tests.integration.conftest import ROOT, RunningStack, running_stack
from tests.robustness.calls import Metadata, own_connection, until_done
from tests.robustness.checker import Acknowledged, Batch, Digest, Event, Mark, Step, check
from tests.robustness.faults import put

SECONDS = float(os.environ.get("HELD_SECONDS") or 5)
HELD, FREE = "project:held-1", "project:free-1"
CROWD = 40
"""More than sync has connections."""


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    # Longer than anything here: what goes on does so because it need not wait. And who waits a minute calls often.
    settings = {"TEAMLORE_TRANSACTION_SECONDS": "120", "TEAMLORE_CALLS_PER_MINUTE": "1000000"}
    with running_stack({"sync": settings}) as running:
        yield running


class Crowd:
    """Writers who push one memory after the other into a bank."""

    def __init__(self, stack: RunningStack, bank: str, metadata: Metadata) -> None:
        self.stack, self.bank, self.metadata = stack, bank, metadata
        self.told, self.wrong, self.stopped = Acknowledged(), list[str](), False

    async def work(self) -> None:
        async with own_connection(self.stack.address("sync")) as channel:
            stub: Any = self.stack.sync(channel)
            while not self.stopped:
                record = sync_pb2.Record(id=uuid.uuid4().hex, text=f"{uuid.uuid4()} {random.random()}")
                request = sync_pb2.PushRequest(bank=self.bank, records=[record])
                if await until_done(stub.Push, request, self.metadata, self.wrong) is not None:
                    self.told.stored.append(record.id)


async def watch(stack: RunningStack, bank: str, metadata: Metadata, seen: list[Event]) -> None:
    """Notes what comes, until cancelled."""
    async with own_connection(stack.address("feed")) as channel:
        stub: Any = stack.feed(channel)
        async for message in stub.WatchChanges(feed_pb2.WatchChangesRequest(bank=bank), metadata=metadata):
            if message.HasField("bookmark"):
                seen.append(Mark(message.bookmark.seq))
            else:
                batch = message.batch
                steps = tuple(Step(each.seq, each.id, each.deleted) for each in batch.changes)
                seen.append(Batch(batch.after_seq, batch.through_seq, steps))


async def open_banks(stack: RunningStack) -> None:
    database = await asyncpg.connect(stack.facts.database_url)
    for bank in (HELD, FREE):
        await database.execute("select memory.open_bank($1)", bank)
    await database.execute("update memory.banks set near_duplicates = 'off'")
    await database.close()


async def judged(stack: RunningStack, crowd: Crowd, seen: list[Event], metadata: Metadata) -> None:
    """Waits for the watcher to reach the head; nothing may be wrong with what it saw."""
    async with stack.channel("feed") as channel:
        stub: Any = stack.feed(channel)
        got = await stub.GetDigest(feed_pb2.GetDigestRequest(bank=crowd.bank), metadata=metadata)
    async with asyncio.timeout(30):
        while not any(isinstance(event, Mark) and event.seq >= got.seq for event in seen):
            await asyncio.sleep(0.05)
    assert crowd.wrong == []
    assert check(crowd.told, seen, Digest(got.seq, got.count, got.sum)) == []


async def test_a_commit_held_open_is_not_skipped_and_delays_no_other_bank(stack: RunningStack) -> None:
    await open_banks(stack)
    metadata = stack.credential(await stack.token("user:alice", ("project:*", "read write")))
    held, free = Crowd(stack, HELD, metadata), Crowd(stack, FREE, metadata)
    seen: dict[str, list[Event]] = {HELD: [], FREE: []}
    watching = [asyncio.create_task(watch(stack, bank, metadata, events)) for bank, events in seen.items()]
    session = await asyncpg.connect(stack.facts.database_url)
    keys = KeyStore(stack.data / "keys" / "keystore.db")
    slow = uuid.uuid4().hex
    try:
        await session.execute("begin")
        assert await put(session, keys, HELD, slow)
        waiting = [asyncio.create_task(held.work()) for _ in range(CROWD)]
        await asyncio.sleep(1)  # by now all that will wait for the head wait
        working = [asyncio.create_task(free.work()) for _ in range(4)]
        until, before = time.monotonic() + SECONDS, len(free.told.stored)
        async with asyncio.timeout(SECONDS + 30):
            while time.monotonic() < until or len(free.told.stored) < before + 20:
                # As long as it is held nobody gets past it, and the other bank goes on.
                assert held.told.stored == [] and held.wrong == []
                await asyncio.sleep(0.05)
        await session.execute("commit")
    finally:
        await session.close()  # whatever went wrong, the next test must not wait for this head
    held.told.stored.append(slow)
    async with asyncio.timeout(60):
        while len(held.told.stored) < CROWD:
            await asyncio.sleep(0.05)
    held.stopped = free.stopped = True
    await asyncio.gather(*waiting, *working)
    keys.close()
    await judged(stack, held, seen[HELD], metadata)
    await judged(stack, free, seen[FREE], metadata)
    first = next(event for event in seen[HELD] if isinstance(event, Batch))
    assert first.steps[0] == Step(1, slow)
    for task in watching:
        task.cancel()


async def test_a_stopped_process_that_holds_a_head_is_ended(stack: RunningStack) -> None:
    await open_banks(stack)
    metadata = stack.credential(await stack.token("user:bob", ("project:*", "read write")))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.robustness.holder", stack.facts.database_url, HELD,
        cwd=ROOT, stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'gen' / 'python'}"},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"holds\n"
        crowd = Crowd(stack, HELD, metadata)
        working = [asyncio.create_task(crowd.work()) for _ in range(4)]
        async with asyncio.timeout(60):
            while len(crowd.told.stored) < 20:
                await asyncio.sleep(0.05)
        crowd.stopped = True
        await asyncio.gather(*working)
        assert crowd.wrong == []
        # Woken, it is told that nothing was stored, in words by which a caller comes again.
        process.send_signal(signal.SIGCONT)
        assert await process.stdout.readline() == b"DEPENDENCY_UNAVAILABLE\n"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
