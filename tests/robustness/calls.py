"""Calls as a client makes them: repeated where they may be, each client on a connection of its own."""

import asyncio
import time
from typing import Any

import grpc
from teamlore.feed.v1 import feed_pb2

from tests.integration.conftest import RunningStack

Metadata = tuple[tuple[str, str], ...]
RETRYABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


def own_connection(stack: RunningStack, name: str) -> grpc.aio.Channel:
    """A channel that shares its TCP connection with no other, so that closing it cuts that one and no more."""
    return grpc.aio.insecure_channel(stack.address(name), options=[("grpc.use_local_subchannel_pool", 1)])


async def until_done(call: Any, request: object, metadata: Metadata, wrong: list[str]) -> Any | None:
    """Repeats a call as a client would, only where it may be repeated; None, and a line in `wrong`, for a refusal."""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        try:
            return await call(request, metadata=metadata, timeout=10)
        except grpc.aio.AioRpcError as error:
            if error.code() not in RETRYABLE:
                wrong.append(f"{error.code().name}: {error.details()}")
                return None
            await asyncio.sleep(0.1)
    wrong.append("no answer for 40 s")
    return None


async def mirror(stack: RunningStack, bank: str, metadata: Metadata) -> tuple[dict[str, int], set[str], int]:
    """Reads the whole feed: live id → seq, tombstones, and where it ends; ranges must join up."""
    live: dict[str, int] = {}
    gone: set[str] = set()
    cursor, reached = "", 0
    async with stack.channel("feed") as channel:
        stub: Any = stack.feed(channel)
        while True:
            page = await stub.ListChanges(
                feed_pb2.ListChangesRequest(bank=bank, cursor=cursor, limit=300),
                metadata=metadata,
                timeout=20,
            )
            assert page.after_seq == reached
            for change in page.changes:
                if change.deleted:
                    live.pop(change.id, None)
                    gone.add(change.id)
                else:
                    assert change.text
                    live[change.id] = change.seq
            reached, cursor = page.through_seq, page.next_cursor
            if not page.has_more:
                return live, gone, reached
