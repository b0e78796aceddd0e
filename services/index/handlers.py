"""The calls of index: decoded, authenticated, authorised and validated by the interceptor."""

from collections.abc import Sequence
from typing import Any

from teamlore.compliance.v1 import compliance_pb2, compliance_pb2_grpc
from teamlore.index.v1 import index_pb2, index_pb2_grpc

from services.index.duplicates import Candidate, Duplicates
from services.index.finding import Finder
from services.index.flight import InFlight
from services.index.indexing import Points, erase
from services.index.store import Store

DEFAULT_LIMIT, LARGEST_LIMIT = 10, 100


class IndexHandlers(index_pb2_grpc.IndexServiceServicer):
    """Memories by meaning."""

    def __init__(self, finder: Finder, duplicates: Duplicates) -> None:
        self._finder = finder
        self._duplicates = duplicates

    async def Search(self, request: index_pb2.SearchRequest, context: Any) -> index_pb2.SearchResponse:
        """The nearest live memories."""
        limit = min(request.limit or DEFAULT_LIMIT, LARGEST_LIMIT)
        found = await self._finder.search(request.bank, request.query, limit)
        return index_pb2.SearchResponse(
            hits=[
                index_pb2.SearchHit(
                    id=m.id, text=m.text, tags=m.tags, author=m.author, score=score, lane=m.lane
                )
                for m, score in found
            ]
        )

    async def FindNearDuplicates(
        self, request: index_pb2.FindNearDuplicatesRequest, context: Any
    ) -> index_pb2.FindNearDuplicatesResponse:
        """What each candidate nearly repeats."""
        candidates = [Candidate(candidate.id, candidate.text) for candidate in request.candidates]
        answers = await self._duplicates.find(request.bank, candidates, request.threshold)
        return index_pb2.FindNearDuplicatesResponse(
            results=[
                index_pb2.NearDuplicate(
                    id=candidate.id, duplicate_of=hit.id if hit else "", score=hit.score if hit else 0
                )
                for candidate, hit in zip(candidates, answers, strict=True)
            ]
        )


class ParticipantHandlers(compliance_pb2_grpc.ErasureParticipantServiceServicer):
    """Index's part in an erasure: the vectors and the terms."""

    def __init__(self, store: Store, collections: Sequence[Points], in_flight: InFlight) -> None:
        self._store = store
        self._collections = collections
        self._in_flight = in_flight

    async def EraseObjects(
        self, request: compliance_pb2.EraseObjectsRequest, context: Any
    ) -> compliance_pb2.EraseObjectsResponse:
        """Destroys the vectors and the terms of buried memories."""
        ids = list(request.memory_ids)
        count = await erase(
            self._store, self._collections, self._in_flight, request.erasure_id, request.bank, ids
        )
        return compliance_pb2.EraseObjectsResponse(erased_count=count)
