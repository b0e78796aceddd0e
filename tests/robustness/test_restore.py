"""An older backup is restored under live laptops: each notices, compares, and sends again what the server has lost."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from teamlore.feed.v1 import feed_pb2
from teamlore.sync.v1 import sync_pb2

from stack import topology
from stack.postgres import Postgres
from stack.topology import Settings
from tests.integration.calls import outcome_of
from tests.integration.conftest import ROOT, RunningStack, StackProcess
from tests.robustness.calls import Metadata, live_texts
from tests.robustness.laptops import Laptop

NAMES = ("alice", "bob", "carol")
pytestmark = pytest.mark.timeout(600)


class Deployment:
    """A stack that can be stopped, whose Postgres can be put back to an older copy."""

    def __init__(self, folder: Path) -> None:
        self.process = StackProcess(folder / "data")
        self.home, self.backup = folder / "data" / "postgres", folder / "backup"

    def start(self) -> RunningStack:
        self.process.lines.clear()
        self.process.start()
        return self.process.running()

    def back_up(self) -> RunningStack:
        """Copies the cluster while it is stopped."""
        self.process.stop()
        subprocess.run(["cp", "-a", str(self.home), str(self.backup)], check=True)
        return self.start()

    def restore(self) -> None:
        """Stops everything and puts the copy back. Nothing runs afterwards."""
        self.process.stop()
        shutil.rmtree(self.home)
        subprocess.run(["cp", "-a", str(self.backup), str(self.home)], check=True)

    def settle_accounts(self, stack: RunningStack) -> str:
        """Runs the command of the runbook, with compliance's settings, while only Postgres runs."""
        settings = Settings(self.process.data, root=ROOT)
        with Postgres(self.home, port=stack.facts.ports["postgres"]):
            env = topology.python_env(settings) | topology.service_env(settings, stack.facts, "compliance")
            words = ("-m", "services.compliance.restored", "--principal", "user:olga", "--force")
            done = subprocess.run(
                [sys.executable, *words], cwd=ROOT, env=env | {"PATH": os.environ["PATH"]},
                capture_output=True, text=True,
            )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    folder = Path(tempfile.mkdtemp(prefix="teamlore-restore-"))
    folder.chmod(0o755)
    made = Deployment(folder)
    try:
        yield made
    finally:
        made.process.stop()
        shutil.rmtree(folder, ignore_errors=True)


def text(what: str) -> str:
    """What is nobody's near-duplicate, by the number in it."""
    return f"Decision {uuid.uuid4().int % 10**12} about {what}: {uuid.uuid4()} and {uuid.uuid4()}."


def add(laptop: Laptop, what: str) -> str:
    return str(laptop.answer("memory", "add", text(what))["id"])


def test_three_laptops_survive_a_backup_that_is_older_than_they_are(
    deployment: Deployment, tmp_path: Path
) -> None:
    stack = deployment.start()
    laptops = {name: Laptop.made(tmp_path / name, "git@github.com:acme/old.git") for name in NAMES}
    alice, bob, carol = laptops.values()
    bank = alice.answer("memory", "list")["bank"]
    services = ("auth", "sync", "feed", "compliance")
    server = ",".join(f"{name}={stack.address(name)}" for name in services)

    async def token(name: str) -> str:
        return await stack.token(f"user:{name}", ("project:*", "read write forget"))

    tokens = {name: asyncio.run(token(name)) for name in NAMES}
    old = {name: add(laptop, f"old of {name}") for name, laptop in laptops.items()}
    doomed = add(alice, "what is erased after the backup")
    for name, laptop in laptops.items():
        laptop.answer("team", "join", "--server", server, "--token", tokens[name], "--yes")
    for laptop in laptops.values():
        assert laptop.answer("team", "sync")["verified"]
    stack = deployment.back_up()

    # An hour of work that the backup does not know.
    new = {name: add(laptop, f"new of {name}") for name, laptop in laptops.items()}
    late_doomed = add(carol, "what is stored and erased after the backup")
    for laptop in (*laptops.values(), *laptops.values()):
        assert laptop.answer("team", "sync")["verified"]
    erased = alice.answer("memory", "forget", doomed, "--team")
    assert erased["state"] == "server_done"
    # Bob forgets Carol's; Carol is on a plane and has both still.
    assert bob.answer("memory", "forget", late_doomed, "--team")["state"] == "server_done"
    assert alice.answer("team", "sync")["verified"] and bob.answer("team", "sync")["verified"]
    assert {doomed, late_doomed} <= carol.copy(bank).texts.keys()
    unsynced = {name: add(laptop, f"unsynced of {name}") for name, laptop in laptops.items()}

    deployment.restore()
    with pytest.raises(RuntimeError):  # nobody serves a database that has forgotten what was erased
        deployment.start()
    assert "older than what was erased since" in "".join(
        path.read_text() for path in (deployment.process.data / "logs").glob("*.log")
    )
    deployment.process.stop()
    assert "2 erasures of 2 memories since the backup" in deployment.settle_accounts(stack)
    stack = deployment.start()

    first = {name: laptop.answer("team", "sync") for name, laptop in laptops.items()}
    assert {name: answer["reconciled"] for name, answer in first.items()} == dict.fromkeys(
        NAMES, "CURSOR_DIVERGED"
    )
    # Each sent again what the server no longer has though its ledger says stored: its new one, and Carol's erased one.
    assert {name: answer["requeued"] for name, answer in first.items()} == {"alice": 1, "bob": 1, "carol": 2}
    # And dropped what others have: theirs again once they are here, erased ones never.
    assert {name: answer["pulled"]["dropped"] for name, answer in first.items()} == {"alice": 2, "bob": 1, "carol": 1}
    for laptop in laptops.values():
        assert laptop.answer("team", "sync")["verified"]
    everything = {*old.values(), *new.values(), *unsynced.values()}
    copies = {name: laptop.copy(bank) for name, laptop in laptops.items()}
    assert {name: set(copy.texts) for name, copy in copies.items()} == dict.fromkeys(NAMES, everything)
    listed = asyncio.run(live_texts(stack.address("feed"), bank, stack.credential(tokens["bob"])))
    assert copies["alice"].texts == copies["bob"].texts == copies["carol"].texts == listed


def test_of_the_same_words_only_what_was_lost_comes_back_from_another_laptop(
    deployment: Deployment, tmp_path: Path
) -> None:
    stack = deployment.start()
    alice, bob = (Laptop.made(tmp_path / name, "git@github.com:acme/same.git") for name in ("alice", "bob"))
    bank = alice.answer("memory", "list")["bank"]
    services = ("auth", "sync", "feed", "compliance")
    server = ",".join(f"{name}={stack.address(name)}" for name in services)
    add(alice, "what both have")
    for name, laptop in (("alice", alice), ("bob", bob)):
        token = asyncio.run(stack.token(f"user:{name}", ("project:*", "read write forget")))
        laptop.answer("team", "join", "--server", server, "--token", token, "--yes")
    stack = deployment.back_up()

    texts = {what: text(what) for what in ("what is lost", "what Bob hears erased", "what Bob does not hear erased")}
    theirs = {what: str(alice.answer("memory", "add", each)["id"]) for what, each in texts.items()}
    assert alice.answer("team", "sync")["pushed"]["stored"] == 3
    mine = {what: str(bob.answer("memory", "add", each)["id"]) for what, each in texts.items()}
    assert bob.answer("team", "sync")["pushed"]["duplicate"] == 3
    lost, heard, unheard = texts
    assert alice.answer("memory", "forget", theirs[heard], "--team")["state"] == "server_done"
    assert bob.answer("team", "sync")["kept_here"] == 1
    assert alice.answer("memory", "forget", theirs[unheard], "--team")["state"] == "server_done"

    deployment.restore()
    deployment.settle_accounts(stack)
    stack = deployment.start()
    synced = bob.answer("team", "sync")
    assert (synced["reconciled"], synced["verified"]) == ("CURSOR_DIVERGED", True)
    assert (synced["requeued"], synced["pushed"]["stored"], synced["kept_here"]) == (1, 1, 1)
    assert bob.ledger(bank)[mine[lost]][0] == "stored"
    assert alice.answer("team", "sync")["verified"]
    assert alice.copy(bank).texts.keys() & {*mine.values(), *theirs.values()} == {theirs[lost]}
    assert bob.copy(bank).texts.keys() >= set(mine.values()), "they stay his own"


def test_a_failover_to_an_older_copy_that_nobody_announced_is_told_by_the_nonce(
    deployment: Deployment,
) -> None:
    """No command is run and no epoch raised: the same numbers come again with other changes, and a resume must not go on."""
    stack, bank = deployment.start(), "project:failover-1"
    writer = stack.credential(asyncio.run(stack.token("user:alice", ("project:*", "read write"))))

    async def push(running: RunningStack, count: int) -> None:
        async with running.channel("sync") as channel:
            stub: Any = running.sync(channel)
            for _ in range(count):
                record = sync_pb2.Record(id=uuid.uuid4().hex, text=text("anything"))
                await stub.Push(sync_pb2.PushRequest(bank=bank, records=[record]), metadata=writer)

    asyncio.run(push(stack, 3))
    stack = deployment.back_up()
    early, _ = asyncio.run(page(stack, bank, "", writer))
    asyncio.run(push(stack, 2))
    ahead, _ = asyncio.run(page(stack, bank, "", writer))
    deployment.restore()
    stack = deployment.start()
    refusals = [asyncio.run(refusal(stack, bank, ahead, writer))]
    asyncio.run(push(stack, 4))
    refusals.append(asyncio.run(refusal(stack, bank, ahead, writer)))
    # Beyond the head at first; then a place that the history has, with another change at it.
    assert refusals == ["CURSOR_DIVERGED", "CURSOR_DIVERGED"]
    # Who had not gone beyond the backup goes on, and misses nothing.
    _, ids = asyncio.run(page(stack, bank, early, writer))
    assert len(ids) == 4


async def page(stack: RunningStack, bank: str, cursor: str, metadata: Metadata) -> tuple[str, list[str]]:
    """The next cursor and the ids after one."""
    async with stack.channel("feed") as channel:
        stub: Any = stack.feed(channel)
        request = feed_pb2.ListChangesRequest(bank=bank, cursor=cursor, limit=100)
        answer = await stub.ListChanges(request, metadata=metadata)
    return answer.next_cursor, [change.id for change in answer.changes]


async def refusal(stack: RunningStack, bank: str, cursor: str, metadata: Metadata) -> str:
    """The reason by which a resume is refused, of a call and of a watch alike; empty where it is not."""
    codes = set()
    async with stack.channel("feed") as channel:
        stub: Any = stack.feed(channel)
        changes = feed_pb2.ListChangesRequest(bank=bank, cursor=cursor)
        watch = feed_pb2.WatchChangesRequest(bank=bank, cursor=cursor)
        for call in (
            stub.ListChanges(changes, metadata=metadata),
            stub.WatchChanges(watch, metadata=metadata, timeout=20).read(),
        ):
            try:
                await call
                codes.add("")
            except grpc.aio.AioRpcError as error:
                codes.add(outcome_of(error).reason)
    assert len(codes) == 1, codes
    return codes.pop()
