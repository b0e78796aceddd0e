"""The vectors: a collection of Qdrant, or of the vector engine, over gRPC. A point never carries text."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from qdrant_client import AsyncQdrantClient, models
from qdrant_client import grpc as wire

from services.index.following import LANES, ROUNDING, Hit, Seen, Vector

COLLECTION = "memories"
_NAMESPACE = uuid.UUID("6f2a2b1e-4a0c-5d58-9c3e-7d1f0e5b8a44")
TIMEOUT = 10
WAIT_TIMEOUT = 25


def point_id(bank: str, memory_id: str) -> str:
    """The point of a memory. It is bound to the bank, so no call can reach a point of another one."""
    return str(uuid.uuid5(_NAMESPACE, f"{bank}\0{memory_id}"))


@dataclass(frozen=True)
class Point:
    """A memory's vector and what stands beside it."""

    id: str
    lane: str
    derivation: str
    seen: Seen


def connect(url: str) -> AsyncQdrantClient:
    """A client of the gRPC port at `url`, such as http://127.0.0.1:6334. Raises RuntimeError for anything else."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 6334
    except ValueError:
        host, port = None, 0
    if not host:
        raise RuntimeError(
            "QDRANT_URL must be the address of Qdrant's gRPC port, such as http://127.0.0.1:6334"
        )
    return AsyncQdrantClient(
        host=host,
        grpc_port=port,
        https=parts.scheme == "https",
        prefer_grpc=True,
        check_compatibility=False,
        timeout=TIMEOUT,
        grpc_options={"grpc.max_reconnect_backoff_ms": 1000},
    )


async def query_batch(
    client: AsyncQdrantClient, collection: str, queries: Sequence[wire.QueryPoints]
) -> list[Sequence[wire.ScoredPoint]]:
    """The hits of each query. The wire's own messages: the client's models take five times as long to make and read."""
    request = wire.QueryBatchPoints(collection_name=collection, query_points=queries)
    answer = await client.grpc_points.QueryBatch(request, timeout=TIMEOUT)
    return [one.result for one in answer.result]


def keyword(key: str, value: str) -> wire.Condition:
    """The condition that a field of the payload is this word."""
    return wire.Condition(field=wire.FieldCondition(key=key, match=wire.Match(keyword=value)))


class Vectors:
    """Points of all banks; every call names the bank it is about."""

    def __init__(self, url: str) -> None:
        """Raises RuntimeError as `connect` does."""
        self._client = connect(url)

    async def close(self) -> None:
        """Closes the channel."""
        await self._client.close()

    async def exists(self) -> bool:
        """Whether the collection is there."""
        return await self._client.collection_exists(COLLECTION)

    async def create(self, dimension: int) -> None:
        """Makes the collection. A server's optimizer is told to rewrite for few deleted vectors."""
        await self._client.create_collection(
            COLLECTION,
            vectors_config=models.VectorParams(size=dimension, distance=models.Distance.COSINE),
            optimizers_config=models.OptimizersConfigDiff(
                deleted_threshold=0.001, vacuum_min_vector_number=100
            ),
        )

    async def create_indexes(self) -> None:
        """Makes the indexes on `bank` and `whole`; harmless when repeated."""
        await self._client.create_payload_index(
            COLLECTION,
            "bank",
            models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True),
        )
        await self._client.create_payload_index(COLLECTION, "whole", models.PayloadSchemaType.BOOL)

    async def put(self, bank: str, points: Sequence[Point]) -> None:
        """Stores points; they are durable when this returns."""
        if not points:
            return
        await self._client.upsert(
            COLLECTION,
            [
                models.PointStruct(
                    id=point_id(bank, point.id),
                    vector=point.seen.vector.tolist(),
                    payload={
                        "id": point.id,
                        "bank": bank,
                        "lane": point.lane,
                        "derivation": point.derivation,
                        "whole": point.seen.whole,
                    },
                )
                for point in points
            ],
            wait=True,
        )

    async def delete(self, bank: str, ids: Sequence[str], *, wait: bool) -> None:
        """Removes points from every answer; with `wait` their bytes are gone too, also those that an earlier call hid."""
        if ids:
            points: list[models.ExtendedPointId] = [point_id(bank, memory_id) for memory_id in ids]
            await self._client.delete(
                COLLECTION,
                models.PointIdsList(points=points),
                wait=wait,
                timeout=WAIT_TIMEOUT if wait else None,
            )

    async def present(self, bank: str, ids: Sequence[str]) -> set[str]:
        """Which of these memories have a point."""
        if not ids:
            return set()
        wanted = {point_id(bank, memory_id): memory_id for memory_id in ids}
        found = await self._client.retrieve(COLLECTION, list(wanted), with_payload=False, with_vectors=False)
        return {wanted[str(point.id)] for point in found}

    async def nearest(
        self,
        bank: str,
        queries: Sequence[Vector],
        limit: int,
        threshold: float | None = None,
        *,
        whole_only: bool = False,
        lanes: Sequence[str] = LANES,
    ) -> list[list[Hit]]:
        """For each of the queries the nearest points of the bank in these lanes, or of its texts seen whole, best first."""
        if not len(queries):
            return []
        must: list[models.Condition] = [
            models.FieldCondition(key="bank", match=models.MatchValue(value=bank))
        ]
        if whole_only:
            must.append(models.FieldCondition(key="whole", match=models.MatchValue(value=True)))
        if len(lanes) < len(LANES):
            must.append(models.FieldCondition(key="lane", match=models.MatchAny(any=list(lanes))))
        of_bank = models.Filter(must=must)
        batch = [
            models.QueryRequest(
                query=row.tolist(),
                filter=of_bank,
                limit=limit,
                score_threshold=None if threshold is None else threshold - ROUNDING,
                with_payload=["id"],
            )
            for row in queries
        ]
        answers = await self._client.query_batch_points(COLLECTION, batch)
        return [
            [Hit(str((point.payload or {})["id"]), point.score) for point in answer.points]
            for answer in answers
        ]

    async def among(
        self, bank: str, asked: Sequence[tuple[Vector, Sequence[str]]]
    ) -> list[dict[str, tuple[float, bool]]]:
        """For each vector the cosine to those of its memories that have a point, and whether that was seen whole."""
        if not asked:
            return []
        queries = [
            wire.QueryPoints(
                collection_name=COLLECTION,
                query=wire.Query(nearest=wire.VectorInput(dense=wire.DenseVector(data=vector.tolist()))),
                filter=wire.Filter(
                    must=[
                        keyword("bank", bank),
                        wire.Condition(
                            has_id=wire.HasIdCondition(
                                has_id=[wire.PointId(uuid=point_id(bank, memory_id)) for memory_id in ids]
                            )
                        ),
                    ]
                ),
                params=wire.SearchParams(exact=True),
                limit=len(ids),
                with_payload=wire.WithPayloadSelector(
                    include=wire.PayloadIncludeSelector(fields=["id", "whole"])
                ),
            )
            for vector, ids in asked
        ]
        return [
            {hit.payload["id"].string_value: (hit.score, hit.payload["whole"].bool_value) for hit in hits}
            for hits in await query_batch(self._client, COLLECTION, queries)
        ]
