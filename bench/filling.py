"""Fills a bank as sync and index would have left it, with synthetic vectors."""

import asyncio
import random
from collections.abc import Sequence

import asyncpg
import numpy as np
from qdrant_client import AsyncQdrantClient
from qdrant_client import grpc as wire
from teamlore.sync.v1 import sync_pb2

from kit.sealing import Allocator, KeyStore, seal
from services.index.term_points import TermPoints
from services.index.terms import TermKeys
from services.index.vectors import COLLECTION, point_id
from tests.integration.conftest import RunningStack

PUT = "select stored_id, stored_seq from memory.put($1, 'user:alice', $2, $3, $4, $5, $6, $7)"
CURSORS = ("index.leading_term_cursors", "index.cursors")
BATCH, PUSH = 500, 100
"""Memories that are made at once, and that are stored as one push would store them: with one time and keys of its own."""


async def _put_vectors(engine: AsyncQdrantClient, bank: str, ids: Sequence[str], vectors: np.ndarray) -> None:
    """Writes a batch in the wire's own messages: the client's models take most of the time there is."""
    text = {"bank": bank, "lane": "synced", "derivation": "fact"}
    payload = {name: wire.Value(string_value=value) for name, value in text.items()}
    payload["whole"] = wire.Value(bool_value=True)
    points = [
        wire.PointStruct(
            id=wire.PointId(uuid=point_id(bank, memory_id)),
            vectors=wire.Vectors(vector=wire.Vector(dense=wire.DenseVector(data=vector.tolist()))),
            payload={**payload, "id": wire.Value(string_value=memory_id)},
        )
        for memory_id, vector in zip(ids, vectors, strict=True)
    ]
    await engine.grpc_points.Upsert(wire.UpsertPoints(collection_name=COLLECTION, wait=True, points=points))


async def _put(
    database: asyncpg.Connection,
    allocator: Allocator,
    keys: KeyStore,
    bank: str,
    ids: Sequence[str],
    texts: Sequence[str],
) -> None:
    """Stores memories by one commit, and says that the index has them."""
    slots = allocator.take(bank, "user:alice", len(ids))
    sealed = [
        seal(keys.fresh_key(slot), bank, memory_id, sync_pb2.MemoryContent(text=text).SerializeToString())
        for slot, memory_id, text in zip(slots, ids, texts, strict=True)
    ]
    columns = ([slot.page for slot in slots], [slot.index for slot in slots], sealed)
    async with database.transaction():
        won = await database.fetch(PUT, bank, ids, [""] * len(ids), [None] * len(ids), *columns)
        seqs = ([row[0] for row in won], [row[1] for row in won])
        await database.execute("select memory.add_to_digest($1, $2, $3)", bank, *seqs)
        for cursors in CURSORS:
            await database.execute(
                f"insert into {cursors} values ($1, $2) on conflict (bank) do update set seq = excluded.seq",
                bank,
                max(seqs[1]),
            )


async def fill(stack: RunningStack, bank: str, texts: Sequence[str], near_duplicates: str = "skip") -> None:
    """Stores these texts as memories of the bank, with their terms and with vectors drawn at random."""
    rng, keys = random.Random(bank), KeyStore(stack.data / "keys" / "keystore.db")
    allocator, terms = Allocator(keys), TermKeys(keys.secret("index.terms"))
    database = await asyncpg.connect(stack.facts.database_url)
    port = stack.facts.ports["engine"]
    engine = AsyncQdrantClient(host="127.0.0.1", grpc_port=port, prefer_grpc=True, check_compatibility=False)
    points = TermPoints(f"http://127.0.0.1:{port}")
    await database.execute("select memory.open_bank($1)", bank)
    await database.execute(
        "update memory.banks set near_duplicates = $2 where bank = $1", bank, near_duplicates
    )
    writes: asyncio.Future[list[None]] | None = None
    for start in range(0, len(texts), BATCH):
        batch = texts[start : start + BATCH]
        ids = [f"{rng.getrandbits(64):016x}" for _ in batch]
        for first in range(0, len(ids), PUSH):
            pushed = slice(first, first + PUSH)
            await _put(database, allocator, keys, bank, ids[pushed], batch[pushed])
        vectors = np.random.default_rng(start).standard_normal((len(ids), 384)).astype("float32")
        keyed = [(memory_id, terms.of(bank, text)) for memory_id, text in zip(ids, batch, strict=True)]
        # The engine writes one batch while the next one is made.
        if writes is not None:
            await writes
        writes = asyncio.gather(_put_vectors(engine, bank, ids, vectors), points.put(bank, keyed))
    if writes is not None:
        await writes
    await engine.close()
    await points.close()
    await database.close()
    keys.close()
