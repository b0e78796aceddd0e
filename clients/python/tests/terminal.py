"""A person at a terminal: a real pty with a shell that leads its session, and what it prints."""

import os
import re
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

TEAMLORE = f"{sys.executable} -m teamlore_client.cli"


class Terminal:
    """`run` types a command and waits for its end; `type` and `expect` are for what asks."""

    def __init__(self, home: Path, wrap: Sequence[str] = (), **environment: str) -> None:
        self._master, slave = os.openpty()
        self.device = os.ttyname(slave)
        self.shell = subprocess.Popen(
            [*wrap, "setsid", "--ctty", "bash", "--norc", "--noprofile", "-i"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={
                "HOME": str(home),
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.pathsep.join(sys.path),
                "TERM": "dumb",
                "PS1": "",
                **environment,
            },
            cwd=home,
        )
        os.close(slave)
        self._seen = ""
        self.run("bind 'set enable-bracketed-paste off'")

    def type(self, line: str) -> None:
        os.write(self._master, line.encode() + b"\n")

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def expect(self, pattern: str, seconds: float = 60) -> str:
        end = time.monotonic() + seconds
        while (found := re.search(pattern, self._seen)) is None:
            ready, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise AssertionError(f"{pattern!r} was not said in {self._seen!r}")
            self._seen += os.read(self._master, 65_536).decode(errors="replace")
        said, self._seen = self._seen[: found.end()], self._seen[found.end() :]
        return said

    def run(self, command: str) -> tuple[int, str]:
        self.type(f"{command}; echo __$?__")
        return self.end()

    def end(self) -> tuple[int, str]:
        said = self.expect(r"__\d+__")
        return int(said.rpartition("__")[0].rpartition("__")[2]), said

    def close(self) -> None:
        self.shell.kill()
        self.shell.wait()
        os.close(self._master)


@contextmanager
def terminal(home: Path, wrap: Sequence[str] = (), **environment: str) -> Iterator[Terminal]:
    opened = Terminal(home, wrap, **environment)
    try:
        yield opened
    finally:
        opened.close()


def holders(home: Path) -> list[int]:
    """Return the pids of the processes that hold sessions of this home: who listens on its sockets."""
    folder = home / ".local/state/teamlore/sessions"
    found = []
    for each in folder.iterdir() if folder.is_dir() else ():
        directory = os.open(folder, os.O_RDONLY)  # a socket's path holds 107 bytes, a test's folder more
        try:
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(f"/proc/self/fd/{directory}/{each.name}")
                said = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                found.append(struct.unpack("3i", said)[0])
        except OSError:
            continue
        finally:
            os.close(directory)
    return found


def gone(home: Path, seconds: float = 10) -> bool:
    """Wait until no process holds a session of this home."""
    end = time.monotonic() + seconds
    while holders(home):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
