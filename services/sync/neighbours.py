"""What sync asks of others: the index, for near-duplicates."""

import logging
from collections.abc import Mapping, Sequence

import grpc
from teamlore.index.v1 import index_pb2, index_pb2_grpc

from kit.dialing import bearer, dial
from services.sync.records import Draft

log = logging.getLogger("teamlore.sync")
_TIMEOUT = 10.0


class IndexClient:
    """Asks the index service, in one call a push."""

    def __init__(self, target: str, token: str) -> None:
        self._channel = dial(target) if target else None
        self._metadata = bearer(token)

    async def close(self) -> None:
        """Closes the channel."""
        if self._channel is not None:
            await self._channel.close()

    async def find(self, bank: str, drafts: Sequence[Draft], threshold: float) -> Mapping[str, str] | None:
        """Which draft nearly repeats which memory; None when the index cannot be asked, so that a push still stores."""
        if self._channel is None:
            return None
        request = index_pb2.FindNearDuplicatesRequest(
            bank=bank,
            candidates=[index_pb2.Candidate(id=draft.id, text=draft.text) for draft in drafts],
            threshold=threshold,
        )
        try:
            stub = index_pb2_grpc.IndexServiceStub(self._channel)
            answer = await stub.FindNearDuplicates(request, timeout=_TIMEOUT, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            log.warning("near-duplicate check skipped: %s", error.code().name)
            return None
        return {item.id: item.duplicate_of for item in answer.results if item.duplicate_of}
