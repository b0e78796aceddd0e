"""A TCP proxy whose connections can be cut in the middle of a message, as a network does it."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator

_CHUNK = 1 << 16
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that makes `close` send RST and drop what was not sent."""


class Proxy:
    """Passes connections on to `target` (host:port)."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self.address = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Proxy"]:
        """Listens on a free loopback port for as long as the block runs."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        try:
            yield self
        finally:
            server.close()
            self.cut()

    def cut(self) -> int:
        """Resets every connection; counts them."""
        cut = list(self._writers)
        for writer in cut:
            held = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
        return len(cut) // 2

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        mine = {writer, back}
        self._writers |= mine
        try:
            await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
        finally:
            self._writers -= mine
            for each in mine:
                each.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    # Either side's end is the end of both: no caller here half-closes.
    writer.transport.abort()
