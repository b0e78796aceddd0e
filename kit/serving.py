"""Serving: the one way a service starts, listens, says that it is well, and drains."""

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from kit import telemetry
from kit.database import why
from kit.decisions import Decisions
from kit.errors import Refusal, from_driver
from kit.foundation import Drain, Foundation, Settings
from kit.interceptor import Built, Interceptor
from kit.limits import Limits
from kit.sealing import KeyMissing

log = logging.getLogger("teamlore.serving")
OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 30_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_connection_age_ms", 1_800_000),
    ("grpc.max_connection_age_grace_ms", 60_000),
    # From 1,000 calls that wait for the loop on, gRPC cancels some at random, and a caller hears no reason. Ours are
    # taken up at once and refused in words beyond the budgets.
    ("grpc.server.max_pending_requests", 1_000_000),
    ("grpc.server.max_pending_requests_hard_limit", 1_000_000),
    # What a stream may send ahead of its handler. Left to itself gRPC widens this by what the line carries, up to 16 MiB
    # that nobody has read, of each of 2,000 streams. A message that is read is let through whole, whatever its size.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 18),
)
S = TypeVar("S", bound=Settings)
Build = Callable[[S, Foundation], Awaitable[Built]]


def run(service: str, settings: S, queries: Path, build: Build[S], connections: int = 10) -> None:
    """Serves until SIGTERM or SIGINT, then drains. Exit code 1 with one line when it cannot start."""
    telemetry.start(service)
    try:
        uvloop.run(_serve(service, settings, queries, build, connections))
    except KeyMissing:
        sys.exit(f"{service} cannot start: the key store is not the one of this database")
    except (OSError, Refusal, RuntimeError, TimeoutError) as error:
        log.debug("start failed", exc_info=error)
        sys.exit(f"{service} cannot start: {str(error) or type(error).__name__}")
    except Exception as error:
        refusal = from_driver(error)
        if refusal is None and type(error).__module__.split(".")[0] != "asyncpg":
            raise
        sys.exit(f"{service} cannot start: the database that DATABASE_URL names refuses: {why(error)}")


async def _serve(service: str, settings: S, queries: Path, build: Build[S], connections: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    drain = Drain()
    async with Foundation.laid(service, settings, queries, drain, connections) as base:
        decisions = Decisions(base.database, service)
        base.at_end(decisions.stop)
        built = await build(settings, base)
        limits = Limits(
            settings.calls_per_minute,
            settings.public_calls_per_minute,
            settings.streams_per_principal,
            built.calls_per_minute,
        )
        server = grpc.aio.server(
            interceptors=[Interceptor(built, drain, limits, decisions)],
            options=(*OPTIONS, ("grpc.max_receive_message_length", built.largest_message)),
        )
        for add, handlers in built.services.values():
            add(handlers, server)
        checks = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        reflection.enable_server_reflection(
            (*built.services, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
        try:
            port = server.add_insecure_port(settings.listen)
        except RuntimeError as error:
            raise OSError(f"{settings.listen} is taken or not an address of this machine") from error
        await server.start()
        watch = asyncio.create_task(_watch_health(checks, built))
        log.info("%s listening on %s:%d", service, settings.listen.rpartition(":")[0], port)
        await stop.wait()
        log.info("%s draining", service)
        watch.cancel()
        await checks.enter_graceful_shutdown()
        drain.started.set()
        await server.stop(10)
    log.info("%s stopped", service)


async def _watch_health(checks: Any, built: Built) -> None:
    """Says NOT_SERVING while the access state is stale."""
    while True:
        fresh = built.authenticator.access.fresh
        status = (
            health_pb2.HealthCheckResponse.SERVING if fresh else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in ("", *built.services):
            await checks.set(name, status)
        await asyncio.sleep(0.25)
