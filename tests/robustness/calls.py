"""Calls as a client makes them: repeated where they may be, each client on a connection of its own."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from teamlore.feed.v1 import feed_pb2, feed_pb2_grpc
from teamlore.sync.v1 import sync_pb2

Metadata = tuple[tuple[str, str], ...]
RETRYABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
PATIENCE = 120.0


def own_connection(address: str) -> grpc.aio.Channel:
    """A channel that shares its TCP connection with no other, so that closing it cuts that one and no more."""
    # What a proxy or a killed service left must not make the next try wait long.
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 500)]
    return grpc.aio.insecure_channel(address, options=options)


def code_of(error: grpc.aio.AioRpcError) -> str:
    """The name of a refusal's code."""
    return str(error.code().name)


async def until_done(call: Any, request: object, metadata: Metadata, wrong: list[str]) -> Any | None:
    """Repeats a call as a client would, only where it may be repeated; None, and a line in `wrong`, for a refusal."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            return await call(request, metadata=metadata, timeout=10)
        except grpc.aio.AioRpcError as error:
            if error.code() not in RETRYABLE:
                wrong.append(f"{code_of(error)}: {error.details()}")
                return None
            await asyncio.sleep(0.1)
    wrong.append(f"UNANSWERED: no answer for {PATIENCE:g} s")
    return None


async def whole_feed(address: str, bank: str, metadata: Metadata) -> tuple[dict[str, int], set[str], int]:
    """Reads the whole feed: live id → seq, tombstones, and where it ends; ranges must join up."""
    live: dict[str, int] = {}
    gone: set[str] = set()
    cursor, reached = "", 0
    async with own_connection(address) as channel:
        stub: Any = feed_pb2_grpc.FeedServiceStub(channel)
        while True:
            request = feed_pb2.ListChangesRequest(bank=bank, cursor=cursor, limit=300)
            page = await stub.ListChanges(request, metadata=metadata, timeout=20)
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


def next_standing(stub: Any, version: int) -> Callable[..., Awaitable[Any]]:
    """UpdateStatus as `until_done` may repeat it: the one who alone changes a memory was heard where an answer was lost."""
    tries = 0

    async def update(request: object, **how: Any) -> Any:
        nonlocal tries
        tries += 1
        try:
            return await stub.UpdateStatus(request, **how)
        except grpc.aio.AioRpcError as error:
            if tries > 1 and code_of(error) == "ABORTED":
                return sync_pb2.UpdateStatusResponse(version=version + 1)
            raise

    return update


async def live_texts(address: str, bank: str, metadata: Metadata) -> dict[str, str]:
    """The server's own list of a bank: live id → text."""
    return {i: each.text for i, each in (await live_memories(address, bank, metadata)).items()}


async def live_memories(address: str, bank: str, metadata: Metadata) -> dict[str, feed_pb2.Change]:
    """The server's own list of a bank: live id → how it stands."""
    live: dict[str, feed_pb2.Change] = {}
    token = ""
    async with own_connection(address) as channel:
        stub: Any = feed_pb2_grpc.FeedServiceStub(channel)
        while True:
            request = feed_pb2.ListLiveRequest(bank=bank, page_token=token)
            page = await stub.ListLive(request, metadata=metadata, timeout=20)
            live |= {each.id: each for each in page.memories}
            token = page.next_page_token
            if not token:
                return live
