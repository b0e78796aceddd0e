"""How services call each other: channels with keepalive and deadlines, and this service's own credential."""

import base64
from collections.abc import Mapping
from typing import Any

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from google.rpc import error_details_pb2, status_pb2
from teamlore.auth.v1 import auth_pb2, auth_pb2_grpc

from kit import telemetry
from kit.errors import DOMAIN, TABLE, Refusal

_OPTIONS = (
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


def _traced(details: Any) -> Any:
    """The call's details with the span it is made in."""
    sent = telemetry.headers()
    return details._replace(metadata=grpc.aio.Metadata(*(details.metadata or ()), *sent)) if sent else details


class _Unary(grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await continuation(_traced(client_call_details), request)


class _Stream(grpc.aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await continuation(_traced(client_call_details), request)


def dial(target: str) -> grpc.aio.Channel:
    """A channel to a neighbour, given as host:port; its calls carry the span they are made in."""
    return grpc.aio.insecure_channel(target, options=_OPTIONS, interceptors=[_Unary(), _Stream()])


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """Call metadata with this service's credential."""
    return (("authorization", f"Bearer {token}"),)


def refusal_of(error: grpc.aio.AioRpcError) -> Refusal:
    """The refusal that a neighbour answered with; DEPENDENCY_UNAVAILABLE for what carries no reason of ours."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value if isinstance(value, bytes) else value.encode())
            info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
            waits = False
            for detail in status.details:
                detail.Unpack(info)
                waits = detail.Unpack(retry) or waits
            if info.domain == DOMAIN and info.reason in TABLE:
                after = retry.retry_delay.ToMilliseconds() / 1000 if waits else None
                return Refusal(info.reason, status.message, retry_after=after)
    return Refusal(
        "DEPENDENCY_UNAVAILABLE", "a neighbouring service cannot serve the call now", retry_after=0.5
    )


class AuthClient:
    """What a service asks of auth: keys, and a JWT for an opaque token."""

    def __init__(self, target: str) -> None:
        self._channel = dial(target)
        self._stub = auth_pb2_grpc.AuthServiceStub(self._channel)

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()

    async def keys(self) -> Mapping[str, Ed25519PublicKey]:
        """The public keys by id."""
        answer = await self._stub.GetJwks(auth_pb2.GetJwksRequest(), timeout=5)
        return {
            key.kid: Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(key.x + "=="))
            for key in answer.keys
        }

    async def exchange(self, token: str) -> tuple[str, float]:
        """A JWT for an opaque token, and the Unix time when it ends. Raises Refusal."""
        try:
            answer = await self._stub.ExchangeToken(auth_pb2.ExchangeTokenRequest(token=token), timeout=5)
        except grpc.aio.AioRpcError as error:
            raise refusal_of(error) from error
        return answer.access_token, answer.expires_at.seconds
