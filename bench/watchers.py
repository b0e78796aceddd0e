"""`make bench-watchers`: how soon a watcher hears of a commit, and what a thousand idle ones cost.

Watchers run in a process of their own, each with a connection of its own, as laptops have. From commit to watcher is
counted from the change's `changed_at`, which Postgres notes just before the commit, to the message's arrival, on one
clock; of each message its oldest change counts. WATCH_SECONDS makes it shorter or longer.
"""

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import random
import signal
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import asyncpg
import grpc
import uvloop
from rich.console import Console
from teamlore.feed.v1 import feed_pb2, feed_pb2_grpc
from teamlore.sync.v1 import sync_pb2

from bench.quick import sentence
from bench.reading import cost
from bench.report import Result, amount, command, report
from tests.integration.conftest import RunningStack, running_stack
from tests.robustness.processes import pid_of

SECONDS = amount("WATCH_SECONDS", 20)
WATCHERS, BANKS, IDLE, SHARE, BATCH = 100, 20, 1000, 0.3, 100
PRINCIPALS = 10  # none may hold more than 200 streams


def names(what: str) -> list[str]:
    return [f"project:{what}-{number}" for number in range(BANKS)]


async def watch(address: str, bank: str, token: str, heard: list[float], started: asyncio.Semaphore) -> None:
    """One watcher on a connection of its own; notes how old the oldest change of each batch is when it comes."""
    async with grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        stub = feed_pb2_grpc.FeedServiceStub(channel)
        stream = stub.WatchChanges(
            feed_pb2.WatchChangesRequest(bank=bank), metadata=(("authorization", f"Bearer {token}"),)
        )
        async for message in stream:
            now = time.time()
            if message.WhichOneof("event") == "batch":
                stamp = message.batch.changes[0].changed_at
                heard.append(now - stamp.seconds - stamp.nanos / 1e9)
            elif started.locked():
                started.release()


def watching(address: str, tokens: Sequence[str], count: int, banks: Sequence[str], pipe: Connection) -> None:
    """A process of watchers: says when each has had its first bookmark, is told when to end, answers what it heard."""

    async def run() -> None:
        heard: list[float] = []
        tasks = []
        for number in range(count):
            first = asyncio.Semaphore(0)
            bank, token = banks[number % len(banks)], tokens[number % len(tokens)]
            tasks.append(asyncio.create_task(watch(address, bank, token, heard, first)))
            await first.acquire()
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)
        broken = [task for task in tasks if task.done()]
        pipe.send((heard, len(broken)))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    uvloop.run(run())


@contextlib.asynccontextmanager
async def crowd(stack: RunningStack, tokens: Sequence[str], count: int, banks: Sequence[str]) -> AsyncIterator[Any]:
    """A process of watchers that have all begun; `await heard()` ends it and gives what it heard."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=watching, args=(stack.address("feed"), tokens, count, banks, theirs), daemon=True
    )
    process.start()
    theirs.close()  # so that its death ends a recv

    async def heard() -> list[float]:
        ours.send("end")
        found, broken = await asyncio.to_thread(ours.recv)
        assert broken == 0, f"{broken} watchers were cut off"
        return list(found)

    try:
        assert await asyncio.to_thread(ours.recv) == "ready"
        yield heard
    finally:
        process.terminate()
        process.join()


class Pushes:
    """Batches made before the clock starts, pushed to banks in turn."""

    def __init__(self, stack: RunningStack, token: str, banks: Sequence[str], count: int) -> None:
        rng = random.Random(5)
        turn = itertools.cycle(banks)
        self._stack, self._metadata = stack, stack.credential(token)
        self._waiting = [
            sync_pb2.PushRequest(
                bank=next(turn),
                records=[sync_pb2.Record(id=uuid.uuid4().hex[:16], text=sentence(rng)) for _ in range(BATCH)],
            )
            for _ in range(count)
        ]

    async def flat_out(self, at_once: int = 4) -> float:
        """Pushes all, so many at once; records a second."""
        count, began = len(self._waiting), time.perf_counter()
        async with self._stack.channel("sync") as channel:

            async def worker() -> None:
                while self._waiting:
                    await self._push(channel, self._waiting.pop())

            await asyncio.gather(*(worker() for _ in range(at_once)))
        return count * BATCH / (time.perf_counter() - began)

    async def at(self, rate: float) -> float:
        """Pushes all, so many records a second, whatever is under way; gives the rate that was reached."""
        count, began = len(self._waiting), time.perf_counter()
        async with self._stack.channel("sync") as channel:
            under_way = set()
            for number in itertools.count():
                if not self._waiting:
                    break
                await asyncio.sleep(began + number * BATCH / rate - time.perf_counter())
                under_way.add(asyncio.create_task(self._push(channel, self._waiting.pop())))
            await asyncio.gather(*under_way)
        return count * BATCH / (time.perf_counter() - began)

    async def _push(self, channel: grpc.aio.Channel, request: sync_pb2.PushRequest) -> None:
        answer = await self._stack.sync(channel).Push(request, metadata=self._metadata)
        assert all(each.status == "stored" for each in answer.results)


async def open_banks(stack: RunningStack, banks: Sequence[str]) -> None:
    """Banks without the near-duplicate check."""
    database = await asyncpg.connect(stack.facts.database_url)
    for bank in banks:
        await database.execute("select memory.open_bank($1)", bank)
        await database.execute("update memory.banks set near_duplicates = 'off' where bank = $1", bank)
    await database.close()


def quantile(values: Sequence[float], part: int) -> float:
    return statistics.quantiles(values, n=100)[part - 1] * 1000


async def latency(stack: RunningStack, token: str, tokens: Sequence[str]) -> list[Result]:
    """Commit to watcher, at 30 % of what the same pushes reach flat out without a watcher."""
    peak = await Pushes(stack, token, names("peak"), 150).flat_out()
    rate = peak * SHARE
    pushes = Pushes(stack, token, names("watched"), int(SECONDS * rate / BATCH))
    busy, began = cost(pid_of(stack, "feed"))[0], time.monotonic()
    async with crowd(stack, tokens, WATCHERS, names("watched")) as heard:
        reached = await pushes.at(rate)
        await asyncio.sleep(1)
        busy, took = cost(pid_of(stack, "feed"))[0] - busy, time.monotonic() - began
        ages = await heard()
    said = f"{len(ages):,} messages, {reached:,.0f} of {peak:,.0f} records/s, {WATCHERS} watchers, {BANKS} banks"
    return [
        Result("watch_p50_ms", quantile(ages, 50), "ms", f"15 wanted; {said}"),
        Result("watch_p99_ms", quantile(ages, 99), "ms", f"100 wanted; longest {max(ages) * 1000:.0f}"),
        Result("watch_feed_cpu", busy / took, "cores", "the feed process meanwhile"),
    ]


async def idle(stack: RunningStack, token: str, tokens: Sequence[str]) -> list[Result]:
    """What a thousand watchers cost that hear nothing, and how soon they hear of something."""
    feed = pid_of(stack, "feed")
    before = cost(feed)
    await asyncio.sleep(SECONDS / 2)
    alone = (cost(feed)[0] - before[0]) / (SECONDS / 2)
    async with crowd(stack, tokens, IDLE, names("idle")) as heard:
        await asyncio.sleep(2)
        began = cost(feed)
        await asyncio.sleep(SECONDS)
        ended = cost(feed)
        for _ in range(10):
            await Pushes(stack, token, names("idle"), 1).flat_out()
            await asyncio.sleep(0.2)
        await asyncio.sleep(1)
        ages = await heard()
    return [
        Result(
            "idle_watcher_kb", (ended[1] - before[1]) / IDLE / 1024, "KiB", f"each of {IDLE}, with its connection"
        ),
        Result("idle_watchers_cpu", (ended[0] - began[0]) / SECONDS, "cores", f"{alone:.3f} without watchers"),
        Result("idle_heard_p99_ms", quantile(ages, 99), "ms", f"one batch to {IDLE // BANKS} watchers, {len(ages)} messages"),
    ]


async def measure(stack: RunningStack) -> list[Result]:
    """Runs all, with the index stopped: it would embed behind the figures."""
    token = await stack.token("user:alice", ("project:*", "read write"))
    tokens = [await stack.token(f"user:reader{number}", ("project:*", "read")) for number in range(PRINCIPALS)]
    await open_banks(stack, [bank for what in ("peak", "watched", "idle") for bank in names(what)])
    index = pid_of(stack, "index")
    os.kill(index, signal.SIGSTOP)
    try:
        return [*await latency(stack, token, tokens), *await idle(stack, token, tokens)]
    finally:
        os.kill(index, signal.SIGCONT)


def main() -> None:
    """The command."""
    command(__doc__).parse_args()
    console = Console()
    generous = {"TEAMLORE_CALLS_PER_MINUTE": "1000000"}
    with running_stack({"sync": generous, "feed": generous}) as stack, console.status("measuring"):
        results = asyncio.run(measure(stack))
    report(results, console)


if __name__ == "__main__":
    main()
