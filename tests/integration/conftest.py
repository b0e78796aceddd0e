"""A whole stack of real processes for the tests of this folder, on free ports and a folder of its own."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from teamlore.auth.v1 import access_pb2, access_pb2_grpc, auth_pb2, auth_pb2_grpc
from teamlore.feed.v1 import feed_pb2_grpc
from teamlore.sync.v1 import sync_pb2_grpc

from stack import topology
from stack.launch import launch
from stack.topology import Facts, Settings

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class RunningStack:
    """What a test needs of a running stack."""

    data: Path
    facts: Facts
    admin: str
    channels: dict[str, grpc.aio.Channel] = field(default_factory=dict)

    def address(self, name: str) -> str:
        return topology.address(self.facts, name)

    def channel(self, name: str) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.address(name))

    @staticmethod
    def credential(token: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {token}"),)

    async def admin_session(self) -> str:
        """The admin as a person who is present."""
        async with self.channel("auth") as channel:
            answer = await auth_pb2_grpc.AuthServiceStub(channel).StartSession(
                auth_pb2.StartSessionRequest(person_token=self.admin)
            )
        return answer.session_token

    async def token(self, principal: str, *grants: tuple[str, str], kind: str = "agent") -> str:
        # Only a person who is present makes a token to sign in with.
        maker = await self.admin_session() if kind == "person" else self.admin
        async with self.channel("auth") as channel:
            answer = await access_pb2_grpc.AccessServiceStub(channel).CreateToken(
                access_pb2.CreateTokenRequest(
                    principal=principal,
                    kind=kind,
                    grants=[access_pb2.Grant(pattern=p, permissions=w.split()) for p, w in grants],
                ),
                metadata=self.credential(maker),
            )
        return answer.token

    async def session(self, principal: str, *grants: tuple[str, str]) -> str:
        """A person session, as a person token that an admin made starts one."""
        person = await self.token(principal, *grants, kind="person")
        async with self.channel("auth") as channel:
            answer = await auth_pb2_grpc.AuthServiceStub(channel).StartSession(
                auth_pb2.StartSessionRequest(person_token=person)
            )
        return answer.session_token

    def sync(self, channel: grpc.aio.Channel) -> sync_pb2_grpc.SyncServiceStub:
        return sync_pb2_grpc.SyncServiceStub(channel)

    def feed(self, channel: grpc.aio.Channel) -> feed_pb2_grpc.FeedServiceStub:
        return feed_pb2_grpc.FeedServiceStub(channel)


def _bootstrap(facts: Facts) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "services.auth.bootstrap"],
        env=topology.python_env(Settings(Path("/"), root=ROOT)) | {"DATABASE_URL": facts.database_url},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@contextlib.contextmanager
def running_stack(extra: Mapping[str, Mapping[str, str]] | None = None) -> Iterator[RunningStack]:
    """A stack in a folder that Postgres' user can reach, gone afterwards; `extra` are variables by service."""
    folder = Path(tempfile.mkdtemp(prefix="teamlore-stack-"))
    folder.chmod(0o755)
    process = StackProcess(folder / "data", extra)
    try:
        process.start()
        yield process.running()
    finally:
        process.stop()
        if "KEEP_STACK" not in os.environ:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def stack() -> Iterator[RunningStack]:
    """One stack for all tests of a session; each test uses banks of its own."""
    with running_stack() as running:
        yield running


class StackProcess:
    """`python -m tests.integration.conftest DIR` in a process of its own, as a person would start it."""

    def __init__(self, data: Path, extra: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self.data = data
        self.extra = extra or {}
        self.process: subprocess.Popen[str] | None = None
        self.lines: list[str] = []

    def start(self, timeout: float = 120) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(self.data), json.dumps(self.extra)],
            cwd=ROOT,
            env=topology.python_env(Settings(Path("/"), root=ROOT)) | {"PATH": "/usr/bin:/bin"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        ready = threading.Event()

        def read() -> None:
            assert self.process is not None and self.process.stdout is not None
            for line in self.process.stdout:
                self.lines.append(line.rstrip())
                if line.startswith("READY"):
                    ready.set()
            ready.set()

        threading.Thread(target=read, daemon=True).start()
        up = ready.wait(timeout) and any(line.startswith("READY") for line in self.lines)
        if not up or self.process.poll() is not None:  # its output ends a moment before it does
            raise RuntimeError("the stack did not come up:\n" + "\n".join(self.lines))

    def running(self) -> RunningStack:
        facts = self.facts()
        token = self.data / "admin.token"
        if not token.exists():
            token.write_text(_bootstrap(facts))
        return RunningStack(self.data, facts, token.read_text())

    def facts(self) -> Facts:
        line = next(line for line in self.lines if line.startswith("READY"))
        raw = json.loads(line.removeprefix("READY "))
        return Facts(raw["database_url"], raw["ports"], raw["tokens"])

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()


async def _main(data: Path, extra: Mapping[str, Mapping[str, str]]) -> None:
    async with launch(
        Settings(data, root=ROOT, extra=extra), say=lambda text: print(text, flush=True)
    ) as stack:
        if stack is None:
            return
        facts = stack.facts
        print(
            "READY "
            + json.dumps(
                {"database_url": facts.database_url, "ports": dict(facts.ports), "tokens": dict(facts.tokens)}
            ),
            flush=True,
        )
        await stack.supervisor.wait()


if __name__ == "__main__":
    started = time.monotonic()
    asyncio.run(_main(Path(sys.argv[1]), json.loads(sys.argv[2])))
