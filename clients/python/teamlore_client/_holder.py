"""The process that holds one person session in its memory, and gives it only to the terminal that signed in.

It is started by path with `-I -S`, so it uses the standard library and `_terminal`, which lies beside it, only.
The session comes in through a pipe: never in arguments, environment or a file.
"""

import contextlib
import importlib.util
import json
import os
import resource
import select
import socket
import struct
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

_MOST_SECONDS = 900.0
_PATIENCE = 2.0
_SO_PEERPIDFD = 77  # Linux 6.5; Python has no name for it yet


def _beside(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Holder:
    """One session, one socket, one terminal."""

    def __init__(self, given: dict[str, Any], terminal: ModuleType) -> None:
        self._terminal = terminal
        self._session = given["session"]
        self._answer = {key: given[key] for key in ("server", "principal", "token_id", "expires_at")}
        self._leader: int = given["leader"]
        self._device: int = given["device"]
        self._name: str = given["name"]
        left: float = min(given["expires_at"] - time.time(), _MOST_SECONDS)
        # Both clocks count: a laptop's sleep stops one, a changed date moves the other.
        self._ends: float = time.clock_gettime(time.CLOCK_BOOTTIME) + left
        self._ends_at: float = time.time() + left
        self._leader_gone = os.pidfd_open(self._leader)
        found = terminal.standing(self._leader)
        if found is None or found.started != given["leader_started"]:
            raise SystemExit(1)

    def left(self) -> float:
        """Return for how many seconds the session is still given out."""
        return min(self._ends - time.clock_gettime(time.CLOCK_BOOTTIME), self._ends_at - time.time())

    def serve(self, ready: int) -> None:
        """Answer until the session ends, someone signs out, or the terminal's session leader is gone."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            os.umask(0o177)
            listener.bind(self._name)
            ours = os.stat(self._name).st_ino
            try:
                listener.listen(8)
                os.write(ready, b"ready\n")
                os.close(ready)
                while (left := self.left()) > 0:
                    events, _, _ = select.select(
                        [listener.fileno(), self._leader_gone], [], [], min(left, 30)
                    )
                    if self._leader_gone in events:
                        return
                    if listener.fileno() in events and not self._answered(listener):
                        return
            finally:
                with contextlib.suppress(OSError):
                    if os.stat(self._name).st_ino == ours:  # not that of a sign-in that came after
                        os.unlink(self._name)

    def _answered(self, listener: socket.socket) -> bool:
        peer, _ = listener.accept()
        with peer, contextlib.suppress(OSError, ValueError):
            peer.settimeout(_PATIENCE)
            asked = peer.recv(64)
            if asked == b"end\n":  # harmless in any hands of the same user: it only takes away
                if self._of_user(peer)[0]:
                    os.unlink(self._name)
                    peer.sendall(b"ended\n")
                    return False
            elif asked == b"get\n":
                self._give(peer)
        return True

    def _give(self, peer: socket.socket) -> None:
        if not self._may_have(peer):
            peer.sendall(b"no\n")
            return
        # The asker closes its own memory first: what comes next must not be readable there either.
        peer.sendall(b"ok\n")
        if peer.recv(64) == b"go\n" and self.left() > 0:
            peer.sendall(json.dumps(self._answer | {"session": self._session}).encode() + b"\n")

    def _of_user(self, peer: socket.socket) -> tuple[bool, int]:
        size = struct.calcsize("3i")
        pid, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        return uid == os.getuid() and pid > 0, pid

    def _may_have(self, peer: socket.socket) -> bool:
        same_user, pid = self._of_user(peer)
        alive = self._handle(peer)
        try:
            if not same_user or self.left() <= 0:
                return False
            found = self._terminal.standing(pid)
            if found is None or (found.session, found.terminal) != (self._leader, self._device):
                return False
            if not found.foreground or self._terminal.terminal_of_stdin(pid) != self._device:
                return False
            # The foreground and the terminal are there for any process of the session to take; its parents are not.
            if not self._terminal.typed(pid, self._leader):
                return False
            # Whoever connected still lives, so the pid that was looked at is not someone else's by now.
            return alive is None or not select.select([alive], [], [], 0)[0]
        finally:
            if alive is not None:
                os.close(alive)

    @staticmethod
    def _handle(peer: socket.socket) -> int | None:
        try:
            return peer.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError:
            return None


def main() -> None:
    """Read the session from the pipe on standard input, answer `ready` on standard output, and hold."""
    terminal = _beside("_terminal")
    if not terminal.close_memory():
        raise SystemExit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    given = json.loads(sys.stdin.buffer.read())
    os.chdir(given["folder"])
    with contextlib.suppress(FileNotFoundError):
        os.unlink(given["name"])
    ready = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    Holder(given, terminal).serve(ready)


if __name__ == "__main__":
    main()
