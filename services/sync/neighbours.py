"""What sync asks of others: the index, for near-duplicates."""

import logging
from collections.abc import Mapping, Sequence

import grpc
from teamlore.index.v1 import index_pb2, index_pb2_grpc

from kit.dialing import bearer, dial
from kit.texts import normalised
from services.sync.records import Draft

log = logging.getLogger("teamlore.sync")
_TIMEOUT = 10.0
LONGEST_ASKED = 8000
"""Characters. No model whose window is 256 tokens sees a longer text whole, and without that nothing is near it; a
request of 100 such texts stays below gRPC's 4 MiB."""


def question(drafts: Sequence[Draft]) -> tuple[list[index_pb2.Candidate], dict[str, str]]:
    """What to ask the index, and which draft is, word by word, which earlier one of the same push.

    Texts are asked about in their normalised form. What the index would refuse is left out, so that no record costs
    its whole push the check.
    """
    first: dict[str, str] = {}
    repeated: dict[str, str] = {}
    candidates = []
    for draft in drafts:
        text = normalised(draft.text)
        earlier = first.setdefault(text, draft.id)
        if earlier != draft.id:
            repeated[draft.id] = earlier
        elif 0 < len(text) <= LONGEST_ASKED:
            candidates.append(index_pb2.Candidate(id=draft.id, text=text))
    return candidates, repeated


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
        candidates, repeated = question(drafts)
        found: dict[str, str] = {}
        if candidates:
            request = index_pb2.FindNearDuplicatesRequest(
                bank=bank, candidates=candidates, threshold=threshold
            )
            try:
                stub = index_pb2_grpc.IndexServiceStub(self._channel)
                answer = await stub.FindNearDuplicates(request, timeout=_TIMEOUT, metadata=self._metadata)
            except grpc.aio.AioRpcError as error:
                log.warning("near-duplicate check skipped: %s", error.code().name)
                return None
            found = {item.id: item.duplicate_of for item in answer.results if item.duplicate_of}
        # An earlier draft that is a duplicate itself will not be stored: what it repeats is named.
        return found | {own: found.get(earlier, earlier) for own, earlier in repeated.items()}
