"""How a service starts and ends."""

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import asyncpg
import grpc
import pytest
from teamlore.feed.v1 import feed_pb2, feed_pb2_grpc

from kit import decisions
from kit.foundation import Foundation, Settings
from kit.interceptor import Built
from kit.serving import _serve
from kit.tests.served import BANK, FEED, HEAD, QUERIES, Callers, Feed


async def test_a_service_that_ends_closes_in_reverse_and_writes_what_it_granted(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "FLUSH_SECONDS", 600)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = Settings(database_url=database_url, keystore=str(tmp_path / "k.db"), listen=address)
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            ended.append("task")

    async def build(given: Settings, base: Foundation) -> Built:
        assert given is settings and base.access.fresh
        base.at_end(lambda: ended.append("first"))
        base.spawn(waits())

        async def close() -> None:
            assert await base.database.execute_raw("select 1")
            ended.append("last")

        base.at_end(close)
        callers: Any = Callers(base.database)
        callers.access = base.access
        return Built(callers, {FEED: (feed_pb2_grpc.add_FeedServiceServicer_to_server, Feed())})

    serving = asyncio.create_task(_serve("feed", settings, QUERIES, build, 4))
    async with grpc.aio.insecure_channel(address) as channel:
        request = feed_pb2.GetHeadRequest(bank=BANK)
        metadata = (("authorization", "Bearer alice"),)
        stub = feed_pb2_grpc.FeedServiceStub(channel)
        await stub.GetHead(request, metadata=metadata, wait_for_ready=True, timeout=20)
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(20):
        await serving
    assert ended == ["last", "task", "first"]
    connection = await asyncpg.connect(database_url)
    rows = await connection.fetch("select name, method, count from compliance.decisions")
    await connection.close()
    assert [tuple(row) for row in rows] == [("access.granted", HEAD, 1)]
