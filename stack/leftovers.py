"""What a killed Postgres leaves behind: helpers that still hold its shared memory, and a stale lock file."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from stack.errors import StackError, disk_errors

_PATIENCE = 10.0
_SHARED_MEMORY = Path("/proc/sysvipc/shm")


def settle(home: Path, patience: float = _PATIENCE) -> None:
    """Wait up to `patience` seconds until nothing of an earlier server uses `home`; then drop its lock file.

    Helpers of a killed server need a moment to notice and let go; a lock file whose process id has since
    gone to a program that is no Postgres would keep the next server from starting. A server that lives on is
    a StackError.
    """
    lock = home / "postmaster.pid"
    deadline = time.monotonic() + patience
    while (lines := _lines(lock)) is not None:
        owner = _server(lines, home)
        if owner is None and not _shared_memory_held(lines):
            with disk_errors(lock):
                lock.unlink(missing_ok=True)
            return
        if time.monotonic() > deadline:
            if owner is None:
                return  # the server itself has the last word on whether the memory is in use
            raise StackError(f"a Postgres already runs on {home} (process {owner}): stop it first")
        time.sleep(0.02)


def _lines(lock: Path) -> list[str] | None:
    try:
        return lock.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StackError(f"cannot read {lock}: {error.strerror}") from error


def _server(lines: list[str], home: Path) -> int | None:
    """Return the process id in the lock file when a Postgres on `home` has it."""
    try:
        pid = abs(int(lines[0]))
    except (IndexError, ValueError):
        return None
    if Path("/proc/self").exists():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return None
        state = Path(f"/proc/{pid}/stat")
        try:
            zombie = state.read_bytes().rpartition(b")")[2].split()[:1] == [b"Z"]
        except OSError:
            return None
        is_server = Path(words[0].decode(errors="replace")).name in ("postgres", "postmaster")
        return pid if is_server and not zombie and str(home).encode() in words else None
    shown = subprocess.run(["ps", "-p", str(pid), "-o", "command="], capture_output=True, text=True).stdout
    return pid if "postgres" in shown else None


def _shared_memory_held(lines: list[str]) -> bool:
    """Tell whether a process is attached to the memory block the lock file names (Linux; else no)."""
    try:
        block = lines[6].split()[1]
        table = _SHARED_MEMORY.read_text(encoding="ascii").splitlines()
    except (IndexError, OSError):
        return False
    column = table[0].split().index("nattch")
    return any(row[1] == block and row[column] != "0" for row in map(str.split, table[1:]))
