"""A search serves only the lanes that the bank's policy lets through, judged on live rows; real Postgres and engine."""

import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import asyncpg
import numpy as np
import pytest
from teamlore.sync.v1 import sync_pb2

from kit.database import Database
from kit.sealing import Allocator, KeyStore, seal
from services.index.embedding import Urgency
from services.index.finding import Finder
from services.index.following import Seen
from services.index.store import QUERIES, Store
from services.index.tests.test_engine import Engine
from services.index.vectors import Point, Vectors

BANK = "project:lanes-1"
NEAR = np.array([1, 0, 0], dtype=np.float32)
LANES = {"aaaaaaaa": "synced", "bbbbbbbb": "capture", "cccccccc": "entry"}


class Embedding:
    async def embed(self, texts: Sequence[str], urgency: Urgency) -> list[Seen]:
        return [Seen(NEAR, True) for _ in texts]


class Bench:
    def __init__(self, finder: Finder, vectors: Vectors, url: str) -> None:
        self.finder, self.vectors, self._url = finder, vectors, url

    async def sql(self, statement: str, *args: object) -> None:
        connection = await asyncpg.connect(self._url)
        try:
            await connection.execute(statement, *args)
        finally:
            await connection.close()

    async def least(self, lane: str) -> None:
        await self.sql("select memory.put_policy($1, null, null, null, null, null, $2, null)", BANK, lane)

    async def found(self, limit: int = 10) -> set[str]:
        return {memory.id for memory, _ in await self.finder.search(BANK, "which queue", limit)}


@pytest.fixture
async def bench(database_url: str, tmp_path: Path) -> AsyncIterator[Bench]:
    engine = Engine(tmp_path / "vectors")
    database = await Database.connect(database_url, "index", QUERIES)
    keys, vectors = KeyStore(tmp_path / "k.db", make=True), Vectors(f"http://127.0.0.1:{engine.port}")
    bench = Bench(
        Finder(Store(database, keys), vectors, Embedding()),  # type: ignore[arg-type]
        vectors,
        database_url,
    )
    await bench.sql("select memory.open_bank($1)", BANK)
    slots = Allocator(keys).take(BANK, "user:alice", len(LANES))
    for (memory_id, lane), slot in zip(LANES.items(), slots, strict=True):
        content = sync_pb2.MemoryContent(text=f"text of {memory_id}").SerializeToString()
        sealed = seal(keys.fresh_key(slot), BANK, memory_id, content)
        await bench.sql(
            "select memory.put($1, 'user:alice', array[$2], array[''], array[null::timestamptz], array[$3::bigint],"
            " array[$4::int], array[$5::bytea])",
            BANK, memory_id, slot.page, slot.index, sealed,
        )  # fmt: skip
        # Entries and captures come with services of their own; here the row is set under the guard.
        await bench.sql(
            f"set session_replication_role = replica; update memory.memories set lane = '{lane}' where id = '{memory_id}'"
        )
    await vectors.create(3)
    await vectors.put(
        BANK, [Point(memory_id, lane, "fact", Seen(NEAR, True)) for memory_id, lane in LANES.items()]
    )
    yield bench
    await vectors.close()
    await database.close()
    engine.end(signal.SIGKILL)


@pytest.mark.parametrize(
    ("least", "served"),
    [
        ("synced", {"aaaaaaaa", "bbbbbbbb", "cccccccc"}),
        ("capture", {"bbbbbbbb", "cccccccc"}),
        ("entry", {"cccccccc"}),
    ],
)
async def test_only_lanes_at_or_above_the_least_are_served(
    bench: Bench, least: str, served: set[str]
) -> None:
    await bench.least(least)
    assert await bench.found() == served


async def test_what_a_vector_says_of_its_lane_leaks_nothing(bench: Bench) -> None:
    await bench.vectors.put(BANK, [Point("aaaaaaaa", "entry", "fact", Seen(NEAR, True))])
    await bench.least("entry")
    assert await bench.found() == {"cccccccc"}


async def test_nearer_memories_that_the_bank_does_not_serve_crowd_out_none_that_it_does(bench: Bench) -> None:
    far = np.array([0.1, 0.995, 0], dtype=np.float32)
    await bench.vectors.put(BANK, [Point("cccccccc", "entry", "fact", Seen(far, True))])
    await bench.vectors.put(
        BANK, [Point(f"near-{n:04}", "synced", "fact", Seen(NEAR, True)) for n in range(60)]
    )
    await bench.least("entry")
    assert await bench.found(limit=1) == {"cccccccc"}
