"""The team's services over gRPC: a deadline on every call, patience for a restart, typed refusals."""

import os
import random
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its own log lines would stand between ours

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from teamlore.auth.v1 import auth_pb2, auth_pb2_grpc
from teamlore.compliance.v1 import compliance_pb2, compliance_pb2_grpc
from teamlore.feed.v1 import feed_pb2, feed_pb2_grpc
from teamlore.sync.v1 import sync_pb2, sync_pb2_grpc

from teamlore_client._address import Address, Target
from teamlore_client._errors import Refused, ServerUnreachable, TeamloreError
from teamlore_client._memory import FieldInvalid, Memory
from teamlore_client._wire import (
    Answer,
    Batch,
    Forgotten,
    Head,
    Identity,
    LivePage,
    ServerDigest,
    change_of,
    record_of,
)

DEADLINE_SECONDS = 30.0
RETRY_SECONDS = 5.0
_FIRST_PAUSE = 0.1
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

Request = TypeVar("Request")
Response = TypeVar("Response")


class TeamClient:
    """An open connection to a team's server, as one token. Use it from one thread at a time."""

    def __init__(self, address: Address, token: str) -> None:
        """Nothing is sent before the first call. Raises FieldInvalid for a token no header can carry."""
        if not token.isascii() or not token.isprintable() or not token or " " in token:
            raise FieldInvalid("token", "must be printable ASCII without spaces")
        self._metadata = (("authorization", f"Bearer {token}"),)
        self._channels = {target: _channel(target) for target in set(address.targets.values())}
        channels = {name: self._channels[target] for name, target in address.targets.items()}
        self._auth = auth_pb2_grpc.AuthServiceStub(channels["auth"])
        self._sync = sync_pb2_grpc.SyncServiceStub(channels["sync"])
        self._feed = feed_pb2_grpc.FeedServiceStub(channels["feed"])
        self._compliance = compliance_pb2_grpc.ComplianceServiceStub(channels["compliance"])

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        for channel in self._channels.values():
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def who_am_i(self, bank: str) -> Identity:
        """Return whom the token stands for and what it may do on the bank."""
        answer = self._call(self._auth.WhoAmI, auth_pb2.WhoAmIRequest(bank=bank))
        return Identity(answer.principal, tuple(answer.permissions))

    def push(self, bank: str, memories: Sequence[Memory]) -> tuple[Answer, ...]:
        """Store 1 to 100 memories; one answer each, in order."""
        request = sync_pb2.PushRequest(bank=bank, records=[record_of(memory) for memory in memories])
        answer = self._call(self._sync.Push, request)
        return tuple(Answer(each.id, each.status, each.reason, each.duplicate_of) for each in answer.results)

    def list_changes(self, bank: str, cursor: str, limit: int) -> Batch:
        """Return the page of the feed after a cursor; an empty one is the beginning."""
        request = feed_pb2.ListChangesRequest(bank=bank, cursor=cursor, limit=limit)
        answer = self._call(self._feed.ListChanges, request)
        changes = tuple(change_of(bank, each) for each in answer.changes)
        return Batch(changes, answer.after_seq, answer.through_seq, answer.next_cursor, answer.has_more)

    def get_head(self, bank: str) -> Head:
        """Return where the bank's history stands."""
        answer = self._call(self._feed.GetHead, feed_pb2.GetHeadRequest(bank=bank))
        return Head(answer.head, answer.cursor)

    def get_digest(self, bank: str) -> ServerDigest:
        """Return count and sum over the bank's live memories."""
        answer = self._call(self._feed.GetDigest, feed_pb2.GetDigestRequest(bank=bank))
        return ServerDigest(answer.seq, answer.count, answer.sum)

    def list_live(self, bank: str, token: str) -> LivePage:
        """Return a page of the bank's live memories; an empty token is the beginning."""
        request = feed_pb2.ListLiveRequest(bank=bank, page_token=token)
        answer = self._call(self._feed.ListLive, request)
        return LivePage(tuple(change_of(bank, each) for each in answer.memories), answer.next_page_token)

    def register_device(self, bank: str, device: str) -> None:
        """Make this laptop known as a mirror, so that erasures wait for its word."""
        self._call(self._feed.RegisterDevice, feed_pb2.RegisterDeviceRequest(bank=bank, device_id=device))

    def ack_erasures(self, bank: str, device: str, through_seq: int) -> None:
        """Confirm that nothing erased at or below the seq is left in this laptop's files."""
        request = feed_pb2.AckErasuresRequest(bank=bank, device_id=device, through_seq=through_seq)
        self._call(self._feed.AckErasures, request)

    def forget(self, bank: str, ids: Sequence[str]) -> Forgotten:
        """Erase memories for the whole team."""
        request = sync_pb2.ForgetRequest(bank=bank, memory_ids=ids, erase=True)
        answer = self._call(self._sync.Forget, request)
        return Forgotten(answer.deleted_count, answer.erased_count, answer.erasure_id)

    def erasure_state(self, erasure_id: str) -> str:
        """Return `hidden`, `keys_destroyed`, `index_purged` or `server_done`."""
        request = compliance_pb2.GetErasureRequest(erasure_id=erasure_id)
        return str(self._call(self._compliance.GetErasure, request).erasure.state)

    def _call(self, method: Callable[..., Response], request: object) -> Response:
        end = time.monotonic() + RETRY_SECONDS
        pause = _FIRST_PAUSE
        while True:
            try:
                return method(request, timeout=DEADLINE_SECONDS, metadata=self._metadata)
            except grpc.RpcError as error:
                failure, asked = _failure(error)
                wait = asked if asked is not None else pause * random.uniform(0.75, 1.25)  # noqa: S311  # only spreads retries
                away = _code(error) is grpc.StatusCode.UNAVAILABLE
                if not away or time.monotonic() + wait > end:
                    raise failure from None
                time.sleep(wait)
                pause *= 2


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
        return ServerUnreachable(said or f"no answer within {DEADLINE_SECONDS:.0f} s"), wait
    return Refused(reason or code.name, said or code.name, field, metadata.get("permission", "")), wait


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
