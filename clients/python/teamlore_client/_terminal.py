"""Which terminal a process belongs to, as Linux tells it: the standard library only, for the holder too."""

import ctypes
import os
import stat
from dataclasses import dataclass
from pathlib import Path

_PR_SET_DUMPABLE = 4


@dataclass(frozen=True)
class Standing:
    """How a process stands towards terminals, read from /proc/<pid>/stat."""

    session: int
    """The id of its session, which is the pid of the leader; nobody can enter a session from outside."""
    terminal: int
    """The device number of the controlling terminal; 0 without one."""
    foreground: bool
    """True when its process group has the terminal now."""
    started: int
    """When it started, in clock ticks since boot: tells a process from a later one of the same pid."""


def standing(pid: int) -> Standing | None:
    """Return how a process stands; None when it is gone or hidden."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name of the program stands in brackets and may hold anything, brackets included.
    fields = text.rpartition(")")[2].split()
    state, group, session, terminal, owner = fields[0], *map(int, fields[2:6])
    if state in "ZX":
        return None
    number = terminal & 0xFFFFFFFF  # the kernel's form: minor's low byte, 12 bits of major, the rest of minor
    device = os.makedev((number >> 8) & 0xFFF, (number & 0xFF) | ((number >> 12) & 0xFFF00)) if number else 0
    return Standing(session, device, group == owner, int(fields[19]))


def terminal_of_stdin(pid: int) -> int:
    """Return the device number of the terminal on a process' standard input; 0 when it is something else."""
    try:
        status = os.stat(f"/proc/{pid}/fd/0")
    except OSError:
        return 0
    return status.st_rdev if stat.S_ISCHR(status.st_mode) else 0


def close_memory() -> bool:
    """Close this process' memory, environment and files to other processes of the user; False where none can."""
    try:
        return int(ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)) == 0
    except (OSError, AttributeError):
        return False
