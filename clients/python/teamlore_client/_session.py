"""Person sessions of this terminal: handed to a holder process, and asked of it. Nothing is written to a disk."""

import hashlib
import json
import os
import select
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from teamlore_client._errors import TeamloreError
from teamlore_client._paths import state_dir
from teamlore_client._terminal import close_memory, standing

_START_SECONDS = 20.0
_ANSWER_SECONDS = 5.0


class NoHolder(TeamloreError):
    """This system cannot keep a session apart from other programs, so commands ask instead."""


@dataclass(frozen=True)
class Session:
    """A person, for 15 minutes."""

    server: str
    """The address that it belongs to; it is sent nowhere else."""
    principal: str
    token_id: str
    expires_at: datetime
    secret: str = field(repr=False)


def supported() -> bool:
    """Return whether this system can tell one terminal's processes from all others."""
    return (
        hasattr(socket, "SO_PEERCRED")
        and hasattr(os, "pidfd_open")
        and sys.platform == "linux"
        and standing(os.getpid()) is not None
    )


def on_terminal() -> bool:
    """Return whether this process has its controlling terminal on standard input."""
    mine = standing(os.getpid()) if supported() else None
    if mine is None or not mine.terminal:
        return False
    with suppress(OSError):
        status = os.fstat(0)
        return stat.S_ISCHR(status.st_mode) and status.st_rdev == mine.terminal
    return False


def hold(session: Session) -> None:
    """Start a holder for this terminal; one of the same server before it ends. Raises NoHolder."""
    mine = standing(os.getpid()) if supported() else None
    leader = standing(mine.session) if mine is not None else None
    if mine is None or leader is None or not on_terminal():
        raise NoHolder("this system or terminal cannot keep a session apart from other programs")
    folder, name = _folder(), _name(mine.session, session.server)
    _say(folder, name, b"end\n")
    given = {
        "session": session.secret,
        "server": session.server,
        "principal": session.principal,
        "token_id": session.token_id,
        "expires_at": session.expires_at.timestamp(),
        "leader": mine.session,
        "leader_started": leader.started,
        "device": mine.terminal,
        "folder": str(folder),
        "name": name,
    }
    # A fresh process instead of a fork: nothing of what this one had in its memory goes along.
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("_holder.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
        cwd="/",
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    with process.stdin as secret, process.stdout as told:
        with suppress(BrokenPipeError):
            secret.write(json.dumps(given).encode())
            secret.close()
        answered, _, _ = select.select([told], [], [], _START_SECONDS)
        if not answered or told.readline() != b"ready\n":
            process.kill()
            process.wait()
            raise NoHolder("the process that would hold the session did not start")


def held(server: str) -> Session | None:
    """Return this terminal's session at a server; None when there is none or this process may not have it."""
    return next((each for each in all_held(server) if each.server == server), None)


def all_held(server: str | None = None) -> list[Session]:
    """Return the sessions that this process may have: all of its terminal, or the one at a server."""
    mine = standing(os.getpid()) if supported() else None
    if mine is None:
        return []
    folder = _folder()
    names = _names(folder, mine.session) if server is None else [_name(mine.session, server)]
    found = []
    for name in names:
        if (session := _asked(folder, name)) is not None:
            found.append(session)
    return found


def end(everywhere: bool = False) -> int:
    """End this terminal's sessions, or all of this user; returns how many holders ended."""
    mine = standing(os.getpid()) if supported() else None
    if mine is None:
        return 0
    folder = _folder()
    names = _names(folder, None if everywhere else mine.session)
    return sum(_say(folder, name, b"end\n") == b"ended\n" for name in names)


def _folder() -> Path:
    folder = state_dir() / "sessions"
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    return folder


def _name(session: int, server: str) -> str:
    return f"{session}-{hashlib.sha256(server.encode()).hexdigest()[:12]}"


def _names(folder: Path, session: int | None) -> list[str]:
    pattern = "*" if session is None else f"{session}-*"
    return sorted(each.name for each in folder.glob(pattern) if each.is_socket())


@contextmanager
def _open(folder: Path, name: str) -> Iterator[socket.socket]:
    # A socket's path holds 107 bytes, a home may be deeper: the folder's descriptor stands for it.
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(_ANSWER_SECONDS)
            peer.connect(f"/proc/self/fd/{directory}/{name}")
            yield peer
    finally:
        os.close(directory)


def _say(folder: Path, name: str, word: bytes) -> bytes:
    try:
        with _open(folder, name) as peer:
            peer.sendall(word)
            return peer.recv(64)
    except ConnectionRefusedError:
        with suppress(OSError):  # left behind by a holder that was killed
            os.unlink(folder / name)
    except OSError:
        pass
    return b""


def _asked(folder: Path, name: str) -> Session | None:
    try:
        with _open(folder, name) as peer:
            peer.sendall(b"get\n")
            if peer.recv(64) != b"ok\n" or not close_memory():
                return None
            peer.sendall(b"go\n")
            with peer.makefile("rb") as answer:
                told = json.loads(answer.readline())
    except (OSError, ValueError):
        return None
    return Session(
        told["server"],
        told["principal"],
        told["token_id"],
        datetime.fromtimestamp(told["expires_at"], UTC),
        told["session"],
    )
