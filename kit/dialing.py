"""How services call each other: channels with keepalive and deadlines, and this service's own credential."""

import base64
from collections.abc import Mapping

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from google.rpc import error_details_pb2, status_pb2
from teamlore.auth.v1 import auth_pb2, auth_pb2_grpc

from kit.errors import DOMAIN, TABLE, Refusal

_OPTIONS = (
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


def dial(target: str) -> grpc.aio.Channel:
    """A channel to a neighbour, given as host:port."""
    return grpc.aio.insecure_channel(target, options=_OPTIONS)


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """Call metadata with this service's credential."""
    return (("authorization", f"Bearer {token}"),)


def refusal_of(error: grpc.aio.AioRpcError) -> Refusal:
    """The refusal that a neighbour answered with; DEPENDENCY_UNAVAILABLE for what carries no reason of ours."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value if isinstance(value, bytes) else value.encode())
            for detail in status.details:
                info = error_details_pb2.ErrorInfo()
                if (
                    detail.Is(info.DESCRIPTOR)
                    and detail.Unpack(info)
                    and info.domain == DOMAIN
                    and info.reason in TABLE
                ):
                    return Refusal(info.reason, status.message)
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
