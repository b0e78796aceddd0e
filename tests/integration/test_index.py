"""Found by meaning, repeated by nobody, gone when forgotten: index with a real engine, Postgres, auth, sync and feed."""

import asyncio
import struct
import time
import uuid
from pathlib import Path

import grpc
import pytest
from qdrant_client import AsyncQdrantClient
from teamlore.compliance.v1 import compliance_pb2, compliance_pb2_grpc
from teamlore.index.v1 import index_pb2, index_pb2_grpc
from teamlore.sync.v1 import sync_pb2

from services.index.vectors import COLLECTION, point_id
from tests.integration.conftest import RunningStack
from tests.integration.test_walking_slice import reason_of, record

QUEUE = "We use SQS for the order queue because Kafka was too much to run."


def fresh_bank() -> str:
    return f"project:index-{uuid.uuid4().hex[:8]}"


async def person(stack: RunningStack) -> tuple[tuple[str, str], ...]:
    return stack.credential(await stack.token("user:alice", ("project:*", "read write forget")))


async def push(
    stack: RunningStack, who: tuple[tuple[str, str], ...], bank: str, *records: sync_pb2.Record
) -> list[tuple[str, str]]:
    async with stack.channel("sync") as channel:
        answer = await stack.sync(channel).Push(
            sync_pb2.PushRequest(bank=bank, records=records), metadata=who
        )
    assert not answer.dedup_skipped
    return [(result.status, result.duplicate_of) for result in answer.results]


async def forget(
    stack: RunningStack, who: tuple[tuple[str, str], ...], bank: str, memory_id: str, erase: bool
) -> str:
    async with stack.channel("sync") as channel:
        request = sync_pb2.ForgetRequest(bank=bank, memory_ids=[memory_id], erase=erase)
        return str((await stack.sync(channel).Forget(request, metadata=who)).erasure_id)


async def search(
    stack: RunningStack, who: tuple[tuple[str, str], ...], bank: str, query: str
) -> list[index_pb2.SearchHit]:
    async with stack.channel("index") as channel:
        request = index_pb2.SearchRequest(bank=bank, query=query)
        return list((await index_pb2_grpc.IndexServiceStub(channel).Search(request, metadata=who)).hits)


async def found(
    stack: RunningStack, who: tuple[tuple[str, str], ...], bank: str, query: str, count: int
) -> list[index_pb2.SearchHit]:
    deadline = time.monotonic() + 10
    while len(hits := await search(stack, who, bank, query)) < count:
        assert time.monotonic() < deadline, "the follower did not index what was pushed"
        await asyncio.sleep(0.05)
    return hits


def engine(stack: RunningStack) -> AsyncQdrantClient:
    return AsyncQdrantClient(
        host="127.0.0.1", grpc_port=stack.facts.ports["engine"], prefer_grpc=True, check_compatibility=False
    )


def files_hold(folder: Path, needle: bytes) -> bool:
    return any(path.is_file() and needle in path.read_bytes() for path in folder.rglob("*"))


def vector_bytes(vector: object) -> bytes:
    assert isinstance(vector, list)
    return struct.pack(f"<{len(vector)}f", *vector)


async def test_a_pushed_memory_is_found_by_meaning_with_its_author(stack: RunningStack) -> None:
    who, bank = await person(stack), fresh_bank()
    sent = record(QUEUE, tags=["queue"])
    other = record("The design team meets on Tuesdays at ten.")
    assert await push(stack, who, bank, sent, other) == [("stored", ""), ("stored", "")]
    best, second = await found(stack, who, bank, "Which message broker handles orders?", 2)
    assert (best.id, best.text, list(best.tags), best.author, best.lane) == (
        sent.id, QUEUE, ["queue"], "user:alice", "synced",
    )  # fmt: skip
    assert best.score > second.score
    assert await search(stack, who, fresh_bank(), QUEUE) == []


async def test_a_near_duplicate_is_named_at_once_and_within_a_batch_and_in_no_other_bank(
    stack: RunningStack,
) -> None:
    who, bank = await person(stack), fresh_bank()
    first, repeated, later = record(QUEUE), record(QUEUE), record(QUEUE + " ")
    assert await push(stack, who, bank, first, repeated) == [("stored", ""), ("duplicate", first.id)]
    assert await push(stack, who, bank, later) == [("duplicate", first.id)]
    await found(stack, who, bank, QUEUE, 1)
    assert await push(stack, who, bank, record(QUEUE)) == [("duplicate", first.id)]
    assert await push(stack, who, fresh_bank(), record(QUEUE)) == [("stored", "")]


@pytest.mark.parametrize("indexed", [False, True])
async def test_a_forgotten_memory_is_neither_found_nor_named(stack: RunningStack, indexed: bool) -> None:
    who, bank = await person(stack), fresh_bank()
    sent = record(QUEUE)
    await push(stack, who, bank, sent)
    if indexed:
        await found(stack, who, bank, QUEUE, 1)
    await forget(stack, who, bank, sent.id, erase=False)
    assert await search(stack, who, bank, QUEUE) == []
    assert await push(stack, who, bank, record(QUEUE)) == [("stored", "")]


async def test_an_erased_memory_leaves_no_byte_of_its_vector(stack: RunningStack) -> None:
    who, bank = await person(stack), fresh_bank()
    text = f"The pager of the payments team rings {uuid.uuid4()}."  # of no other bank, so its vector is in one point
    sent, kept = record(text), record("Deploys happen from main, twice a day.")
    await push(stack, who, bank, sent, kept)
    await found(stack, who, bank, text, 2)
    client = engine(stack)
    (point,) = await client.retrieve(
        COLLECTION, [point_id(bank, sent.id)], with_vectors=True, with_payload=True
    )
    assert set(point.payload or {}) == {"id", "bank", "lane", "derivation"}
    (other,) = await client.retrieve(COLLECTION, [point_id(bank, kept.id)], with_vectors=True)
    needle, control = vector_bytes(point.vector), vector_bytes(other.vector)
    folder = stack.data / "vectors"
    assert files_hold(folder, needle) and files_hold(folder, control)
    erasure = await forget(stack, who, bank, sent.id, erase=True)
    request = compliance_pb2.EraseObjectsRequest(erasure_id=erasure, bank=bank, memory_ids=[sent.id, kept.id])
    async with stack.channel("index") as channel:
        stub = compliance_pb2_grpc.ErasureParticipantServiceStub(channel)
        internal = stack.credential(stack.facts.tokens["sync"])
        assert (await stub.EraseObjects(request, metadata=internal)).erased_count <= 1
        assert not files_hold(folder, needle)
        assert (await stub.EraseObjects(request, metadata=internal)).erased_count == 0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.EraseObjects(request, metadata=who)
    assert reason_of(caught.value) == "PERMISSION_DENIED"
    # The live memory named beside it keeps its vector, and the erased one does not come back.
    assert [hit.id for hit in await search(stack, who, bank, text)] == [kept.id]
    assert files_hold(folder, control) and not files_hold(folder, needle)
    await client.close()


async def test_who_may_not_read_a_bank_cannot_search_it(stack: RunningStack) -> None:
    eve = stack.credential(await stack.token("user:eve", ("space:*", "read")))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await search(stack, eve, fresh_bank(), QUEUE)
    assert reason_of(caught.value) == "PERMISSION_DENIED"
