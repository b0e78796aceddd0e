"""What compliance asks of others: their part in an erasure."""

from collections.abc import Sequence

import grpc
from teamlore.compliance.v1 import compliance_pb2, compliance_pb2_grpc

from kit.dialing import bearer, dial, refusal_of

_TIMEOUT = 30.0


class ParticipantClient:
    """One participant, at host:port, called with this service's credential."""

    def __init__(self, target: str, token: str) -> None:
        self._channel = dial(target)
        self._stub = compliance_pb2_grpc.ErasureParticipantServiceStub(self._channel)
        self._metadata = bearer(token)

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()

    async def __call__(self, erasure_id: str, bank: str, memory_ids: Sequence[str]) -> None:
        """Has the participant destroy what it keeps of at most 100 memories. Raises Refusal."""
        request = compliance_pb2.EraseObjectsRequest(erasure_id=erasure_id, bank=bank, memory_ids=memory_ids)
        try:
            await self._stub.EraseObjects(request, timeout=_TIMEOUT, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise refusal_of(error) from error
