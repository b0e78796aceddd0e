"""Finds the processes of a stack, so that a test can kill exactly one of its own."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import asyncpg

from tests.integration.conftest import RunningStack

MODULES = {
    "auth": "services.auth.main", "sync": "services.sync.main", "feed": "services.feed.main",
    "compliance": "services.compliance.main", "index": "services.index.main", "engine": "services.index.engine.main",
}  # fmt: skip


def pids_of(stack: RunningStack, name: str) -> Iterator[tuple[int, list[str]]]:
    """The processes that serve `name` in this very stack, told by the data folder in their environment, with that."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if MODULES[name].encode() in arguments and str(stack.data).encode() in environment:
                yield int(entry.name), environment.decode(errors="replace").split("\0")


def pid_of(stack: RunningStack, name: str) -> int:
    """The stack's own process of `name`: the one on its port, not a second replica."""
    listens = f"TEAMLORE_LISTEN={stack.address(name)}"
    for pid, environment in pids_of(stack, name):
        if listens in environment:
            return pid
    raise LookupError(name)


async def postmaster_of(stack: RunningStack) -> int:
    """The pid of this stack's Postgres: the parent of one of its backends."""
    connection = await asyncpg.connect(stack.facts.database_url)
    try:
        backend = await connection.fetchval("select pg_backend_pid()")
        return int(Path(f"/proc/{backend}/stat").read_text().rpartition(")")[2].split()[1])
    finally:
        await connection.close()


def kill(pid: int) -> None:
    """kill -9."""
    os.kill(pid, signal.SIGKILL)
