"""One call to a team's server: a deadline, patience for a restart, typed refusals."""

import os
import random
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its own log lines would stand between ours

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from teamlore_client._address import Address, Target
from teamlore_client._errors import Refused, ServerUnreachable, TeamloreError
from teamlore_client._memory import FieldInvalid

DEADLINE_SECONDS = 30.0
RETRY_SECONDS = 5.0
_FIRST_PAUSE = 0.1
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

Response = TypeVar("Response")


class Connection:
    """An open connection to a team's server, as one token. Use it from one thread at a time."""

    def __init__(self, address: Address, token: str | None) -> None:
        """Nothing is sent before the first call. Raises FieldInvalid for a token no header can carry."""
        if token is not None and (
            not token.isascii() or not token.isprintable() or not token or " " in token
        ):
            raise FieldInvalid("token", "must be printable ASCII without spaces")
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        self._opened = {target: _channel(target) for target in set(address.targets.values())}
        self.channels: Mapping[str, grpc.Channel] = {
            name: self._opened[target] for name, target in address.targets.items()
        }

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        for channel in self._opened.values():
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(
        self,
        method: Callable[..., Response],
        request: object,
        *,
        once: bool = False,
        seconds: float = DEADLINE_SECONDS,
    ) -> Response:
        """Call; a server that is away is tried again for a while, unless a second call would do it twice."""
        end = time.monotonic() + (0 if once else RETRY_SECONDS)
        pause, first = _FIRST_PAUSE, True
        while True:
            try:
                return method(request, timeout=seconds, metadata=self._metadata)
            except grpc.RpcError as error:
                failure, asked = _failure(error)
                wait = asked if asked is not None else pause * random.uniform(0.75, 1.25)  # noqa: S311  # only spreads retries
                away = _code(error) is grpc.StatusCode.UNAVAILABLE
                if isinstance(failure, Refused) and not first:
                    failure.undone = False
                first = False
                if not away or time.monotonic() + wait > end:
                    raise failure from None
                time.sleep(wait)
                pause *= 2


def pause_or_raise(error: grpc.RpcError, patient: tuple[str, ...], progress: bool, end: float) -> float:
    """Return how long to wait before a stream is opened again. Raises what the error means where that is no use."""
    failure, asked = _failure(error)
    away = isinstance(failure, ServerUnreachable)
    if isinstance(failure, Refused):
        failure.undone = False  # a stream may end between a commit and its answer
    wait = asked if asked is not None else (0.0 if progress else _FIRST_PAUSE)
    asked_to_wait = asked is not None and isinstance(failure, Refused) and failure.reason in patient
    if not (away or asked_to_wait) or (not progress and not asked_to_wait and time.monotonic() + wait > end):
        raise failure from None
    return wait


def _channel(target: Target) -> grpc.Channel:
    options = [
        ("grpc.enable_retries", 0),  # ours are bounded and read RetryInfo
        ("grpc.max_receive_message_length", -1),  # a page of long texts is more than the default 4 MiB
        ("grpc.enable_http_proxy", 0 if target.loopback else 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
    ]
    if target.tls:
        return grpc.secure_channel(target.authority, grpc.ssl_channel_credentials(), options)
    return grpc.insecure_channel(target.authority, options)


def _code(error: grpc.RpcError) -> grpc.StatusCode:
    code = error.code() if isinstance(error, grpc.Call) else None
    return code if isinstance(code, grpc.StatusCode) else grpc.StatusCode.UNKNOWN


def _failure(error: grpc.RpcError) -> tuple[TeamloreError, float | None]:
    """Return what the error means, and how long the server asks to wait, in seconds."""
    code = _code(error)
    said = str(error.details() or "") if isinstance(error, grpc.Call) else str(error)
    reason, metadata, field, wait = _details(error)
    if code in _AWAY:
        return ServerUnreachable(said or f"no answer within {DEADLINE_SECONDS:.0f} s", reason), wait
    refused = Refused(reason or code.name, said or code.name, field, metadata.get("permission", ""))
    refused.undone = bool(reason)  # the services' own word; what a proxy or a bug says proves nothing
    return refused, wait


def _details(error: grpc.RpcError) -> tuple[str, dict[str, str], str, float | None]:
    reason, metadata, field, wait = "", dict[str, str](), "", None
    trailers: Any = error.trailing_metadata() if isinstance(error, grpc.Call) else None
    raw = next((value for key, value in trailers or () if key == "grpc-status-details-bin"), b"")
    try:
        details = status_pb2.Status.FromString(raw).details
    except DecodeError:
        return reason, metadata, field, wait
    info, bad, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    for detail in details:
        if detail.Unpack(info):
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(bad) and bad.field_violations:
            field = bad.field_violations[0].field
        elif detail.Unpack(retry):
            wait = retry.retry_delay.ToNanoseconds() / 1e9
    return reason, metadata, field, wait
