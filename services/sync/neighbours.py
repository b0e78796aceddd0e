"""What sync asks of others: the index, for near-duplicates."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence

import grpc
from teamlore.index.v1 import index_pb2, index_pb2_grpc

from kit.dialing import bearer, dial
from kit.texts import normalised
from services.sync.records import Draft

log = logging.getLogger("teamlore.sync")
TIMEOUT = 10.0
"""Seconds for an answer. The texts that index lets wait for its model are worked off in half of that."""
PAUSE = 5.0
"""Seconds between two questions to an index that stopped answering."""
MOMENT = 1.0
"""Seconds that the push which asks such a question waits for its answer."""
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


class Breaker:
    """Says how long to wait for index: no push waits long for one that is stopped or hangs.

    It opens at a timeout during which index answered nobody: one that is only slow, since many ask, answers others
    meanwhile, or refuses at once. Any answer closes it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._heard = -math.inf
        self._ask_at: float | None = None

    def patience(self) -> float:
        """Seconds to wait for an answer now; 0: do not ask. While it is open, one call each PAUSE is told to ask."""
        if self._ask_at is None:
            return TIMEOUT
        if self.clock() < self._ask_at:
            return 0.0
        self._ask_at = self.clock() + PAUSE
        return MOMENT

    def heard(self) -> None:
        """Index answered, or refused by itself."""
        self._heard, self._ask_at = self.clock(), None

    def timed_out(self, since: float) -> None:
        """A question that was asked at `since` got no answer in time."""
        if self._ask_at is None and self._heard < since:
            self._ask_at = self.clock() + PAUSE


class IndexClient:
    """Asks the index service, in one call a push."""

    def __init__(self, target: str, token: str, breaker: Breaker | None = None) -> None:
        self._channel = dial(target) if target else None
        self._metadata = bearer(token)
        self._breaker = breaker or Breaker()
        self._asking: set[asyncio.Task[object]] = set()

    async def close(self) -> None:
        """Closes the channel; questions that nobody waits for end with it."""
        for asking in list(self._asking):
            asking.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
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
            answer = await self._answer(request)
            if answer is None:
                return None
            found = {item.id: item.duplicate_of for item in answer.results if item.duplicate_of}
        # An earlier draft that is a duplicate itself will not be stored: what it repeats is named.
        return found | {own: found.get(earlier, earlier) for own, earlier in repeated.items()}

    async def _answer(
        self, request: index_pb2.FindNearDuplicatesRequest
    ) -> index_pb2.FindNearDuplicatesResponse | None:
        """The answer, where it comes while the breaker lets the caller wait."""
        patience = self._breaker.patience()
        if not patience:
            return None
        if patience >= TIMEOUT:
            return await self._ask(request)
        # Asked on without its caller, who stores: when the answer comes at last, the next push waits again.
        asking = asyncio.create_task(self._ask(request))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        done, _ = await asyncio.wait({asking}, timeout=patience)
        return asking.result() if done else None

    async def _ask(
        self, request: index_pb2.FindNearDuplicatesRequest
    ) -> index_pb2.FindNearDuplicatesResponse | None:
        """One question, and what the breaker learns of it."""
        assert self._channel is not None
        stub, since = index_pb2_grpc.IndexServiceStub(self._channel), self._breaker.clock()
        try:
            answer = await stub.FindNearDuplicates(request, timeout=TIMEOUT, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            log.warning("near-duplicate check skipped: %s", error.code().name)
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self._breaker.timed_out(since)
            # So index refuses where more texts wait for its model than it can work off in time.
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                self._breaker.heard()
            return None
        self._breaker.heard()
        return answer
