"""Found by meaning, repeated by nobody, gone when forgotten: index with a real engine, Postgres, auth, sync and feed."""

import asyncio
import os
import secrets
import signal
import struct
import time
import uuid
from pathlib import Path

import asyncpg
import grpc
import pytest
from qdrant_client import AsyncQdrantClient
from teamlore.auth.v1 import access_pb2, access_pb2_grpc
from teamlore.compliance.v1 import compliance_pb2, compliance_pb2_grpc
from teamlore.index.v1 import index_pb2, index_pb2_grpc
from teamlore.sync.v1 import sync_pb2

from services.index import term_points
from services.index.terms import leads
from services.index.vectors import COLLECTION, point_id
from services.sync import neighbours
from services.sync.records import Draft
from tests.files import contents
from tests.integration.conftest import RunningStack
from tests.integration.test_walking_slice import reason_of, record
from tests.robustness.processes import pid_of

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
    deadline = time.monotonic() + 30
    while len(hits := await search(stack, who, bank, query)) < count:
        assert time.monotonic() < deadline, "the follower did not index what was pushed"
        await asyncio.sleep(0.05)
    return hits


def engine(stack: RunningStack) -> AsyncQdrantClient:
    return AsyncQdrantClient(
        host="127.0.0.1", grpc_port=stack.facts.ports["engine"], prefer_grpc=True, check_compatibility=False
    )


def files_hold(folder: Path, needle: bytes) -> bool:
    return any(needle in content for _, content in contents(folder))


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


SENTENCE = "The retry budget of the checkout service is five attempts. "
BEGINNING = SENTENCE * 40


@pytest.mark.parametrize("indexed", [False, True])
async def test_different_texts_that_the_model_cannot_tell_apart_are_all_stored(
    stack: RunningStack, indexed: bool
) -> None:
    who, bank = await person(stack), fresh_bank()
    texts = ["ฉันชอบกาแฟ", "ฐานข้อมูลอยู่ที่ไหน", "አማርኛ ቋንቋ", "ጠዋት ስብሰባ", "ភាសាខ្មែរ", "🙂", "🎉"]
    texts += [BEGINNING + "Alice owns it.", BEGINNING + "Bob owns it.", "x" * 20_000, "x" * 20_001]
    sent = [record(text) for text in texts]
    assert await push(stack, who, bank, *sent[::2]) == [("stored", "")] * 6
    if indexed:
        await found(stack, who, bank, QUEUE, 6)
    assert await push(stack, who, bank, *sent[1::2]) == [("stored", "")] * 5
    if indexed:
        await found(stack, who, bank, QUEUE, 10)
    # Said once more in the same words they are duplicates, but for one too long to be asked about.
    again = await push(stack, who, bank, *(record(text + " \n") for text in texts))
    assert again == [("duplicate", one.id) for one in sent[:9]] + [("stored", "")] * 2
    # Just short enough to be seen whole, and of nearly the vector of those that were cut: stored too.
    assert await push(stack, who, bank, record(SENTENCE * 19)) == [("stored", "")]


async def test_search_and_push_are_answered_while_a_hundred_long_texts_are_indexed(
    stack: RunningStack,
) -> None:
    who, bank, other = await person(stack), fresh_bank(), fresh_bank()
    await push(stack, who, other, record(QUEUE))
    await found(stack, who, other, QUEUE, 1)
    long = (BEGINNING * 20)[:39_000]
    sent = [record(f"{number} {long}") for number in range(100)]
    await push(stack, who, bank, *sent)
    assert len(await search(stack, who, other, "which queue do we use")) == 1
    assert [status for status, _ in await push(stack, who, other, record(QUEUE))] == ["duplicate"]
    connection = await asyncpg.connect(stack.facts.database_url)
    followed = await connection.fetchval("select seq from index.cursors where bank = $1", bank)
    await connection.close()
    assert (followed or 0) < 100, "the answers waited for the push before them"
    later = record("The design team meets on Tuesdays at ten.")
    await push(stack, who, other, later)
    await found(stack, who, other, QUEUE, 2)  # its bank has a turn, too
    async with stack.channel("sync") as channel:  # spares the tests after this one the rest of the work
        request = sync_pb2.ForgetRequest(bank=bank, memory_ids=[one.id for one in sent])
        await stack.sync(channel).Forget(request, metadata=who)


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


@pytest.mark.parametrize(
    ("status", "shown"), [("suspect", True), ("superseded", False), ("contradicted", False)]
)
async def test_what_the_team_holds_to_be_wrong_or_outdated_is_not_found(
    stack: RunningStack, status: str, shown: bool
) -> None:
    who, bank = await person(stack), fresh_bank()
    sent = record(QUEUE)
    await push(stack, who, bank, sent)
    await found(stack, who, bank, QUEUE, 1)
    async with stack.channel("sync") as channel:
        request = sync_pb2.UpdateStatusRequest(bank=bank, id=sent.id, version=1, status=status)
        await stack.sync(channel).UpdateStatus(request, metadata=who)
    assert [hit.id for hit in await search(stack, who, bank, QUEUE)] == [sent.id] * shown


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
    assert set(point.payload or {}) == {"id", "bank", "lane", "derivation", "whole"}
    (other,) = await client.retrieve(COLLECTION, [point_id(bank, kept.id)], with_vectors=True)
    needle, control = vector_bytes(point.vector), vector_bytes(other.vector)
    (terms,) = await client.retrieve(term_points.COLLECTION, [point_id(bank, sent.id)], with_payload=True)
    assert set(terms.payload or {}) == {"id", "bank", "leads"}
    folder = stack.data / "vectors"
    assert files_hold(folder, needle) and files_hold(folder, control)
    erasure = await forget(stack, who, bank, sent.id, erase=True)
    request = compliance_pb2.EraseObjectsRequest(erasure_id=erasure, bank=bank, memory_ids=[sent.id, kept.id])
    async with stack.channel("index") as channel:
        stub = compliance_pb2_grpc.ErasureParticipantServiceStub(channel)
        internal = stack.credential(stack.facts.tokens["sync"])
        assert (await stub.EraseObjects(request, metadata=internal)).erased_count <= 1
        assert not files_hold(folder, needle)
        assert not await client.retrieve(term_points.COLLECTION, [point_id(bank, sent.id)])
        assert len(await client.retrieve(term_points.COLLECTION, [point_id(bank, kept.id)])) == 1
        assert (await stub.EraseObjects(request, metadata=internal)).erased_count == 0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.EraseObjects(request, metadata=who)
    assert reason_of(caught.value) == "PERMISSION_DENIED"
    # The live memory named beside it keeps its vector, and the erased one does not come back.
    assert [hit.id for hit in await search(stack, who, bank, text)] == [kept.id]
    assert files_hold(folder, control) and not files_hold(folder, needle)
    await client.close()


async def test_an_erasure_reaches_what_a_replica_of_an_earlier_version_made_anew(stack: RunningStack) -> None:
    who, bank = await person(stack), fresh_bank()
    officer = stack.credential(await stack.token("user:officer", ("project:*", "read comply")))
    sent, kept = record(f"The pager of team {uuid.uuid4()} rings."), record("Deploys happen from main, twice a day.")
    await push(stack, who, bank, sent, kept)
    former = term_points.TermPoints(f"http://127.0.0.1:{stack.facts.ports['engine']}", term_points.FORMER)
    await former.create()
    try:
        terms: list[dict[int, float]] = [{secrets.randbits(32): 1.0 for _ in range(3)} for _ in range(2)]
        await former.put(bank, [(sent.id, terms[0]), (kept.id, terms[1])])
        needles = [leads(each)[0].encode() for each in terms]
        folder = stack.data / "vectors"
        assert [files_hold(folder, needle) for needle in needles] == [True, True]
        async with stack.channel("compliance") as channel:
            compliance = compliance_pb2_grpc.ComplianceServiceStub(channel)
            erase = compliance_pb2.EraseMemoriesRequest(bank=bank, memory_ids=[sent.id])
            erasure_id = (await compliance.EraseMemories(erase, metadata=officer)).erasure_id
            ask = compliance_pb2.GetErasureRequest(erasure_id=erasure_id)
            async with asyncio.timeout(30):
                while (await compliance.GetErasure(ask, metadata=officer)).erasure.state != "server_done":
                    await asyncio.sleep(0.05)
        assert [files_hold(folder, needle) for needle in needles] == [False, True]
        assert await former.present(bank, [sent.id, kept.id]) == {kept.id}
    finally:
        await former.remove()
        await former.close()


async def test_who_may_not_read_a_bank_cannot_search_it(stack: RunningStack) -> None:
    eve = stack.credential(await stack.token("user:eve", ("space:*", "read")))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await search(stack, eve, fresh_bank(), QUEUE)
    assert reason_of(caught.value) == "PERMISSION_DENIED"


@pytest.mark.parametrize(
    ("checks", "told"),
    [("skip", "duplicate {id}"), ("warn", "stored near-duplicate of {id}"), ("off", "stored")],
)
async def test_a_caller_who_may_only_write_learns_what_the_guide_says(
    stack: RunningStack, checks: str, told: str
) -> None:
    bank, kept = fresh_bank(), record(QUEUE)
    assert await push(stack, await person(stack), bank, kept) == [("stored", "")]
    admin = stack.credential(await stack.admin_session())
    async with stack.channel("auth") as channel:
        policy = access_pb2.Policy(near_duplicates=checks)
        request = access_pb2.PutPolicyRequest(bank=bank, policy=policy)
        await access_pb2_grpc.AccessServiceStub(channel).PutPolicy(request, metadata=admin)
    blind = stack.credential(await stack.token("service:intake", ("project:*", "write")))
    async with stack.channel("sync") as channel:
        sync = stack.sync(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await sync.GetMemories(
                sync_pb2.GetMemoriesRequest(bank=bank, memory_ids=[kept.id]), metadata=blind
            )
        assert reason_of(caught.value) == "PERMISSION_DENIED"
        # The id first: a guess that is stored would be what a text repeats next.
        pushed = await sync.Push(sync_pb2.PushRequest(bank=bank, records=[kept]), metadata=blind)
        assert pushed.results[0].status == "unchanged"
        (guess,) = (
            await sync.Push(sync_pb2.PushRequest(bank=bank, records=[record(QUEUE)]), metadata=blind)
        ).results
        words = f"{guess.status} {guess.reason}{guess.duplicate_of}".strip()
        assert words == told.format(id=kept.id)
        change = sync_pb2.UpdateStatusRequest(bank=bank, id=kept.id, version=9, status="suspect")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await sync.UpdateStatus(change, metadata=blind)
        assert reason_of(caught.value) == "VERSION_CONFLICT"


async def test_a_stopped_index_is_waited_for_once_and_asked_again_when_it_goes_on(
    stack: RunningStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As sync asks it, with a shorter patience."""
    monkeypatch.setattr(neighbours, "TIMEOUT", 2.0)
    monkeypatch.setattr(neighbours, "MOMENT", 0.1)
    monkeypatch.setattr(neighbours, "PAUSE", 0.5)
    client = neighbours.IndexClient(stack.address("index"), stack.facts.tokens["sync"])

    async def checked(text: str) -> bool:
        draft = Draft(uuid.uuid4().hex, text, b"", "", None)
        return await client.find(fresh_bank(), [draft], 0.95) is not None

    pid = pid_of(stack, "index")
    try:
        assert await checked(QUEUE)
        os.kill(pid, signal.SIGSTOP)
        try:
            assert not await checked(QUEUE)
            # One of these asks once more, and none waits as the first one did.
            async with asyncio.timeout(2.0):
                assert not any([await checked(QUEUE) for _ in range(20)])
                await asyncio.sleep(0.6)
                assert not any([await checked(QUEUE) for _ in range(20)])
        finally:
            os.kill(pid, signal.SIGCONT)
        async with asyncio.timeout(20):
            while not await checked(QUEUE):
                await asyncio.sleep(0.05)
        assert await checked(QUEUE)
    finally:
        await client.close()
