"""What goes wrong in a run: each fault is done to the real process, disk or connection, and undone where it must be."""

import asyncio
import contextlib
import functools
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
from teamlore.sync.v1 import sync_pb2

from kit.errors import LOST, Refusal
from kit.sealing import KeyStore, Slot, seal
from stack.health import grpc_serving
from tests.integration.conftest import ROOT, RunningStack
from tests.robustness.checker import Acknowledged
from tests.robustness.history import Recorder
from tests.robustness.processes import MODULES, kill, pid_of, postmaster_of
from tests.robustness.proxy import Proxy

PUT = "select stored_id from memory.put($1, $2, $3, $4, $5, $6, $7, $8, $9)"
BACKENDS = (
    "select pid from pg_stat_activity where application_name like 'teamlore-%' and pid <> pg_backend_pid()"
)


class Unreachable(Exception):
    """What a fault was to be done to is away, by another fault: nothing was done."""


@dataclass
class Watched:
    """A process of the harness that a fault may kill; `start` starts it anew."""

    start: Callable[[], "subprocess.Popen[bytes]"]
    process: "subprocess.Popen[bytes] | None" = None

    def again(self) -> None:
        """Kills it with -9 and starts it anew."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process = self.start()


@dataclass
class Faults:
    """Does faults to one stack; writes down each with its beginning and its end."""

    stack: RunningStack
    recorder: Recorder
    random: random.Random
    banks: list[str]
    proxies: list[Proxy]
    watchers: list[Watched]
    disk: Path | None
    """The mount point of Postgres' own disk; None where there is none to fill."""
    trimmed: str = ""
    """The bank whose log is trimmed: one that laptops follow and no watcher."""
    told: dict[str, Acknowledged] = field(default_factory=dict)
    """What the faults themselves stored."""

    def names(self) -> list[str]:
        """Every fault that can be done here."""
        return [name for name in FAULTS if name != DISK_FULL or self.disk is not None]

    async def do(self, name: str) -> bool:
        """Does one fault and undoes it, until every service says that it serves; false where it could not be done now."""
        began = time.monotonic()
        try:
            await FAULTS[name](self)
        except Unreachable:  # another fault is at work there
            return False
        await self.healthy()
        self.recorder.write("fault", what=name, where="", began=began)
        return True

    async def healthy(self, patience: float = 60) -> None:
        """Waits until every service serves. Raises AssertionError where one does not."""
        deadline = time.monotonic() + patience
        for name in MODULES:
            host, _, port = self.stack.address(name).rpartition(":")
            while name != "engine" and not await grpc_serving(host, int(port)):
                assert time.monotonic() < deadline, f"{name} does not serve"
                await asyncio.sleep(0.1)

    async def _kill(self, name: str) -> None:
        try:
            kill(pid_of(self.stack, name))
        except (LookupError, ProcessLookupError):  # another kill was first
            raise Unreachable from None

    async def _kill_postgres(self) -> None:
        try:
            kill(await postmaster_of(self.stack))
        except LOST:
            raise Unreachable from None

    async def _kill_watcher(self) -> None:
        await asyncio.to_thread(self.random.choice(self.watchers).again)

    async def _stopped(self, name: str) -> None:
        try:
            pid = pid_of(self.stack, name)
        except LookupError:
            raise Unreachable from None
        await self._stop_for(pid, self.random.uniform(0.5, 4))

    async def _backend_stopped(self) -> None:
        """A connection's server process stops where it is: in the middle of a commit, when chance has it so."""
        pids: list[int] = []
        async with self._database() as database:
            pids = [row["pid"] for row in await database.fetch(BACKENDS + " and state = 'active'")]
            pids = pids or [row["pid"] for row in await database.fetch(BACKENDS)]
        if not pids:
            raise Unreachable
        await self._stop_for(self.random.choice(pids), self.random.uniform(0.5, 3))

    async def _stop_for(self, pid: int, seconds: float) -> None:
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            raise Unreachable from None
        try:
            await asyncio.sleep(seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    async def _backends_terminated(self) -> None:
        ended = 0
        async with self._database() as database:
            ended = await database.fetchval(f"select count(pg_terminate_backend(pid)) from ({BACKENDS}) t")
        if not ended:
            raise Unreachable

    async def _connections_cut(self) -> None:
        if not self.random.choice(self.proxies).cut():
            raise Unreachable

    async def _long_transaction(self) -> None:
        """Somebody's report: it holds a transaction id and a snapshot, and does nothing, while all others go on."""
        async with self._database() as database:
            await database.execute("begin isolation level repeatable read")
            await database.fetchval("select txid_current(), count(*) from memory.changes")
            await asyncio.sleep(self.random.uniform(2, 6))
            await database.execute("rollback")

    async def _slow_commit(self, commit: bool = True) -> None:
        bank, memory_id = self.random.choice(self.banks), uuid.uuid4().hex
        async with self._database() as database:
            keys = KeyStore(self.stack.data / "keys" / "keystore.db")
            try:
                await database.execute("begin")
                try:
                    stored = await put(database, keys, bank, memory_id)
                except Refusal:  # a process that is stopped just now holds the key store's lock
                    raise Unreachable from None
                await asyncio.sleep(self.random.uniform(0.5, 4))
                if stored and commit:
                    self.told.setdefault(bank, Acknowledged()).maybe.append(memory_id)
                    await database.execute("commit")
                    self.told[bank].maybe.remove(memory_id)
                    self.told[bank].stored.append(memory_id)
                else:
                    await database.execute("rollback")
            finally:
                keys.close()

    async def _trim(self) -> None:
        """All leaves a log that may; a laptop that was further behind has to compare what it has."""
        path = {
            "DATABASE_URL": self.stack.facts.database_url,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'gen' / 'python'}",
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.sync.trim", "--older-than", "0", "--devices-seen-within", "0",
            "--bank", self.trimmed, cwd=ROOT, env=os.environ | path,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        said, complaint = (part.decode(errors="replace") for part in await process.communicate())
        if "Traceback" in complaint or process.returncode not in (0, 1):
            code, words = str(process.returncode), complaint[-300:]
            self.recorder.write("refused", what="trim", bank=self.trimmed, code=code, words=words)
        if process.returncode != 0 or " 1 horizons rose" not in said:
            raise Unreachable

    async def _disk_full(self) -> None:
        """The volume shrinks to what is on it, so that nothing more can be written, for some seconds."""
        assert self.disk is not None
        for _ in range(50):
            status = os.statvfs(self.disk)
            used = (status.f_blocks - status.f_bfree) * status.f_frsize
            if _remount(self.disk, used + 65_536):
                break  # else more was written meanwhile than it was to have
        else:
            raise Unreachable
        try:
            await asyncio.sleep(self.random.uniform(1, 4))
        finally:
            assert _remount(self.disk, DISK_BYTES)

    @contextlib.asynccontextmanager
    async def _database(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection as the superuser; one that is lost on the way ends the fault and nothing more."""
        try:
            database = await asyncpg.connect(self.stack.facts.database_url, timeout=20)
        except LOST:
            raise Unreachable from None
        try:
            with contextlib.suppress(*LOST):
                yield database
        finally:
            database.terminate()


DISK_BYTES = 3 << 30
DISK_FULL = "disk full"
FAULTS: dict[str, Callable[[Faults], Awaitable[None]]] = {
    **{f"kill -9 of {name}": functools.partial(Faults._kill, name=name) for name in MODULES},
    **{
        f"{name} stopped": functools.partial(Faults._stopped, name=name)
        for name in ("auth", "sync", "feed", "engine")
    },
    "kill -9 of postgres": Faults._kill_postgres,
    "kill -9 of a watcher": Faults._kill_watcher,
    "backend stopped": Faults._backend_stopped,
    "backends terminated": Faults._backends_terminated,
    "connections cut": Faults._connections_cut,
    "slow commit": Faults._slow_commit,
    "slow rollback": functools.partial(Faults._slow_commit, commit=False),
    "long transaction": Faults._long_transaction,
    "log trimmed": Faults._trim,
    DISK_FULL: Faults._disk_full,
}
"""Every fault by its name."""


def _remount(disk: Path, size: int) -> bool:
    words = ["mount", "-o", f"remount,size={size}", str(disk)]
    return subprocess.run(words, capture_output=True).returncode == 0


async def put(database: asyncpg.Connection, keys: KeyStore, bank: str, memory_id: str) -> bool:
    """Stores a memory that every reader can open, in the transaction that is open; True where the id was won."""
    slot = Slot(keys.make_pages(bank, "user:slow", 1, 1)[0], 0)
    content = sync_pb2.MemoryContent(text=f"slow {memory_id}").SerializeToString()
    columns = (
        [memory_id],
        [""],
        [None],
        [slot.page],
        [slot.index],
        [seal(keys.key(slot), bank, memory_id, content)],
    )
    return bool(await database.fetch(PUT, bank, "user:slow", *columns, [None]))
