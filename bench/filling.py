"""Fills a bank as sync and index would have left it, with synthetic vectors."""

import random
from collections.abc import Sequence

import asyncpg
import numpy as np
from qdrant_client import AsyncQdrantClient, models
from teamlore.sync.v1 import sync_pb2

from kit.sealing import Allocator, KeyStore, seal
from services.index.term_points import TermPoints
from services.index.terms import TermKeys
from services.index.vectors import COLLECTION, point_id
from tests.integration.conftest import RunningStack

PUT = "select stored_id, stored_seq from memory.put($1, 'user:alice', $2, $3, $4, $5, $6, $7)"
CURSORS = ("index.term_cursors", "index.cursors")
BATCH = 500


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
    for start in range(0, len(texts), BATCH):
        batch = texts[start : start + BATCH]
        ids = [f"{rng.getrandbits(64):016x}" for _ in batch]
        slots = allocator.take(bank, "user:alice", len(ids))
        content = [sync_pb2.MemoryContent(text=text).SerializeToString() for text in batch]
        sealed = [
            seal(keys.fresh_key(slot), bank, i, c) for slot, i, c in zip(slots, ids, content, strict=True)
        ]
        columns = ([s.page for s in slots], [s.index for s in slots], sealed)
        async with database.transaction():
            won = await database.fetch(PUT, bank, ids, [""] * len(ids), [None] * len(ids), *columns)
            seqs = ([r[0] for r in won], [r[1] for r in won])
            await database.execute("select memory.add_to_digest($1, $2, $3)", bank, *seqs)
            for cursors in CURSORS:
                await database.execute(
                    f"insert into {cursors} values ($1, $2) on conflict (bank) do update set seq = excluded.seq",
                    bank,
                    max(seqs[1]),
                )
        vectors = np.random.default_rng(start).standard_normal((len(ids), 384)).astype("float32")
        payload = {"bank": bank, "lane": "synced", "derivation": "fact", "whole": True}
        await engine.upsert(
            COLLECTION,
            [
                models.PointStruct(id=point_id(bank, i), vector=v.tolist(), payload={**payload, "id": i})
                for i, v in zip(ids, vectors, strict=True)
            ],
        )
        await points.put(bank, [(i, terms.of(bank, text)) for i, text in zip(ids, batch, strict=True)])
    await engine.close()
    await points.close()
    await database.close()
    keys.close()
