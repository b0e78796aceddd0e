"""An Envoy in front of a running stack, and how a person with curl speaks through it."""

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import grpc

from stack.child import guarded
from stack.ports import LOOPBACK, free_port
from tests.integration.conftest import ROOT, RunningStack

ENVOY = str(Path(sys.executable).with_name("envoy"))


@dataclass(frozen=True)
class Answer:
    """One HTTP answer: status, headers with lower-case names, and the JSON body (None where there is none)."""

    status: int
    headers: Mapping[str, str]
    body: Any

    def detail(self, kind: str) -> Mapping[str, Any]:
        """The one detail of a google.rpc.Status whose type ends in `kind`."""
        types = f"type.googleapis.com/google.rpc.{kind}"
        (found,) = (detail for detail in self.body["details"] if detail["@type"] == types)
        return dict(found)

    def refused(self, status: int, code: grpc.StatusCode, reason: str) -> None:
        """Checks that this is a refusal, whole: number, gRPC code, words, and one ErrorInfo of ours."""
        assert self.status == status, (self.status, self.body)
        assert self.headers["content-type"] == "application/json" and "x-http-status" not in self.headers
        assert self.body["code"] == code.value[0] and self.body["message"]
        info = self.detail("ErrorInfo")
        assert (info["domain"], info["reason"]) == ("teamlore.dev", reason)
        assert all(key == "@type" or key == key.lower() for key in _keys(self.body)), self.body

    def refused_fields(self) -> list[str]:
        """The fields that a refusal names, each with words; checks the refusal itself."""
        self.refused(400, grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID")
        violations = self.detail("BadRequest")["field_violations"]
        assert all(violation["description"] for violation in violations)
        return [violation["field"] for violation in violations]


@dataclass(frozen=True)
class Edge:
    """An edge that runs, and the stack behind it."""

    port: int
    stack: RunningStack

    def call(self, method: str, path: str, body: Any = None, token: str = "") -> Answer:
        """One request on a connection of its own; a body that is not bytes is sent as JSON."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        if body is not None:
            headers["content-type"] = "application/json"
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
            received = {name.lower(): value for name, value in answer.getheaders()}
            is_json = received.get("content-type") == "application/json"
            return Answer(answer.status, received, json.loads(text) if is_json else None)

    def grant(self, principal: str, permissions: str) -> dict[str, str]:
        """A fresh token and its id, made through the edge."""
        grants = [{"pattern": "project:*", "permissions": permissions.split()}]
        body = {"principal": principal, "kind": "agent", "grants": grants}
        answer = self.call("POST", "/v1/admin/tokens", body, self.stack.admin)
        assert answer.status == 200 and set(answer.body) == {"token_id", "token"}, answer
        return dict(answer.body)

    def token(self, permissions: str, principal: str = "user:alice") -> str:
        """A fresh token, made through the edge."""
        return self.grant(principal, permissions)["token"]

    def push(self, bank: str, token: str, *records: Mapping[str, Any]) -> Answer:
        """Pushes records."""
        return self.call("POST", f"/v1/banks/{bank}/sync/push", {"records": list(records)}, token)

    def channel(self) -> grpc.Channel:
        """A gRPC channel through the same port."""
        return grpc.insecure_channel(f"{LOOPBACK}:{self.port}", options=[("grpc.enable_http_proxy", 0)])

    def sql(self, statement: str, *arguments: Any) -> None:
        """One statement as the superuser."""

        async def run() -> None:
            connection = await asyncpg.connect(self.stack.facts.database_url)
            try:
                await connection.execute(statement, *arguments)
            finally:
                await connection.close()

        asyncio.run(run())


def bank_of(name: str) -> str:
    """A bank of this edge's tests."""
    return f"project:edge-{name}"


def record(text: str, **more: Any) -> dict[str, Any]:
    """A record with an id of its own."""
    return {"id": uuid.uuid4().hex[:16], "text": text, **more}


def mark(cursor: str) -> str:
    """A cursor as it stands in a path."""
    return quote(cursor, safe="")


def render(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs deploy/envoy/render.py in our environment without settings of Teamlore."""
    ours = re.compile(r"^(TEAMLORE_|DATABASE_URL|QDRANT_URL|OTEL_)")
    bare = {name: value for name, value in os.environ.items() if not ours.match(name)}
    return subprocess.run(
        [sys.executable, str(ROOT / "deploy/envoy/render.py"), "--out", str(out), *words],
        env=bare | {"PYTHONPATH": f"{ROOT}:{ROOT / 'gen' / 'python'}"},
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def targets(addresses: Mapping[str, str]) -> Sequence[str]:
    """The arguments that name services."""
    return [word for name, address in addresses.items() for word in ("--target", f"{name}={address}")]


@contextlib.contextmanager
def running_edge(stack: RunningStack, folder: Path) -> Iterator[Edge]:
    """Envoy before `stack`, on a free loopback port. Nobody is where it is told that index is."""
    port, admin = free_port(), free_port()
    known = {name: stack.address(name) for name in ("auth", "sync", "feed")}
    known["index"] = f"{LOOPBACK}:{free_port()}"
    listen = ("--listen", f"{LOOPBACK}:{port}", "--admin", f"{LOOPBACK}:{admin}")
    assert render(folder, *listen, *targets(known)).returncode == 0
    words = [
        ENVOY,
        "-c",
        str(folder / "envoy.yaml"),
        "-l",
        "warn",
        "--use-dynamic-base-id",
        "--concurrency",
        "2",
    ]
    with (folder / "envoy.log").open("wb") as log:
        process = subprocess.Popen(
            guarded(words, signal.SIGKILL), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 30
        while not _ready(admin):
            said = (folder / "envoy.log").read_text(errors="replace")[-3000:]
            assert process.poll() is None and time.monotonic() < deadline, said
            time.sleep(0.05)
        yield Edge(port, stack)
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready(admin_port: int) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, admin_port, timeout=1)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    return False


def _keys(value: Any) -> Iterator[str]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    yield from value if isinstance(value, dict) else ()
    for item in inner:
        yield from _keys(item)
