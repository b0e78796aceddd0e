"""Ask a gRPC server whether it serves, without stubs."""

from __future__ import annotations

import grpc
import grpc.aio

_SERVING = b"\x08\x01"  # HealthCheckResponse{status: SERVING}
_OPTIONS = [("grpc.enable_http_proxy", 0)]


async def grpc_serving(host: str, port: int, patience: float = 1.0) -> bool:
    """Tell whether `grpc.health.v1` at (host, port) says SERVING for the whole server within `patience` s."""
    async with grpc.aio.insecure_channel(f"{host}:{port}", options=_OPTIONS) as channel:
        check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/grpc.health.v1.Health/Check"
        )
        try:
            return await check(b"", timeout=patience) == _SERVING
        except grpc.aio.AioRpcError:
            return False
