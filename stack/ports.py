"""Loopback ports: free ones, and ones that stay the same from run to run."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable
from pathlib import Path

from stack.errors import StackError
from stack.jsonfile import load, save

LOOPBACK = "127.0.0.1"

# Kept ports come from below the range systems hand out for outgoing connections (32768 up on Linux), so that
# a browser's connection does not sit on one of them at the next start.
_KEPT_RANGE = range(18_000, 32_000)


def is_free(port: int) -> bool:
    """Tell whether a server could listen on loopback `port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except (OSError, OverflowError):
            return False
        return True


def free_port() -> int:
    """Return a loopback port that nothing listens on; another process may still take it first."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def kept_ports(path: Path, names: Iterable[str]) -> dict[str, int]:
    """Return a port for each of `names`, as written in `path` (stack.json); new ones are added there.

    Kept ports are returned whether they are free or not. StackError for a file that does not hold ports.
    """
    state = load(path)
    ports = state.get("ports", {})
    if not isinstance(ports, dict) or not all(type(p) is int and 0 < p < 65_536 for p in ports.values()):
        raise StackError(f'{path}: "ports" must map names to numbers from 1 to 65535')
    wanted = list(names)
    missing = [name for name in wanted if name not in ports]
    for name in missing:
        ports[name] = _unused(set(ports.values()))
    if missing:
        save(path, {**state, "ports": ports}, mode=0o600)
    return {name: ports[name] for name in wanted}


def _unused(taken: set[int]) -> int:
    for port in random.sample(_KEPT_RANGE, 200):
        if port not in taken and is_free(port):
            return port
    raise StackError(f"no free port on {LOOPBACK} between {_KEPT_RANGE.start} and {_KEPT_RANGE.stop}")
