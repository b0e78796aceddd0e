"""One run: a real stack, writers, watchers and laptops as processes, faults at random from a seed, and the verdict."""

import asyncio
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import grpc
from teamlore.feed.v1 import feed_pb2, feed_pb2_grpc
from teamlore.sync.v1 import sync_pb2

from stack.postgres import Postgres
from tests.integration.conftest import ROOT, RunningStack, StackProcess
from tests.robustness import aftermath, history, verdict
from tests.robustness.calls import Metadata, code_of, live_memories, own_connection, until_done, whole_feed
from tests.robustness.checker import Acknowledged, Digest, Fault
from tests.robustness.faults import DISK_BYTES, FAULTS, Faults, Watched
from tests.robustness.keeping import Copy
from tests.robustness.laptops import Laptop, told
from tests.robustness.proxy import Proxy
from tests.robustness.report import Report, Settings, unproven
from tests.robustness.work import CLIENTS, Plan

BANKS, WRITERS, WATCHERS = 6, 3, 2
LAPTOPS, LATE = ("alice", "bob", "carol"), "dave"
"""Dave joins when all have stopped, and finds a log that begins in the middle."""
ORIGINS = {"clone": "git@github.com:acme/robust.git", "repeating": "git@github.com:acme/repeating.git"}
SECRET = "project:secret-1"
PATIENCE = 300.0
"""Seconds beyond its time that a run goes on trying faults which cannot be done just now."""
Say = Callable[[float], None]


@contextlib.contextmanager
def stack_with_a_disk() -> Iterator[tuple[RunningStack, Path | None]]:
    """A stack whose Postgres lies on a small disk of its own where one may be mounted."""
    folder = Path(tempfile.mkdtemp(prefix="teamlore-robust-"))
    folder.chmod(0o755)
    data = folder / "data"
    process, disk = StackProcess(data), None
    try:
        disk = _own_disk(data)
        process.start()
        yield process.running(), disk
    finally:
        process.stop()
        if disk is not None:
            subprocess.run(["umount", "-l", str(disk)], check=False)
        if "KEEP_STACK" not in os.environ:
            shutil.rmtree(folder, ignore_errors=True)


def _own_disk(data: Path) -> Path | None:
    """Makes the cluster and moves it to a disk of its own; None where nothing may be mounted."""
    if os.geteuid() != 0:
        return None
    data.mkdir()
    home, aside = data / "postgres", data / "postgres.aside"
    with Postgres(home) as server:
        asyncio.run(_keep_log_small(server.dsn))
    home.rename(aside)
    home.mkdir(mode=0o700)
    owner = aside.stat()
    options = f"size={DISK_BYTES},mode=700,uid={owner.st_uid},gid={owner.st_gid}"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(home)], capture_output=True)
    if mounted.returncode != 0:
        home.rmdir()
        aside.rename(home)
        return None
    subprocess.run(["cp", "-a", f"{aside}/.", str(home)], check=True)
    shutil.rmtree(aside)
    return home


async def _keep_log_small(dsn: str) -> None:
    database = await asyncpg.connect(dsn)
    await database.execute("alter system set max_wal_size = '192MB'")
    await database.close()


class Run:
    """One run on a stack that is up."""

    def __init__(
        self, settings: Settings, say: Say, stack: RunningStack, disk: Path | None, folder: Path
    ) -> None:
        self.settings, self.say, self.stack, self.disk, self.folder = settings, say, stack, disk, folder
        self.banks = [f"project:race-{n}" for n in range(BANKS)]
        self.recorder = history.Recorder(folder / "faults.jsonl", "harness")
        self.clones = {
            project: {name: Laptop.made(folder / "laptops" / name, origin, project) for name in LAPTOPS}
            for project, origin in ORIGINS.items()
        }
        self.shared, self.repeating = (
            str(clones["alice"].answer("memory", "list")["bank"]) for clones in self.clones.values()
        )
        self.laptops = {
            (name, bank): laptop
            for bank, clones in zip((self.shared, self.repeating), self.clones.values(), strict=True)
            for name, laptop in clones.items()
        }
        self.reader: Metadata = ()
        self.workers: list[subprocess.Popen[bytes]] = []
        self.watchers: list[Watched] = []

    async def go(self) -> Report:
        """All of it, start to verdict."""
        async with contextlib.AsyncExitStack() as ends:
            names = ("sync", "feed")
            proxies = {
                name: await ends.enter_async_context(Proxy(self.stack.address(name)).running())
                for name in names
            }
            plan = await self._prepare({name: proxy.address for name, proxy in proxies.items()})
            faults = Faults(
                self.stack, self.recorder, random.Random(self.settings.seed), self.banks,
                list(proxies.values()), self.watchers, self.disk, self.repeating,
            )  # fmt: skip
            try:
                self._start(plan)
                await self._disturb(faults)
                (self.folder / "stop").touch()
                await self._wait(self.workers, 240)
                await faults.healthy()
                end, found = await self._end(plan)
            finally:
                for process in (*self.workers, *(each.process for each in self.watchers)):
                    if process is not None and process.poll() is None:
                        process.kill()
            return self._report(end, found, faults)

    async def _prepare(self, proxied: dict[str, str]) -> Plan:
        """Banks, tokens, laptops that have joined, and a secret that no writer may read."""
        stack, tokens = self.stack, {}
        for number in range(WRITERS):
            for client in range(CLIENTS):
                who, grant = f"user:writer{number}.{client}", ("project:race-*", "read write forget")
                tokens[f"writer{number}.{client}"] = await stack.token(who, grant)
        for number in range(WATCHERS):
            tokens[f"watcher{number}"] = await stack.token(f"user:watcher{number}", ("project:*", "read"))
        for name in (*LAPTOPS, LATE):
            tokens[name] = await stack.token(f"user:{name}", ("project:*", "read write forget"))
        self.reader = stack.credential(tokens["watcher0"])
        addresses = {name: stack.address(name) for name in ("auth", "sync", "feed", "compliance")} | proxied
        secret = {f"secret-{n:08}": f"a secret that nobody shall hear of, number {n}" for n in range(5)}
        await self._open_banks()
        async with stack.channel("sync") as channel:
            records = [sync_pb2.Record(id=memory_id, text=text) for memory_id, text in secret.items()]
            stub: Any = stack.sync(channel)
            await stub.Push(
                sync_pb2.PushRequest(bank=SECRET, records=records), metadata=stack.credential(tokens["alice"])
            )
        server = ",".join(f"{name}={address}" for name, address in addresses.items())
        for (name, _), laptop in self.laptops.items():
            words = ("team", "join", "--server", server, "--token", tokens[name], "--yes")
            await asyncio.to_thread(laptop.answer, *words)
        watched = [*self.banks, self.shared]
        return Plan(
            str(self.folder),
            self.settings.seed,
            addresses,
            self.banks,
            watched,
            self.settings.pause,
            tokens,
            secret,
            {self.shared: "off", self.repeating: "on"},
        )

    async def _open_banks(self) -> None:
        """Repetitions are told in one bank alone: writers' texts have so much in common that they would be taken for some."""
        database = await asyncpg.connect(self.stack.facts.database_url)
        for bank in (*self.banks, self.shared, self.repeating, SECRET):
            await database.execute("select memory.open_bank($1)", bank)
        await database.execute(
            "update memory.banks set near_duplicates = 'off' where bank <> $1", self.repeating
        )
        if self.settings.sql:
            await database.execute(self.settings.sql)
        await database.close()

    def _start(self, plan: Plan) -> None:
        path = plan.write()

        def spawn(*words: str) -> "subprocess.Popen[bytes]":
            log = (self.folder / f"{words[-1]}.log").open("ab")
            python = f"{ROOT}:{ROOT / 'gen' / 'python'}"
            with log:
                return subprocess.Popen(
                    [sys.executable, "-m", *words], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    env=os.environ | {"PYTHONPATH": python, "GRPC_VERBOSITY": "NONE"},
                )  # fmt: skip

        work = "tests.robustness.work"
        self.workers += [spawn(work, "writer", str(path), f"writer{n}") for n in range(WRITERS)]
        self.workers += [spawn("tests.robustness.laptops", str(path), name) for name in LAPTOPS]
        for number in range(WATCHERS):
            watcher = Watched(lambda n=number: spawn(work, "watcher", str(path), f"watcher{n}"))  # type: ignore[misc]
            watcher.again()
            self.watchers.append(watcher)

    async def _disturb(self, faults: Faults) -> None:
        """Two lanes: any fault after any other, and beside them what lasts a while and hurts nobody's process."""
        began = time.monotonic()
        every = [name for name in faults.names() if name in (self.settings.only or FAULTS)]
        beside = [name for name in every if name in ("slow commit", "slow rollback", "long transaction")]

        async def lane(names: list[str], pause: float) -> None:
            chosen = random.Random(f"{self.settings.seed}-{len(names)}")
            deck = chosen.sample(names, len(names))
            # Each is done once, however slow the machine is just now; one that can never be done is told of.
            while deck and time.monotonic() - began < self.settings.seconds + PATIENCE:
                name = deck.pop()
                if not await faults.do(name):
                    deck.insert(0, name)
                await asyncio.sleep(chosen.uniform(0.1, pause))
                if not deck and time.monotonic() - began < self.settings.seconds:
                    deck = chosen.sample(names, len(names))

        async with asyncio.TaskGroup() as group:
            lanes = [group.create_task(lane(every, 1.5)), group.create_task(lane(beside, 5))]
            while not all(each.done() for each in lanes) or time.monotonic() - began < self.settings.seconds:
                self.say(time.monotonic() - began)
                await asyncio.sleep(0.3)

    async def _wait(self, processes: list["subprocess.Popen[bytes]"], patience: float) -> None:
        deadline = time.monotonic() + patience
        while any(each.poll() is None for each in processes) and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        late = [each.args for each in processes if each.poll() != 0]
        if late:
            self.recorder.write("refused", what="worker", code="LATE", words=f"did not end by itself: {late}")

    async def _call(self, stub_call: Any, request: object) -> Any:
        wrong: list[str] = []
        answer = await until_done(stub_call, request, self.reader, wrong)
        assert answer is not None, wrong
        return answer

    async def _end(self, plan: Plan) -> tuple[verdict.End, list[Fault]]:
        """Laptops sync for the last time, watchers reach the heads, and everything is read once more."""
        late = Laptop.made(self.folder / "laptops" / LATE, ORIGINS["repeating"], "repeating")
        self.laptops[LATE, self.repeating] = late
        found = [
            Fault("laptop unverified", words) for words in await asyncio.to_thread(self._last_syncs, plan)
        ]
        feed, digests, lists = self.stack.address("feed"), {}, {}
        async with own_connection(feed) as channel:
            stub: Any = feed_pb2_grpc.FeedServiceStub(channel)
            for bank in (*plan.watched, self.repeating):
                got = await self._call(stub.GetDigest, feed_pb2.GetDigestRequest(bank=bank))
                digests[bank] = Digest(got.seq, got.count, got.sum)
        heads = self.folder / "heads.new"
        heads.write_text(json.dumps({bank: digest.seq for bank, digest in digests.items()}))
        heads.rename(self.folder / "heads.json")
        await self._wait([each.process for each in self.watchers if each.process is not None], 90)
        for bank, digest in digests.items():
            try:
                listed = await live_memories(feed, bank, self.reader)
                # Where the log was trimmed no feed begins at its start any more.
                feed_of = None if bank == self.repeating else await whole_feed(feed, bank, self.reader)
            except grpc.aio.AioRpcError as error:
                found.append(Fault("unreadable", f"{bank}: {code_of(error)}: {error.details()}"))
                listed, feed_of = {}, None
            texts = {memory_id: each.text for memory_id, each in listed.items()}
            standing = {memory_id: (each.version, each.status) for memory_id, each in listed.items()}
            lists[bank] = Copy(digest.seq, digest.count, digest.sum, texts, standing)
            if feed_of is not None and (set(feed_of[0]) != set(texts) or feed_of[2] != digest.seq):
                found.append(Fault("copies differ", f"{bank}: one who came late against the list"))
        found += [
            Fault("erasure open", words) for words in await aftermath.settled(self.stack.facts.database_url)
        ]
        found += [Fault("wrong key", words) for words in await aftermath.wrong_keys(self.stack)]
        copies = {(name, bank): laptop.copy(bank) for (name, bank), laptop in self.laptops.items()}
        return verdict.End(digests, lists, copies, frozenset({self.repeating})), found

    def _last_syncs(self, plan: Plan) -> list[str]:
        """Syncs every laptop until nothing moves; says who never compared equal to the server."""
        wrong: dict[tuple[str, str], str] = {}
        # The last of the first round has all; the others hear of what came after them in the second.
        for each, laptop in [*self.laptops.items(), *list(self.laptops.items())[:-1]]:
            laptop.shift = 0
            if not laptop.joined(each[1]):  # it had left, and the server was away when it came back
                server = ",".join(f"{name}={address}" for name, address in plan.addresses.items())
                laptop.run("team", "join", "--server", server, "--token", plan.tokens[each[0]], "--yes")
            code, answer, complaint = laptop.run("team", "sync")
            wrong[each] = (
                "" if code == 0 and answer["verified"] else f"{each}: {code} {answer} {complaint[-200:]}"
            )
        return [words for words in wrong.values() if words]

    def _report(self, end: verdict.End, found: list[Fault], faults: Faults) -> Report:
        past, report = history.read(self.folder), Report(self.settings)
        extra = dict(faults.told)
        shared = extra.setdefault(self.shared, Acknowledged())
        for name in LAPTOPS:
            done = [each for each in past.operations if (each.process, each.bank) == (name, self.shared)]
            laptop = end.laptops[name, self.shared]
            told(laptop, done, shared)
            for copy in (laptop, end.laptops[name, self.repeating]):
                report.laptops.update(answer for answer, _ in copy.ledger.values())
        for each in past.operations:
            if each.what == "sync" and each.answer.get("reconciled"):
                report.laptops[f"compared, {each.answer['reconciled']}"] += 1
            report.laptops["standing told"] += (
                each.what == "status" and each.process in LAPTOPS and each.end is not None
            )
        for each in past.operations:
            report.operations[
                each.what if not each.expected else "push of what must be refused or is there"
            ] += 1
            report.unanswered += each.end is None
            report.commits += each.end is not None and each.what in verdict.WRITES and not each.expected
        for line in past.faults:
            report.faults[line["what"]] += 1
        report.changes = sum(digest.seq for digest in end.digests.values())
        report.watched = sum(len(line.get("steps", ())) for stream in past.streams for line in stream.lines)
        report.found = found + verdict.judge(past, end, extra)
        report.found += unproven(report, self.settings.only or faults.names())
        return report


@contextlib.asynccontextmanager
async def _folder() -> AsyncIterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="teamlore-history-"))
    try:
        yield folder
    finally:
        if "KEEP_HISTORY" not in os.environ:
            shutil.rmtree(folder, ignore_errors=True)


def run(settings: Settings, say: Say = lambda _: None) -> Report:
    """One run on a stack of its own; `say` is told now and then how many seconds are through.

    With KEEP_HISTORY set, what was written down stays in its temporary folder.
    """

    async def on(stack: RunningStack, disk: Path | None) -> Report:
        async with _folder() as folder:
            return await Run(settings, say, stack, disk, folder).go()

    with stack_with_a_disk() as (stack, disk):
        return asyncio.run(on(stack, disk))
