"""What a supervised process is: how it is started, known to be ready, and stopped."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stack import guard

Ready = Callable[[], bool] | Callable[[], Awaitable[bool]] | tuple[str, int]
"""A blocking test (run in a thread), a coroutine function, or the (host, port) of a gRPC health service."""


@dataclass(frozen=True)
class Child:
    """One process to keep alive."""

    name: str
    """Its name in messages."""
    argv: tuple[str, ...]
    """Program and arguments."""
    log_path: Path
    """File its output is appended to."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables over those that any process needs of the supervisor's own environment."""
    ready: Ready | None = None
    """When it counts as started; None means at once."""
    cwd: Path | None = None
    """Working directory; None means the supervisor's."""
    before: Callable[[], None] | None = None
    """Blocking step before each start, run in a thread; a StackError from it counts as a quick exit."""
    user: tuple[int, int] | None = None
    """User and group id to drop to."""
    stop_signal: signal.Signals = signal.SIGTERM
    """Asks it to end."""
    death_signal: signal.Signals = signal.SIGKILL
    """Sent by the kernel when the supervisor dies without stopping it (Linux)."""
    ready_timeout: float = 30.0
    """Seconds until it must be ready."""
    quick_exits: int = 5
    """Exits in a row, each within 2 s of the start, after which it is given up."""


def guarded(argv: Sequence[str], death_signal: int, user: tuple[int, int] | None = None) -> list[str]:
    """Return the command that becomes `argv` as `user`, sent `death_signal` (0: none) when this process dies.

    The kernel watches the *thread* that starts the process: start it from one that lives long enough.
    """
    uid, gid = user or (-1, -1)
    words = [str(os.getpid()), str(int(death_signal)), str(uid), str(gid), "--", *argv]
    return [sys.executable, "-I", "-S", guard.__file__, *words]
