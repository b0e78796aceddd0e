"""Calls any method by its descriptor and tells the whole answer, so that two refusals can be compared byte by byte."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.rpc import error_details_pb2, status_pb2

Metadata = Sequence[tuple[str, str]]
STATUS_TRIES = 5


@dataclass(frozen=True)
class Outcome:
    """The answer of one call: gRPC code, reason of ours (empty for an answer), fields named, message, raw details."""

    code: str
    reason: str = ""
    fields: tuple[str, ...] = ()
    message: str = ""
    details: bytes = b""
    answer: bytes = b""
    retry_after: float | None = None
    """Seconds."""


def outcome_of(error: grpc.aio.AioRpcError) -> Outcome:
    """What a refusal says."""
    reason, fields, raw, retry = "", (), b"", None
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            raw = bytes(value)
            for detail in status_pb2.Status.FromString(raw).details:
                info, bad, again = (
                    error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo(),
                )  # fmt: skip
                if detail.Unpack(info):
                    reason = info.reason
                elif detail.Unpack(bad):
                    fields = tuple(violation.field for violation in bad.field_violations)
                elif detail.Unpack(again):
                    retry = again.retry_delay.ToTimedelta().total_seconds()
    return Outcome(error.code().name, reason, fields, error.details() or "", raw, retry_after=retry)


async def first_answer(
    channel: grpc.aio.Channel, method: MethodDescriptor, raw: bytes, metadata: Metadata, timeout: float
) -> Any:
    """The first message of a stream that is asked with one request."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    stream: Any
    if method.client_streaming:
        stream = channel.stream_stream(path)(iter([raw]), metadata=metadata, timeout=timeout)
    else:
        stream = channel.unary_stream(path)(raw, metadata=metadata, timeout=timeout)
    answer = await stream.read()
    if not method.client_streaming:
        stream.cancel()
    elif answer is not grpc.aio.EOF:
        await stream.read()  # to its end: what it did is committed
    return answer


async def call(
    channel: grpc.aio.Channel, method: MethodDescriptor, raw: bytes, metadata: Metadata, timeout: float = 20
) -> Outcome:
    """One call with raw bytes; of a stream the first message."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    tries = STATUS_TRIES if method.client_streaming else 1
    while True:
        try:
            if method.server_streaming:
                answer = await first_answer(channel, method, raw, metadata, timeout)
            else:
                answer = await channel.unary_unary(path)(raw, metadata=metadata, timeout=timeout)
            return Outcome("OK", answer=answer if isinstance(answer, bytes) else b"")
        except grpc.aio.AioRpcError as error:
            tries -= 1
            # grpc.aio puts an INTERNAL of its own, without details, in the place of the status where a write meets the
            # end of the stream before the status does. A server that says so says it again.
            if not tries or error.code() is not grpc.StatusCode.INTERNAL or error.trailing_metadata():
                return outcome_of(error)


def service_of(method: MethodDescriptor) -> str:
    """The name of the service that serves a method; sync serves the erasure participant's."""
    package = str(method.containing_service.full_name).split(".")[1]
    return "sync" if method.containing_service.name == "ErasureParticipantService" else package
