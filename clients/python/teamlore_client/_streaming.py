"""A first sync: many batches in one stream, a few of them on their way, and again from the first one unanswered."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

import grpc
from teamlore.sync.v1 import sync_pb2

from teamlore_client import _calls
from teamlore_client._errors import AnswerWrong
from teamlore_client._memory import Memory
from teamlore_client._wire import Answer, record_of

ON_THE_WAY = 4
"""Batches without an answer; with them both sides need the memory of these alone."""
CALL_SECONDS = 120.0
_PATIENT = ("DRAINING", "RATE_LIMITED")
Batches = Iterator[Sequence[Memory]]


def push_stream(
    method: Callable[..., Any], metadata: Any, bank: str, batches: Batches
) -> Iterator[tuple[Sequence[Memory], tuple[Answer, ...]]]:
    """Give each batch with its answers, in order, as they are committed. Raises ServerUnreachable or Refused.

    A stream that ends early is opened again, as long as each brings an answer or the server asks to wait.
    """
    unanswered: deque[Sequence[Memory]] = deque()
    more, gave_up_at = True, time.monotonic() + _calls.RETRY_SECONDS
    while more or unanswered:
        # The connection's own thread takes from the queue; the store is read by ours alone.
        outgoing: SimpleQueue[sync_pb2.PushStreamRequest | None] = SimpleQueue()
        answers = method(iter(outgoing.get, None), timeout=CALL_SECONDS, metadata=metadata)
        sent = answered = 0

        def send(batch: Sequence[Memory], to: Any = outgoing) -> None:
            nonlocal sent
            sent += 1
            records = [record_of(memory) for memory in batch]
            to.put(sync_pb2.PushStreamRequest(bank=bank, sequence=sent, records=records))

        try:
            for batch in unanswered:
                send(batch)
            while more or unanswered:
                while more and len(unanswered) < ON_THE_WAY:
                    following = next(batches, None)
                    more = following is not None
                    if following is not None:
                        unanswered.append(following)
                        send(following)
                if not unanswered:
                    break
                answer = next(answers, None)
                if answer is None or answer.sequence != answered + 1:
                    raise AnswerWrong("the server did not answer the batches of a stream in order")
                answered += 1
                gave_up_at = time.monotonic() + _calls.RETRY_SECONDS
                yield (
                    unanswered.popleft(),
                    tuple(Answer(r.id, r.status, r.reason, r.duplicate_of) for r in answer.results),
                )
        except grpc.RpcError as error:
            time.sleep(_calls.pause_or_raise(error, _PATIENT, bool(answered), gave_up_at))
        finally:
            outgoing.put(None)
            answers.cancel()
