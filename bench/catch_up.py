"""`make bench-catch-up`: how fast one feed process tells a bank's whole history, unsealing included.

Each round measures all ways one after the other on the same rows of about 500 characters, so that each feels the same
machine; medians are reported, with the spread of the rounds. `catchup_rows_s` is wall time on a machine that the reader
and Postgres share, the reader leaving the bytes as they come; `catchup_feed_cpu_rows_s` is what the feed process does in
a second of its own CPU. CATCHUP_CHANGES and CATCHUP_ROUNDS make it shorter.
"""

import os
import random
import signal
import statistics
import time
from collections.abc import Awaitable, Callable

import grpc
import uvloop
from rich.console import Console
from teamlore.feed.v1 import feed_pb2

from bench.filling import fill
from bench.quick import asyncpg_pages, catch_up, sentence
from bench.report import Result, report
from bench.watchers import cost
from tests.integration.conftest import RunningStack, running_stack
from tests.robustness.processes import pid_of

CHANGES = int(os.environ.get("CATCHUP_CHANGES", "50000"))
ROUNDS = int(os.environ.get("CATCHUP_ROUNDS", "7"))
BANK, WATCH = "project:catch-up", "/teamlore.feed.v1.FeedService/WatchChanges"
# A bookmark holds a seq and a cursor; a batch is longer.
LARGEST_BOOKMARK = 200


async def stream(channel: grpc.aio.Channel, token: str) -> int:
    """Reads one stream up to the bookmark at the head, and leaves its batches as they are."""
    call = channel.unary_stream(WATCH)(
        feed_pb2.WatchChangesRequest(bank=BANK).SerializeToString(),
        metadata=(("authorization", f"Bearer {token}"),),
    )
    async for message in call:
        if len(message) < LARGEST_BOOKMARK:
            seq = feed_pb2.WatchChangesResponse.FromString(message).bookmark.seq
            if seq == CHANGES:
                call.cancel()
                return int(seq)
    raise AssertionError("the stream ended before the head")


async def timed(work: Callable[[], Awaitable[int]]) -> float:
    """Changes a second."""
    began = time.perf_counter()
    count = await work()
    assert count == CHANGES
    return count / (time.perf_counter() - began)


async def measure(stack: RunningStack, say: Callable[[str], None]) -> list[Result]:
    """Fills a bank, then runs the rounds, with the index stopped: it would embed behind the figures."""
    token = await stack.token("user:alice", ("project:*", "read write"))
    index, feed = pid_of(stack, "index"), pid_of(stack, "feed")
    os.kill(index, signal.SIGSTOP)
    streamed, listed, plain, of_cpu = list[float](), list[float](), list[float](), list[float]()
    try:
        say("filling a bank")
        rng = random.Random(11)
        await fill(stack, BANK, [sentence(rng) for _ in range(CHANGES)], "off")
        async with stack.channel("feed") as channel:
            await stream(channel, token)
            for number in range(ROUNDS):
                say(f"round {number + 1} of {ROUNDS}")
                busy = cost(feed)[0]
                streamed.append(await timed(lambda: stream(channel, token)))
                of_cpu.append(CHANGES / (cost(feed)[0] - busy))
                plain.append(await timed(lambda: asyncpg_pages(stack, BANK)))
                listed.append(await timed(lambda: catch_up(stack, BANK, token)))
    finally:
        os.kill(index, signal.SIGCONT)
    ratios = [ours / theirs for ours, theirs in zip(streamed, plain, strict=True)]

    def spread(values: list[float]) -> str:
        return f"{ROUNDS} rounds from {min(values):,.2f} to {max(values):,.2f}"

    return [
        Result("catchup_rows_s", statistics.median(streamed), "changes/s", f"100,000 wanted; {spread(streamed)}"),
        Result("catchup_vs_asyncpg", statistics.median(ratios), "ratio", f"pages of 500 by asyncpg; {spread(ratios)}"),
        Result("catchup_feed_cpu_rows_s", statistics.median(of_cpu), "changes/s of CPU", f"100,000 wanted; {spread(of_cpu)}"),
        Result("catchup_listed_rows_s", statistics.median(listed), "changes/s", f"ListChanges, decoded; {spread(listed)}"),
    ]  # fmt: skip


def main() -> None:
    """The command."""
    console = Console()
    with running_stack() as stack, console.status("measuring") as status:
        results = uvloop.run(measure(stack, status.update))
    report(results, console)


if __name__ == "__main__":
    main()
