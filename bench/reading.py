"""Ways to read a bank's whole history, and what they cost the process that tells it."""

import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import grpc
from teamlore.feed.v1 import feed_pb2

from tests.integration.conftest import RunningStack

WATCH = "/teamlore.feed.v1.FeedService/WatchChanges"
# A bookmark holds a seq and a cursor; a batch is longer.
LARGEST_BOOKMARK = 200
TICKS = os.sysconf("SC_CLK_TCK")
Way = Callable[[], Awaitable[int]]


def cost(pid: int) -> tuple[float, int]:
    """CPU seconds that a process has used, and the bytes it has in memory."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return (int(fields[11]) + int(fields[12])) / TICKS, pages * os.sysconf("SC_PAGESIZE")


async def watched(channel: grpc.aio.Channel, bank: str, token: str, head: int) -> int:
    """Reads one stream up to the bookmark at the head, and leaves its batches as they are."""
    call = channel.unary_stream(WATCH)(
        feed_pb2.WatchChangesRequest(bank=bank).SerializeToString(),
        metadata=(("authorization", f"Bearer {token}"),),
    )
    async for message in call:
        if len(message) < LARGEST_BOOKMARK:
            seq = feed_pb2.WatchChangesResponse.FromString(message).bookmark.seq
            if seq == head:
                call.cancel()
                return int(seq)
    raise AssertionError("the stream ended before the head")


async def listed(stack: RunningStack, channel: grpc.aio.Channel, bank: str, token: str) -> int:
    """Reads the whole feed of a bank in pages of 1000, one after the other, and decodes them; counts the changes."""
    cursor, seen = "", 0
    while True:
        page = await stack.feed(channel).ListChanges(
            feed_pb2.ListChangesRequest(bank=bank, cursor=cursor, limit=1000),
            metadata=stack.credential(token),
        )
        cursor, seen = page.next_cursor, seen + len(page.changes)
        if not page.has_more:
            return seen


async def asyncpg_pages(database: asyncpg.Connection, bank: str) -> int:
    """What asyncpg reads of the same rows in pages of 500, by key."""
    last, seen = "", 0
    while True:
        sql = "select id, author, retained_at, sealed from memory.memories where bank = $1 and id > $2 order by id limit 500"
        rows = await database.fetch(sql, bank, last)
        seen += len(rows)
        if len(rows) < 500:
            return seen
        last = rows[-1]["id"]


@dataclass
class Turns:
    """What one way did in each turn."""

    walls: list[float] = field(default_factory=list)
    """Changes a second."""
    changes: int = 0
    busy: float = 0.0
    """CPU seconds of the feed process."""

    @property
    def of_cpu(self) -> float:
        """Changes in a second of the feed process' CPU."""
        return self.changes / max(self.busy, 1 / TICKS)


async def in_turns(turns: int, feed: int, size: int, ways: Mapping[str, Way]) -> dict[str, Turns]:
    """Takes all ways one after the other, `turns` times, so that each feels the same machine; a first turn warms up."""
    done = {name: Turns() for name in ways}
    for turn in range(turns + 1):
        for name, way in ways.items():
            busy, began = cost(feed)[0], time.perf_counter()
            seen = await way()
            took, busy = time.perf_counter() - began, cost(feed)[0] - busy
            assert seen == size, (name, seen)
            if turn:
                done[name].walls.append(size / took)
                done[name].changes += size
                done[name].busy += busy
    return done
