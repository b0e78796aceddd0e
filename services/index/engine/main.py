"""The vector engine: Qdrant's gRPC wire over Qdrant's own engine, for one machine.

Run it with `python -m services.index.engine.main`. There is no authentication: listen on loopback only. SIGTERM ends
it with exit code 0, all flushed.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import grpc
import uvloop
from grpc_health.v1 import health, health_pb2_grpc

from kit.config import LISTEN, load_or_exit, setting
from services.index.engine.handlers import services
from services.index.engine.shards import DirectoryInUse, Shards

_log = logging.getLogger("teamlore.engine")

_DRAIN_SECONDS = 5.0
#: Opening a collection maps a page of payload and a chunk of vectors anew, 32 MiB each.
_COMFORT = 64 * 1024 * 1024
_OPTIONS = (
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),  # a port that is taken is an error, not a share of the calls
)


@dataclass(frozen=True)
class Config:
    """Settings of the vector engine."""

    listen: str = setting("TEAMLORE_LISTEN", form=LISTEN)
    """host:port; port 0 takes a free one, named in the line `listening on`."""
    folder: str = setting("TEAMLORE_ENGINE_DIR")
    """Folder of the vectors; one process at a time has it."""


async def serve(listen: str, folder: Path) -> None:
    """Serve `folder` on `listen` until SIGTERM or SIGINT.

    Raises DirectoryInUse, and RuntimeError when the address cannot be listened on.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if (
        free < _COMFORT
    ):  # said before: a mapped file that finds no room ends the process with SIGBUS, without a word
        _log.warning(
            "%d bytes are free for %s; with less than %d the start may end with SIGBUS",
            free,
            folder,
            _COMFORT,
        )
    shards = Shards(folder)
    shards.sweep_what_was_not()
    try:
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers(services(shards))
        servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        port = server.add_insecure_port(listen)
        await server.start()
        _log.info("listening on %s:%d", listen.rpartition(":")[0], port)
        await stop.wait()
        await servicer.enter_graceful_shutdown()
        await server.stop(_DRAIN_SECONDS)
    finally:
        await shards.close()
    _log.info("stopped")


def main() -> int:
    """Run the engine; return the exit code."""
    config = load_or_exit(Config)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    try:
        uvloop.run(serve(config.listen, Path(config.folder)))
    except (DirectoryInUse, RuntimeError) as error:
        _log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
