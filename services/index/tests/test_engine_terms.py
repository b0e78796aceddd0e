"""A collection of sparse vectors alone, as the terms are: made, found, kept through kill -9, and gone when deleted."""

import signal
import struct
from pathlib import Path

import grpc
import pytest
from qdrant_client import models

from services.index.following import Hit
from services.index.term_points import COLLECTION, TermPoints
from services.index.terms import TermKeys
from services.index.tests.test_engine import Engine, ident, refused

KEYS = TermKeys(b"k" * 32)
WORDS = "postgres redis kafka queue deploy friday rollback pager checkout invoice".split()
BANK = "project:terms-1"


async def test_terms_are_found_survive_kill_9_and_leave_no_byte(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "vectors")
    points = TermPoints(f"http://127.0.0.1:{engine.port}")
    await points.create()
    await points.create_indexes()
    texts = {
        f"{word}-{other}": f"{word} {other} {number}" for number, word in enumerate(WORDS) for other in WORDS
    }
    terms = {name: KEYS.of(BANK, text) for name, text in texts.items()}
    # A number of its own in each, so that its bytes are those of no other point.
    terms = {
        name: {**of, 2**31 + number: 0.1 + number / 7} for number, (name, of) in enumerate(terms.items())
    }
    await points.put(BANK, list(terms.items()))
    asked = KEYS.of(BANK, "redis pager")
    (best,) = await points.alike(BANK, [asked], 0.5, 3)
    assert {hit.id for hit in best[:2]} == {"redis-pager", "pager-redis"}
    assert await points.alike(BANK, [asked, {}], 1.5, 3) == [[], []]
    # Of ten terms three lead: what shares but one of them is not looked at, whatever else it shares.
    ten = {1000 + number: 0.4 if number < 3 else 0.27 for number in range(10)}
    one, two = ({**ten, 2000: 0.4, 2001: 0.4}, {**ten, 2000: 0.4})
    del one[1000], one[1001], two[1000]
    await points.put(BANK, [("ten", ten)])
    found = await points.alike(BANK, [ten, two, one], 0.5, 3)
    assert [[hit.id for hit in hits] for hits in found] == [["ten"], ["ten"], []]
    assert await points.alike("project:other", [asked], 0.1, 3) == [[]]
    assert await points.alike(BANK, [KEYS.of("project:other", "redis pager")], 0.1, 3) == [[]]
    engine.restart(signal.SIGKILL)
    await points.close()
    points = TermPoints(f"http://127.0.0.1:{engine.port}")
    assert await points.present(BANK, [*terms, "unknown"]) == set(terms)
    needles = [
        struct.pack("<f", terms[name][2**31 + list(terms).index(name)])
        for name in ("redis-pager", "pager-redis")
    ]
    assert engine.on_disk(needles) == [True, True]
    await points.delete(BANK, ["redis-pager"], wait=True)
    assert engine.on_disk(needles) == [False, True]
    left: list[Hit] = (await points.alike(BANK, [asked], 0.5, 3))[0]
    assert left[0].id == "pager-redis" and "redis-pager" not in {hit.id for hit in left}
    assert await points.present(BANK, ["redis-pager"]) == set()
    await points.close()
    engine.end(signal.SIGKILL)


@pytest.mark.parametrize("dense", [{}, None])
async def test_a_collection_without_a_dense_vector_takes_none(
    tmp_path: Path, dense: dict[str, models.VectorParams] | None
) -> None:
    engine = Engine(tmp_path / "vectors")
    client = engine.client()
    sparse = {"terms": models.SparseVectorParams()}
    await client.create_collection(COLLECTION, vectors_config=dense, sparse_vectors_config=sparse)
    info = await client.get_collection(COLLECTION)
    assert not info.config.params.vectors and list(info.config.params.sparse_vectors or {}) == ["terms"]
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    one = models.PointStruct(id=ident(1), vector=[1.0, 2.0])
    await refused(client.upsert(COLLECTION, [one]), invalid, "no dense vector")
    await refused(client.query_points(COLLECTION, query=[1.0, 2.0]), invalid, "no dense vector")
    await refused(
        client.create_collection("none", vectors_config={}), invalid, "a dense vector, sparse ones, or both"
    )
    await client.close()
    engine.end(signal.SIGKILL)
