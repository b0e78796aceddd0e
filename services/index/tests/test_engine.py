"""The vector engine as a real process, driven by Qdrant's own client."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import struct
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from qdrant_client import AsyncQdrantClient, models

from services.index.engine import shards
from services.index.engine.complaints import Complaints
from tests.files import contents

ROOT = Path(__file__).parents[3]
DIMENSION = 32
NAME = "memories"

pytestmark = pytest.mark.asyncio


class Engine:
    """One folder, and the process that serves it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.start()

    def start(self) -> None:
        self.process = spawn(self.folder)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        match = re.search(r"listening on 127\.0\.0\.1:(\d+)", line)
        assert match, line + self.process.stderr.read()
        self.port = int(match[1])

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=20)
        return self.process.returncode

    def restart(self, number: int) -> None:
        self.end(number)
        self.start()

    def client(self) -> AsyncQdrantClient:
        return AsyncQdrantClient(
            host="127.0.0.1", grpc_port=self.port, prefer_grpc=True, check_compatibility=False, timeout=120
        )

    def on_disk(self, needles: list[bytes]) -> list[bool]:
        """For each byte string whether any file of the folder holds it (the files' empty tails left out)."""
        found = [False] * len(needles)
        for _, content in contents(self.folder):
            content = content.rstrip(b"\0") + bytes(16)
            found = [seen or needle in content for seen, needle in zip(found, needles, strict=True)]
        return found


def spawn(folder: Path) -> subprocess.Popen[str]:
    env = os.environ | {"TEAMLORE_LISTEN": "127.0.0.1:0", "TEAMLORE_ENGINE_DIR": str(folder)}
    command = [sys.executable, "-m", "services.index.engine.main"]
    return subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    running = Engine(tmp_path / "vectors")
    yield running
    if running.process.poll() is None:
        running.end(signal.SIGKILL)


def vectors(count: int, seed: int = 0) -> list[list[float]]:
    rows: list[list[float]] = np.random.default_rng(seed).standard_normal((count, DIMENSION)).tolist()
    return rows


def ident(number: int) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, str(number)))


async def make(client: AsyncQdrantClient, *, sparse: bool = False) -> None:
    await client.create_collection(
        NAME,
        vectors_config=models.VectorParams(size=DIMENSION, distance=models.Distance.COSINE),
        sparse_vectors_config={"terms": models.SparseVectorParams()} if sparse else None,
        metadata={"model": "test", "dimension": DIMENSION},
    )


def points(count: int, first: int = 0) -> list[models.PointStruct]:
    rows = vectors(first + count)
    return [
        models.PointStruct(
            id=ident(number),
            vector=rows[number],
            payload={"bank": f"b{number % 4}", "forgotten": number % 5 == 0, "number": number},
        )
        for number in range(first, first + count)
    ]


def where(name: str, value: str | bool | list[str]) -> models.Filter:
    match = models.MatchAny(any=value) if isinstance(value, list) else models.MatchValue(value=value)
    return models.Filter(must=[models.FieldCondition(key=name, match=match)])


async def numbers(client: AsyncQdrantClient, wanted: models.Filter | None) -> set[int]:
    found = await client.query_points(NAME, query=vectors(1)[0], query_filter=wanted, limit=1000)
    return {point.payload["number"] for point in found.points if point.payload}


async def stored_bytes(client: AsyncQdrantClient, number: int) -> bytes:
    """The float32 bytes of a point as the engine stores them (it scales them to unit length itself)."""
    (record,) = await client.retrieve(NAME, [ident(number)], with_vectors=True)
    assert isinstance(record.vector, list)
    return struct.pack(f"<{DIMENSION}f", *record.vector)


async def refused(call: object, code: grpc.StatusCode, text: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]  # any awaitable of the client
    assert caught.value.code() == code
    assert re.search(text, caught.value.details() or "")


async def send(channel: grpc.aio.Channel, method: str, raw: bytes) -> bytes:
    """One call of bare bytes."""
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/qdrant.{method}")
    return await call(raw)


async def test_collections_are_made_described_and_deleted(engine: Engine) -> None:
    client = engine.client()
    assert not await client.collection_exists(NAME)
    await make(client, sparse=True)
    assert [one.name for one in (await client.get_collections()).collections] == [NAME]
    await refused(make(client), grpc.StatusCode.ALREADY_EXISTS, "exists already")
    engine.restart(signal.SIGKILL)
    client = engine.client()
    info = await client.get_collection(NAME)
    assert info.points_count == 0
    assert isinstance(info.config.params.vectors, models.VectorParams)
    assert info.config.params.vectors.size == DIMENSION
    assert list(info.config.params.sparse_vectors or {}) == ["terms"]
    assert info.config.metadata == {"model": "test", "dimension": DIMENSION}
    assert list(info.payload_schema) == ["bank"]
    assert await client.delete_collection(NAME)
    assert not await client.collection_exists(NAME)
    await refused(client.count(NAME), grpc.StatusCode.NOT_FOUND, "does not exist")
    await make(client)
    for name in ("../x", "a/b", ".", ""):
        call = client.create_collection(name, models.VectorParams(size=4, distance=models.Distance.DOT))
        await refused(call, grpc.StatusCode.INVALID_ARGUMENT, "named by")


async def test_the_nearest_points_come_back_with_score_and_payload(engine: Engine) -> None:
    client = engine.client()
    await make(client)
    await client.upsert(NAME, points(200))
    assert (await client.count(NAME)).count == 200
    wanted = vectors(200)[7]
    best = (await client.query_points(NAME, query=wanted, limit=3, with_payload=["bank"])).points
    assert best[0].id == ident(7)
    assert best[0].score == pytest.approx(1, abs=1e-5)
    assert best[0].payload == {"bank": "b3"}
    assert best[0].score > best[1].score > best[2].score
    close = await client.query_points(NAME, query=wanted, score_threshold=0.99)
    assert [one.id for one in close.points] == [ident(7)]
    requests = [models.QueryRequest(query=row, limit=1) for row in vectors(200)[20:40]]
    batch = await client.query_batch_points(NAME, requests)
    assert [one.points[0].id for one in batch] == [ident(number) for number in range(20, 40)]
    got = await client.retrieve(NAME, [ident(5), ident(999)])
    assert [one.payload for one in got] == [{"bank": "b1", "forgotten": True, "number": 5}]


async def test_filters_select_exactly_what_they_say(engine: Engine) -> None:
    client = engine.client()
    await make(client)
    await client.create_payload_index(NAME, "bank", models.PayloadSchemaType.KEYWORD)
    await client.create_payload_index(NAME, "forgotten", models.PayloadSchemaType.BOOL)
    await client.upsert(NAME, points(100))
    assert await numbers(client, where("bank", "b1")) == {n for n in range(100) if n % 4 == 1}
    assert await numbers(client, where("bank", ["b1", "b2"])) == {n for n in range(100) if n % 4 in (1, 2)}
    assert await numbers(client, where("forgotten", True)) == {n for n in range(100) if n % 5 == 0}
    assert await numbers(client, where("forgotten", False)) == {n for n in range(100) if n % 5}
    asked = [where("bank", "b1"), where("bank", "b1"), None, where("bank", "b2"), where("bank", "b1")]
    batch = [models.QueryRequest(query=vectors(1)[0], filter=one, limit=100) for one in asked]
    found = [
        {point.id for point in answer.points} for answer in await client.query_batch_points(NAME, batch)
    ]
    of = {bank: {ident(n) for n in range(100) if n % 4 == bank} for bank in (1, 2)}
    assert found == [of[1], of[1], {ident(n) for n in range(100)}, of[2], of[1]]
    assert await numbers(client, where("number", True)) == set()  # a boolean is not the number 1
    assert await numbers(client, where("bank", [])) == set()
    some = models.HasIdCondition(has_id=[ident(1), ident(2), ident(500)])
    assert await numbers(client, models.Filter(must=[some])) == {1, 2}
    assert await numbers(client, models.Filter(must=[models.HasIdCondition(has_id=[])])) == set()
    mixed = models.Filter(must=[some], must_not=[where("bank", "b1")])
    assert await numbers(client, mixed) == {2}
    either = models.Filter(should=[where("bank", "b0"), where("forgotten", True)])
    assert await numbers(client, either) == {n for n in range(100) if n % 4 == 0 or n % 5 == 0}
    assert (await client.count(NAME, count_filter=either)).count == 40


async def test_sparse_terms_find_their_points(engine: Engine) -> None:
    client = engine.client()
    await make(client, sparse=True)
    rows = vectors(3)
    terms = [models.SparseVector(indices=[7, number + 10], values=[1.0, 2.0]) for number in range(3)]
    stored = [models.PointStruct(id=ident(n), vector={"": rows[n], "terms": terms[n]}) for n in range(2)]
    stored.append(models.PointStruct(id=ident(2), vector={"terms": terms[2]}))
    await client.upsert(NAME, stored)
    query = models.SparseVector(indices=[7, 11], values=[1.0, 1.0])
    found = (await client.query_points(NAME, query=query, using="terms", limit=2)).points
    assert (found[0].id, found[0].score, found[1].score) == (ident(1), 3.0, 1.0)
    got = await client.retrieve(NAME, [ident(2)], with_vectors=True)
    assert got[0].vector == {"terms": terms[2]}


async def test_scroll_walks_every_point_once(engine: Engine) -> None:
    client = engine.client()
    await make(client)
    await client.upsert(NAME, points(25))
    seen, offset = await client.scroll(NAME, limit=10)
    while offset is not None:
        page, offset = await client.scroll(NAME, limit=10, offset=offset)
        seen += page
    assert sorted(str(one.id) for one in seen) == sorted(ident(number) for number in range(25))


async def test_what_is_not_supported_is_refused_in_words(engine: Engine) -> None:
    client = engine.client()
    await make(client)
    await client.upsert(NAME, points(3))
    unsupported, invalid = grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INVALID_ARGUMENT
    await refused(
        client.set_payload(NAME, {"a": 1}, points=[ident(1)]), unsupported, "serve qdrant.Points.SetPayload"
    )
    ranged = models.Filter(must=[models.FieldCondition(key="number", range=models.Range(gt=1))])
    await refused(client.count(NAME, count_filter=ranged), unsupported, "FieldCondition.range")
    await refused(client.query_points(NAME, query=ident(1)), unsupported, "VectorInput.id")
    fused = client.query_points(
        NAME,
        prefetch=models.Prefetch(query=vectors(1)[0]),
        query=models.FusionQuery(fusion=models.Fusion.RRF),
    )
    await refused(fused, unsupported, "QueryPoints.prefetch")
    short = [models.PointStruct(id=ident(9), vector=[1.0] * (DIMENSION - 1))]
    await refused(
        client.upsert(NAME, points(2, first=5) + short), invalid, "31 dimensions, the collection 32"
    )
    nan = [models.PointStruct(id=ident(9), vector=[float("nan")] * DIMENSION)]
    await refused(client.upsert(NAME, nan), invalid, "not finite")
    await refused(client.query_points(NAME, query=[1.0]), invalid, "1 dimensions, the collection 32")
    everything = models.FilterSelector(filter=models.Filter())
    await refused(client.delete(NAME, everything), invalid, "empty filter")
    assert (await client.count(NAME)).count == 3
    async with grpc.aio.insecure_channel(f"127.0.0.1:{engine.port}") as channel:
        for name, code in (("Points/Upsert", invalid), ("Points/Facet", unsupported)):
            await refused(send(channel, name, b"\xff\xff"), code, "qdrant")


@pytest.mark.parametrize("count", [1, 30, 60])
async def test_deleted_vectors_are_in_no_file(engine: Engine, count: int) -> None:
    client = engine.client()
    await make(client)
    await client.upsert(NAME, points(60))
    needles = [await stored_bytes(client, number) for number in range(60)]
    assert all(engine.on_disk(needles))
    await client.delete(NAME, [ident(number) for number in range(count)], wait=True)
    assert engine.on_disk(needles) == [number >= count for number in range(60)]
    engine.restart(signal.SIGKILL)
    assert engine.on_disk(needles) == [number >= count for number in range(60)]
    assert (await engine.client().count(NAME)).count == 60 - count


async def test_replaced_vectors_and_those_deleted_by_filter_leave_too(engine: Engine) -> None:
    client = engine.client()
    await make(client)
    await client.upsert(NAME, points(40))
    needles = [await stored_bytes(client, number) for number in range(40)]
    replaced = [models.PointStruct(id=ident(3), vector=vectors(1, seed=9)[0], payload={"bank": "b3"})]
    await client.upsert(NAME, replaced)
    needles.append(await stored_bytes(client, 3))
    await client.delete(NAME, models.FilterSelector(filter=where("bank", "b3")), wait=True)
    gone = [needle for number, needle in enumerate(needles) if number % 4 == 3 or number == 40]
    assert not any(engine.on_disk(gone))
    assert (await client.count(NAME)).count == 30


async def test_many_deletes_at_once_share_their_rewrites(engine: Engine) -> None:
    client = engine.client()
    await make(client)
    for first in range(0, 20_000, 1000):
        await client.upsert(NAME, points(1000, first=first))
    needles = [await stored_bytes(client, number) for number in range(100)]
    await asyncio.gather(*(client.delete(NAME, [ident(number)], wait=True) for number in range(100)))
    assert not any(engine.on_disk(needles))
    disk: Any = FullDisk()
    disk.full = False
    shard = shards.Shard(shards.Spec(DIMENSION, "Cosine"), disk)
    await asyncio.gather(*(shard.delete(disk, wait=True) for _ in range(100)))
    await shard.close()
    assert disk.tries < 25


async def test_kill_9_keeps_every_acknowledged_point(engine: Engine) -> None:
    await make(engine.client())
    total = 0

    async def write(client: AsyncQdrantClient, first: int, acknowledged: list[int]) -> None:
        while True:
            await client.upsert(NAME, points(10, first=first), wait=True)
            acknowledged.append(first)
            first += 10

    for _ in range(4):
        client = engine.client()
        acknowledged: list[int] = []
        writer = asyncio.create_task(write(client, total, acknowledged))
        while len(acknowledged) < 5 and not writer.done():
            await asyncio.sleep(0.02)
        engine.restart(signal.SIGKILL)
        with pytest.raises(grpc.aio.AioRpcError):
            await writer
        client = engine.client()
        assert len(acknowledged) >= 5
        kept = await client.retrieve(NAME, [ident(n + i) for n in acknowledged for i in range(10)])
        assert len(kept) == 10 * len(acknowledged)
        total = acknowledged[-1] + 10


async def test_kill_9_during_deletes_neither_revives_points_nor_keeps_their_bytes(engine: Engine) -> None:
    client = engine.client()
    await make(client)
    for first in range(0, 6000, 1000):
        await client.upsert(NAME, points(1000, first=first))
    needles = {number: await stored_bytes(client, number) for number in range(100)}
    done: list[int] = []

    async def erase(client: AsyncQdrantClient, done: list[int]) -> None:
        for number in range(len(done), 100):
            await client.delete(NAME, [ident(number)], wait=True)
            done.append(number)

    for cycle in range(6):
        eraser = asyncio.create_task(erase(client, done))
        before = len(done)
        await asyncio.sleep(0.3 + 0.037 * cycle)
        while len(done) < before + 2 and not eraser.done():
            await asyncio.sleep(0.01)
        engine.restart(signal.SIGKILL)
        with pytest.raises(grpc.aio.AioRpcError):
            await eraser
        client = engine.client()
        assert await client.retrieve(NAME, [ident(number) for number in done]) == []
        # The delete that was cut off may have come to pass or not; whatever is not there left no bytes.
        there = {str(one.id) for one in await client.retrieve(NAME, [ident(number) for number in needles])}
        assert engine.on_disk(list(needles.values())) == [ident(number) in there for number in needles]
        assert (await client.count(NAME)).count == 6000 - (100 - len(there))
        done = [number for number in needles if ident(number) not in there]
    assert len(done) > 6


async def test_a_caller_that_goes_away_leaves_the_engine_whole(engine: Engine) -> None:
    client = engine.client()
    await make(client)
    await client.upsert(NAME, points(500))
    calls = [asyncio.create_task(client.delete(NAME, [ident(number)], wait=True)) for number in range(50)]
    await asyncio.sleep(0.01)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await client.delete(NAME, [ident(number) for number in range(50)], wait=True)
    assert (await client.count(NAME)).count == 450


async def test_a_second_process_on_the_folder_is_refused(engine: Engine) -> None:
    second = spawn(engine.folder)
    _, said = second.communicate(timeout=20)
    assert second.returncode == 1
    assert said.strip() == f"another vector engine is running on {engine.folder}"
    await make(engine.client())


async def test_health_and_an_orderly_end(engine: Engine) -> None:
    client = engine.client()
    await make(client)
    await client.upsert(NAME, points(10))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{engine.port}") as channel:
        health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        assert b"teamlore vector engine" in await send(channel, "Qdrant/HealthCheck", b"")
    await client.close()
    assert engine.end(signal.SIGTERM) == 0
    engine.start()
    assert (await engine.client().count(NAME)).count == 10


TOO_FULL = "Service runtime error: Not enough space available for optimization, needed: 25.91 MiB, available: 11.04 MiB"


class FullDisk:
    """Stands in for the engine's shard on a disk that is too full for the optimizer, until it is not."""

    def __init__(self) -> None:
        self.full, self.tries = True, 0

    def update(self, operation: object) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def optimize(self) -> bool:
        self.tries += 1
        if self.full:
            raise Exception(TOO_FULL)  # as the engine does
        return False


async def test_on_a_full_disk_a_delete_says_what_it_needs_and_goes_on_by_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shards, "_FIRST_RETRY", 0.02)
    disk: Any = FullDisk()
    shard = shards.Shard(shards.Spec(DIMENSION, "Cosine"), disk)
    for _ in range(20):
        with pytest.raises(shards.NoSpace, match=r"needed 25\.91 MiB, free 11\.04 MiB"):
            await shard.delete(disk, wait=True)
    await shard.delete(disk, wait=False)
    await asyncio.sleep(0.1)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "needed 25.91 MiB" in caplog.text and "Traceback" not in caplog.text
    shard._pause = 0.02
    shard._sweep()
    await asyncio.sleep(0.1)
    disk.full, before = False, disk.tries
    await asyncio.sleep(0.2)
    assert disk.tries > before, "nobody asked, and it was not tried again"
    settled = disk.tries
    await asyncio.sleep(0.2)
    assert disk.tries == settled
    await shard.delete(disk, wait=True)
    await shard.close()


async def test_a_sweep_that_opening_has_no_space_for_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shards.Shards(tmp_path)
    await folder.create(NAME, shards.Spec(DIMENSION, "Cosine"))
    await folder.close()
    swept: list[object] = []

    def full(shard: object) -> None:
        swept.append(shard)
        if len(swept) < 3:
            raise shards.NoSpace("too full")

    monkeypatch.setattr(shards, "sweep", full)
    monkeypatch.setattr(shards, "_FIRST_RETRY", 0.02)
    folder = shards.Shards(tmp_path)
    folder.sweep_what_was_not()
    await asyncio.sleep(0.3)
    assert len(swept) == 3 and folder.names() == [NAME]
    await folder.close()


async def test_a_failure_is_told_once_a_minute_with_its_count() -> None:
    now = [0.0]
    complaints = Complaints(60, lambda: now[0])
    assert not complaints.known("a")
    assert [complaints.due(name) for name in "aaba"] == [1, 0, 1, 0] and complaints.known("a")
    now[0] = 60
    assert [complaints.due(name) for name in "aab"] == [3, 0, 1]
