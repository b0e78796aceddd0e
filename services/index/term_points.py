"""The terms: a collection of sparse vectors beside that of the dense ones. A point carries keyed terms, never a word."""

from collections.abc import Sequence

from qdrant_client import grpc as wire
from qdrant_client import models

from services.index.following import Hit
from services.index.terms import Terms, leads
from services.index.vectors import TIMEOUT, WAIT_TIMEOUT, connect, keyword, point_id, query_batch

COLLECTION, FORMER = "leading_terms", "terms"
"""The collection, and that of a version which asked for all terms of a text: its points have no leads."""
_TERMS = "terms"


def _sparse(terms: Terms) -> wire.SparseVector:
    return wire.SparseVector(indices=list(terms), values=list(terms.values()))


def _words(words: Sequence[str]) -> wire.Value:
    return wire.Value(list_value=wire.ListValue(values=[wire.Value(string_value=word) for word in words]))


def _any(key: str, words: Sequence[str]) -> wire.Condition:
    match = wire.Match(keywords=wire.RepeatedStrings(strings=words))
    return wire.Condition(field=wire.FieldCondition(key=key, match=match))


class TermPoints:
    """Points of all banks; every call names the bank it is about."""

    def __init__(self, url: str, collection: str = COLLECTION) -> None:
        """Raises RuntimeError as `vectors.connect` does."""
        self._client = connect(url)
        self._collection = collection

    async def close(self) -> None:
        """Closes the channel."""
        await self._client.close()

    async def exists(self) -> bool:
        """Whether the collection is there."""
        return await self._client.collection_exists(self._collection)

    async def create(self) -> None:
        """Makes the collection. A server's optimizer is told to rewrite for few deleted vectors."""
        await self._client.create_collection(
            self._collection,
            vectors_config={},
            sparse_vectors_config={_TERMS: models.SparseVectorParams()},
            optimizers_config=models.OptimizersConfigDiff(
                deleted_threshold=0.001, vacuum_min_vector_number=100
            ),
        )

    async def create_indexes(self) -> None:
        """Makes the indexes on `bank` and on what texts are looked up by; harmless when repeated."""
        for field in ("bank", "leads"):
            await self._client.create_payload_index(
                self._collection,
                field,
                models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=field == "bank"),
            )

    async def remove(self) -> None:
        """Removes the collection with all its files, where there is one."""
        if await self.exists():
            await self._client.delete_collection(self._collection)

    async def put(self, bank: str, points: Sequence[tuple[str, Terms]]) -> None:
        """Stores the terms of memories; they are durable when this returns."""
        if points:
            request = wire.UpsertPoints(
                collection_name=self._collection,
                wait=True,
                points=[
                    wire.PointStruct(
                        id=wire.PointId(uuid=point_id(bank, memory_id)),
                        vectors=wire.Vectors(
                            vectors=wire.NamedVectors(vectors={_TERMS: wire.Vector(sparse=_sparse(terms))})
                        ),
                        payload={
                            "id": wire.Value(string_value=memory_id),
                            "bank": wire.Value(string_value=bank),
                            "leads": _words(leads(terms)),
                        },
                    )
                    for memory_id, terms in points
                ],
            )
            await self._client.grpc_points.Upsert(request, timeout=TIMEOUT)

    async def delete(self, bank: str, ids: Sequence[str], *, wait: bool) -> None:
        """Removes points from every answer; with `wait` their bytes are gone too, also those that an earlier call hid."""
        if ids:
            points: list[models.ExtendedPointId] = [point_id(bank, memory_id) for memory_id in ids]
            await self._client.delete(
                self._collection,
                models.PointIdsList(points=points),
                wait=wait,
                timeout=WAIT_TIMEOUT if wait else None,
            )

    async def present(self, bank: str, ids: Sequence[str]) -> set[str]:
        """Which of these memories have a point."""
        if not ids:
            return set()
        wanted = {point_id(bank, memory_id): memory_id for memory_id in ids}
        found = await self._client.retrieve(
            self._collection, list(wanted), with_payload=False, with_vectors=False
        )
        return {wanted[str(point.id)] for point in found}

    async def alike(self, bank: str, asked: Sequence[Terms], least: float, limit: int) -> list[list[Hit]]:
        """For each of the terms the memories of the bank that share a lead and make at least that product with them, best
        first. The engine goes through those that share a lead alone: without that each query would go through the bank."""
        of_bank = keyword("bank", bank)
        queries = [
            wire.QueryPoints(
                collection_name=self._collection,
                query=wire.Query(nearest=wire.VectorInput(sparse=_sparse(terms))),
                using=_TERMS,
                filter=wire.Filter(must=[of_bank, _any("leads", leads(terms))]),
                score_threshold=least,
                limit=limit,
                with_payload=wire.WithPayloadSelector(include=wire.PayloadIncludeSelector(fields=["id"])),
            )
            for terms in asked
        ]
        if not queries:
            return []
        return [
            [Hit(hit.payload["id"].string_value, hit.score) for hit in hits]
            for hits in await query_batch(self._client, self._collection, queries)
        ]
