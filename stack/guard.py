"""Become another program that cannot outlive its parent, as another user if asked.

Run as a script with the standard library alone: `guard.py <parent pid> <signal> <uid> <gid> -- program args…`
(uid and gid -1: stay who we are). Doing this between fork and exec in the parent would not be safe, because
gRPC runs threads there. The order matters: a change of user clears the parent-death signal.
"""

from __future__ import annotations

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Drop privileges, tie this process to its parent's life, and exec the program."""
    parent, death_signal, uid, gid = (int(word) for word in arguments[:4])
    program = arguments[5:]
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    if uid >= 0:
        os.setgroups([gid])
        os.setgid(gid)
        os.setuid(uid)
    if libc is not None and death_signal:
        libc.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
        if os.getppid() != parent:  # it died before the signal was set
            sys.exit(1)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.exit(f"cannot run {program[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
