"""Cursors over the wire: what one cannot go on from is a typed error on every call that takes one, after permission."""

import base64
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import grpc
import pytest
from teamlore.feed.v1 import feed_pb2
from teamlore.sync.v1 import sync_pb2

from services.feed.cursors import Cursor, CursorCodec
from tests.integration.calls import outcome_of
from tests.integration.conftest import RunningStack


@dataclass
class Bank:
    """A bank of three memories, a reader and a stranger of it, and its cursor at the second."""

    stack: RunningStack
    name: str
    reader: Any
    stranger: Any
    second: str

    async def reasons(self, cursor: str, who: Any = None) -> set[str]:
        """What ListChanges and WatchChanges say to a cursor; empty words for an answer."""
        found = set()
        async with self.stack.channel("feed") as channel:
            feed, metadata = self.stack.feed(channel), who or self.reader
            try:
                await feed.ListChanges(
                    feed_pb2.ListChangesRequest(bank=self.name, cursor=cursor), metadata=metadata
                )
                found.add("")
            except grpc.aio.AioRpcError as error:
                found.add(outcome_of(error).reason)
            stream = feed.WatchChanges(
                feed_pb2.WatchChangesRequest(bank=self.name, cursor=cursor), metadata=metadata
            )
            try:
                await stream.read()
                found.add("")
            except grpc.aio.AioRpcError as error:
                found.add(outcome_of(error).reason)
            stream.cancel()
        return found


@pytest.fixture
async def bank(stack: RunningStack) -> AsyncIterator[Bank]:
    name = f"project:cursors-{uuid.uuid4().hex[:8]}"
    writer = stack.credential(await stack.token("user:cursor-writer", (name, "read write")))
    reader = stack.credential(await stack.token("user:cursor-reader", (name, "read")))
    stranger = stack.credential(await stack.token("user:cursor-stranger", ("project:other-1", "read")))
    async with stack.channel("sync") as channel:
        for _ in range(3):
            record = sync_pb2.Record(id=uuid.uuid4().hex[:16], text=f"words {uuid.uuid4()} {uuid.uuid4()}")
            await stack.sync(channel).Push(sync_pb2.PushRequest(bank=name, records=[record]), metadata=writer)
    async with stack.channel("feed") as channel:
        request = feed_pb2.ListChangesRequest(bank=name, limit=2)
        page = await stack.feed(channel).ListChanges(request, metadata=reader)
    assert page.through_seq == 2
    yield Bank(stack, name, reader, stranger, page.next_cursor)


def secret_of(stack: RunningStack) -> bytes:
    from kit.sealing import KeyStore

    keys = KeyStore(stack.data / "keys" / "keystore.db")
    try:
        return keys.secret("feed.cursors", make=False)
    finally:
        keys.close()


async def test_garbage_and_what_another_bank_or_deployment_gave_is_invalid(bank: Bank) -> None:
    assert await bank.reasons(bank.second) == {""}
    elsewhere = CursorCodec(secret_of(bank.stack)).write("project:other-1", Cursor(1, 2, 3))
    foreign = CursorCodec(b"x" * 32).write(bank.name, Cursor(1, 2, 3))
    for cursor in ("garbage", "%%%", "A" * 900, bank.second[:-1], bank.second + "AAAA", elsewhere, foreign):
        assert await bank.reasons(cursor) == {"CURSOR_INVALID"}, cursor


async def test_each_flipped_bit_is_found(bank: Bank) -> None:
    raw = base64.urlsafe_b64decode(bank.second + "=" * (-len(bank.second) % 4))
    async with bank.stack.channel("feed") as channel:
        feed = bank.stack.feed(channel)
        for bit in range(len(raw) * 8):
            spoiled = bytearray(raw)
            spoiled[bit // 8] ^= 1 << bit % 8
            cursor = base64.urlsafe_b64encode(bytes(spoiled)).decode().rstrip("=")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await feed.ListChanges(
                    feed_pb2.ListChangesRequest(bank=bank.name, cursor=cursor), metadata=bank.reader
                )
            assert outcome_of(caught.value).reason == "CURSOR_INVALID", bit


async def test_one_from_another_history_or_the_future_has_diverged(bank: Bank) -> None:
    codec = CursorCodec(secret_of(bank.stack))
    known = codec.read(bank.name, bank.second)
    for cursor in (
        Cursor(known.epoch, 4, known.nonce),
        Cursor(known.epoch, 2**62, known.nonce),
        Cursor(known.epoch, 2, known.nonce + 1),
        Cursor(known.epoch + 1, 2, known.nonce),
        Cursor(known.epoch + 1, 0, 0),
    ):
        assert await bank.reasons(codec.write(bank.name, cursor)) == {"CURSOR_DIVERGED"}, cursor


async def test_one_before_the_horizon_is_told_apart_and_a_watcher_is_told_as_well(bank: Bank) -> None:
    database = await asyncpg.connect(bank.stack.facts.database_url)
    codec = CursorCodec(secret_of(bank.stack))
    epoch = codec.read(bank.name, bank.second).epoch
    async with bank.stack.channel("feed") as channel:
        request = feed_pb2.WatchChangesRequest(bank=bank.name, cursor=bank.second)
        stream = bank.stack.feed(channel).WatchChanges(request, metadata=bank.reader)
        while (await stream.read()).bookmark.seq != 3:
            pass
        # As a trimming would leave it, in one commit with a change that the watcher has not had.
        await database.execute(
            "with c as (insert into memory.changes (bank, seq, memory_id, kind)"
            " select $1, n, 'nothing-1', 'erase' from generate_series(4, 5) n returning seq, nonce)"
            " update memory.heads set head = 5, horizon = 5, horizon_nonce = (select nonce from c where seq = 5)"
            " where bank = $1",
            bank.name,
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while True:
                message = await stream.read()
                assert message.bookmark.seq == 3, "nothing may be passed over in silence"
        assert outcome_of(caught.value).reason == "CURSOR_BEFORE_HORIZON"
    for cursor in ("", bank.second, codec.write(bank.name, Cursor(epoch, 0, 0))):
        assert await bank.reasons(cursor) == {"CURSOR_BEFORE_HORIZON"}
    nonce = await database.fetchval("select horizon_nonce from memory.heads where bank = $1", bank.name)
    assert await bank.reasons(codec.write(bank.name, Cursor(epoch, 5, nonce))) == {""}
    assert await bank.reasons(codec.write(bank.name, Cursor(epoch, 5, nonce + 1))) == {"CURSOR_DIVERGED"}
    await database.close()


async def test_permission_comes_before_the_cursor(bank: Bank) -> None:
    codec = CursorCodec(secret_of(bank.stack))
    for cursor in ("", "garbage", bank.second, codec.write(bank.name, Cursor(9, 9, 9))):
        assert await bank.reasons(cursor, bank.stranger) == {"PERMISSION_DENIED"}
