"""Ask a Postgres whether it is really there, without a driver."""

from __future__ import annotations

import socket
import struct

_PROTOCOL_3 = 196_608


def postgres_data_directory(host: str, port: int, timeout: float = 1.0) -> str | None:
    """Return the data directory of the Postgres that answers a query at (host, port), None when none does.

    Speaks the wire protocol as user and database `postgres` under trust authentication; `timeout` in seconds
    bounds each read.
    """
    startup = struct.pack("!I", _PROTOCOL_3) + b"user\0postgres\0database\0postgres\0\0"
    query = b"show data_directory\0"
    try:
        with (
            socket.create_connection((host, port), timeout) as connection,
            connection.makefile("rb") as stream,
        ):
            connection.sendall(struct.pack("!I", len(startup) + 4) + startup)
            answer = None
            asked = False
            while header := stream.read(5):
                kind, length = struct.unpack("!cI", header)
                body = stream.read(length - 4)
                if kind == b"E":
                    return None
                if kind == b"D":
                    answer = body[6:].decode()
                if kind == b"Z" and asked:
                    connection.sendall(b"X\0\0\0\4")
                    return answer
                if kind == b"Z":
                    connection.sendall(b"Q" + struct.pack("!I", len(query) + 4) + query)
                    asked = True
    except (OSError, struct.error, UnicodeDecodeError, ValueError):
        return None
    return None
