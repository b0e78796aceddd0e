"""32 writers on 8 banks while a watcher follows each, all through the real calls: no gap, no repeat, no skip."""

import asyncio
import os
import random
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import grpc
import pytest
from teamlore.feed.v1 import feed_pb2
from teamlore.sync.v1 import sync_pb2

from tests.integration.conftest import RunningStack, running_stack
from tests.robustness.calls import RETRYABLE, Metadata, mirror, own_connection, until_done
from tests.robustness.checker import Acknowledged, Batch, Cut, Digest, Event, Mark, Step, check, replay

SECONDS = float(os.environ.get("RACE_SECONDS", "4"))
BANKS, WRITERS = 8, 32
LONGEST_BATCH, LONGEST_FORGET = 20, 3


@dataclass
class Race:
    """What is recorded of each bank, and what should not have happened at all."""

    stack: RunningStack
    stop: float
    acknowledged: dict[str, Acknowledged]
    seen: dict[str, list[Event]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def raced() -> Iterator[RunningStack]:
    with running_stack() as running:
        yield running


async def open_banks(stack: RunningStack, names: list[str]) -> None:
    """Makes banks without the near-duplicate check, which would hold the writers apart; no call sets that yet."""
    database = await asyncpg.connect(stack.facts.database_url)
    for name in names:
        await database.execute("select memory.open_bank($1)", name)
    await database.execute("update memory.banks set near_duplicates = 'off' where bank = any ($1)", names)
    await database.close()


async def writer(race: Race, metadata: Metadata) -> None:
    """Pushes to any bank; hides and erases what it has stored itself, so that each step is one of its own."""
    visible: dict[str, list[str]] = {bank: [] for bank in race.acknowledged}
    hidden: dict[str, list[str]] = {bank: [] for bank in race.acknowledged}
    async with own_connection(race.stack, "sync") as channel:
        stub = race.stack.sync(channel)
        while time.monotonic() < race.stop:
            forgettable = [bank for bank, ids in visible.items() if ids]
            if forgettable and random.random() < 0.3:
                bank = random.choice(forgettable)
                told = race.acknowledged[bank]
                erase = random.random() < 0.5
                candidates = visible[bank] + hidden[bank] if erase else visible[bank]
                ids = random.sample(candidates, min(len(candidates), random.randint(1, LONGEST_FORGET)))
                forget = sync_pb2.ForgetRequest(bank=bank, memory_ids=ids, erase=erase)
                if await until_done(stub.Forget, forget, metadata, race.wrong) is not None:
                    (told.erased if erase else told.hidden).extend(ids)
                    visible[bank] = [i for i in visible[bank] if i not in ids]
                    hidden[bank] = [i for i in hidden[bank] if i not in ids] + ([] if erase else ids)
                continue
            bank = random.choice(list(race.acknowledged))
            told = race.acknowledged[bank]
            records = [
                sync_pb2.Record(id=uuid.uuid4().hex[:16], text=f"{uuid.uuid4()} {uuid.uuid4()}")
                for _ in range(random.randint(1, LONGEST_BATCH))
            ]
            push = sync_pb2.PushRequest(bank=bank, records=records)
            answer = await until_done(stub.Push, push, metadata, race.wrong)
            if answer is not None:
                # After a lost answer the same push is `unchanged`: it was stored all the same.
                ids = [r.id for r in answer.results if r.status in ("stored", "unchanged")]
                race.wrong += [f"{r.status}: {r.reason}" for r in answer.results if r.id not in ids]
                told.stored.extend(ids)
                visible[bank] += ids


async def events(call: AsyncIterator[feed_pb2.WatchChangesResponse]) -> AsyncIterator[tuple[Event, str]]:
    """What the watcher records of each message, and the cursor to go on from."""
    async for message in call:
        if message.HasField("bookmark"):
            yield Mark(message.bookmark.seq), message.bookmark.cursor
        else:
            batch = message.batch
            steps = tuple(Step(change.seq, change.id, change.deleted) for change in batch.changes)
            yield Batch(batch.after_seq, batch.through_seq, steps), batch.next_cursor


async def watcher(race: Race, bank: str, metadata: Metadata, head: "asyncio.Future[int]") -> None:
    """Follows a bank up to its last head; cuts its connection now and then and goes on from the last cursor."""
    seen, cursor = race.seen.setdefault(bank, []), ""
    while True:
        # In the end it stays, so that a slow machine only takes longer.
        stay = None if head.done() else SECONDS / 5 * random.uniform(0.3, 1)
        try:
            async with asyncio.timeout(stay), own_connection(race.stack, "feed") as channel:
                request = feed_pb2.WatchChangesRequest(bank=bank, cursor=cursor)
                stub: Any = race.stack.feed(channel)
                async for event, cursor in events(stub.WatchChanges(request, metadata=metadata)):  # noqa: B007
                    seen.append(event)
                    if head.done() and isinstance(event, Mark) and event.seq >= head.result():
                        return
        except TimeoutError:
            pass
        except grpc.aio.AioRpcError as error:
            if error.code() not in RETRYABLE:
                race.wrong.append(f"watch: {error.code().name}: {error.details()}")
                return
            await asyncio.sleep(0.1)
        seen.append(Cut())


async def run(race: Race, reader: Metadata) -> dict[str, Digest]:
    """Lets all of them work; gives the server's digests once the watchers have had time to reach the heads."""
    stack = race.stack
    writers = [
        stack.credential(await stack.token(f"user:writer{n}", ("project:*", "read write forget")))
        for n in range(WRITERS)
    ]
    heads: dict[str, asyncio.Future[int]] = {
        bank: asyncio.get_running_loop().create_future() for bank in race.acknowledged
    }
    race.stop = time.monotonic() + SECONDS
    watching = [asyncio.create_task(watcher(race, bank, reader, head)) for bank, head in heads.items()]
    await asyncio.gather(*(writer(race, metadata) for metadata in writers))
    digests = {}
    async with stack.channel("feed") as channel:
        stub: Any = stack.feed(channel)
        for bank, head in heads.items():
            request = feed_pb2.GetDigestRequest(bank=bank)
            digest = await stub.GetDigest(request, metadata=reader, timeout=20)
            digests[bank] = Digest(digest.seq, digest.count, digest.sum)
            head.set_result(digest.seq)
    await asyncio.wait(watching, timeout=60)
    for task in watching:
        task.cancel()
    for outcome in await asyncio.gather(*watching, return_exceptions=True):
        if outcome is not None and not isinstance(outcome, asyncio.CancelledError):
            raise outcome
    return digests


async def test_thirty_two_writers_leave_no_gap_for_eight_watchers(raced: RunningStack) -> None:
    banks = [f"project:race{n}" for n in range(BANKS)]
    await open_banks(raced, banks)
    race = Race(raced, 0, {bank: Acknowledged() for bank in banks})
    reader = raced.credential(await raced.token("user:reader", ("project:*", "read")))
    digests = await run(race, reader)
    assert race.wrong == []
    faults = [
        (fault.kind, f"{bank}: {fault.kind}: {fault.where}")
        for bank in banks
        for fault in check(race.acknowledged[bank], race.seen[bank], digests[bank])
    ]
    assert not faults, f"{dict(Counter(kind for kind, _ in faults))}\n" + "\n".join(w for _, w in faults[:20])
    # It was a race at all: writes of every kind were taken, each watcher was cut and heard more after that.
    assert all(told.stored for told in race.acknowledged.values())
    assert any(told.hidden for told in race.acknowledged.values())
    assert any(told.erased for told in race.acknowledged.values())
    for seen in race.seen.values():
        assert seen.count(Cut()) >= 2
        assert any(isinstance(event, Batch) for event in seen[seen.index(Cut()) :])
    # A mirror that comes late equals the one that watched.
    for bank in banks:
        watched, _ = replay(race.seen[bank])
        assert await mirror(raced, bank, reader) == (watched.live, watched.gone, watched.reached)
