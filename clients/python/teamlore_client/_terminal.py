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
    parent: int
    """The pid of the process that started it."""


def standing(pid: int) -> Standing | None:
    """Return how a process stands; None when it is gone or hidden."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name of the program stands in brackets and may hold anything, brackets included.
    fields = text.rpartition(")")[2].split()
    state, parent, group, session, terminal, owner = fields[0], *map(int, fields[1:6])
    if state in "ZX":
        return None
    number = terminal & 0xFFFFFFFF  # the kernel's form: minor's low byte, 12 bits of major, the rest of minor
    device = os.makedev((number >> 8) & 0xFFF, (number & 0xFF) | ((number >> 12) & 0xFFF00)) if number else 0
    return Standing(session, device, group == owner, int(fields[19]), parent)


def typed(pid: int, leader: int) -> bool:
    """Return whether a process was started by the shell that leads its session, and by no program in between.

    A subshell is a fork of the shell and still has its program and arguments. An agent, a script or a job that takes the
    foreground for itself stands in between with others, and what left its parent behind has no way up to the shell.
    """
    shell, above = _program(leader), standing(pid)
    while shell is not None and above is not None and above.session == leader:
        if above.parent == leader:
            return True
        if _program(above.parent) != shell:
            return False
        above = standing(above.parent)
    return False


def _program(pid: int) -> tuple[int, int, bytes] | None:
    """What a process runs, by file and arguments."""
    try:
        file = os.stat(f"/proc/{pid}/exe")
        return file.st_dev, file.st_ino, Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None


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
