"""A real Envoy in front of real services: JSON over HTTP as a person with curl sees it, and gRPC through the same port."""

import asyncio
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from teamlore.feed.v1 import feed_pb2, feed_pb2_grpc
from teamlore.index.v1 import index_pb2, index_pb2_grpc

from stack.child import guarded
from stack.ports import LOOPBACK, free_port
from stack.postgres import Postgres

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("auth", "sync", "feed")


@dataclass(frozen=True)
class Answer:
    """One HTTP answer: status, headers with lower-case names, and the JSON body (None where there is none)."""

    status: int
    headers: Mapping[str, str]
    body: Any

    def detail(self, kind: str) -> Mapping[str, Any]:
        """The one detail of a google.rpc.Status whose type ends in `kind`."""
        found = [
            detail
            for detail in self.body["details"]
            if detail["@type"] == f"type.googleapis.com/google.rpc.{kind}"
        ]
        assert len(found) == 1, self.body
        return found[0]

    def refused(self, status: int, code: grpc.StatusCode, reason: str) -> "Answer":
        """Checks that this is a refusal, whole: number, gRPC code, words, and one ErrorInfo of ours."""
        assert self.status == status, (self.status, self.body)
        assert self.headers["content-type"] == "application/json"
        assert "x-http-status" not in self.headers
        assert self.body["code"] == code.value[0] and self.body["message"]
        info = self.detail("ErrorInfo")
        assert (info["domain"], info["reason"]) == ("teamlore.dev", reason)
        assert all(key == "@type" or key == key.lower() for key in _keys(self.body)), self.body
        return self


@dataclass(frozen=True)
class Edge:
    """A running deployment with an edge."""

    port: int
    admin_port: int
    dsn: str
    admin: str

    def call(
        self, method: str, path: str, body: Any = None, token: str | None = None, **headers: str
    ) -> Answer:
        """One request on a connection of its own; a body that is not bytes is sent as JSON."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=30)
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            headers["content-type"] = "application/json"
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
            received = {name.lower(): value for name, value in answer.getheaders()}
            is_json = received.get("content-type") == "application/json"
            return Answer(answer.status, received, json.loads(text) if is_json else None)

    def token(self, principal: str, permissions: str, pattern: str = "project:*") -> dict[str, str]:
        """A fresh token, made through the edge."""
        grants = [{"pattern": pattern, "permissions": permissions.split()}]
        answer = self.call(
            "POST",
            "/v1/admin/tokens",
            {"principal": principal, "kind": "agent", "grants": grants},
            self.admin,
        )
        assert answer.status == 200, answer
        assert set(answer.body) == {"token_id", "token"}
        return answer.body

    def push(self, bank: str, token: str, *records: Mapping[str, Any]) -> Answer:
        return self.call("POST", f"/v1/banks/{bank}/sync/push", {"records": list(records)}, token)

    def sql(self, statement: str, *arguments: Any) -> Any:
        """One statement as the superuser; gives the first column of the first row."""

        async def run() -> Any:
            connection = await asyncpg.connect(self.dsn)
            try:
                return await connection.fetchval(statement, *arguments)
            finally:
                await connection.close()

        return asyncio.run(run())


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner)


def _until(ready: Callable[[], bool], what: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 30
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come up:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.05)


def _serving(port: int) -> bool:
    with grpc.insecure_channel(f"{LOOPBACK}:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            return channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=1) == b"\x08\x01"
        except grpc.RpcError:
            return False


def _live(admin_port: int) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, admin_port, timeout=1)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    return False


class _Processes:
    """What this file starts, and the only things it ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def start(
        self, name: str, words: list[str], env: Mapping[str, str]
    ) -> tuple[subprocess.Popen[bytes], Path]:
        log = self._folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                guarded(words, signal.SIGKILL),
                cwd=ROOT, env={**_bare(), **env}, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        self._running.append(process)
        return process, log

    def stop(self) -> None:
        for process in reversed(self._running):
            process.terminate()
        for process in self._running:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _bare() -> dict[str, str]:
    """Our environment without settings of Teamlore or proxies."""
    ours = re.compile(r"^(TEAMLORE_|DATABASE_URL|QDRANT_URL|BANK_CREATION|OTEL_|.*_proxy$)", re.IGNORECASE)
    kept = {name: value for name, value in os.environ.items() if not ours.match(name)}
    return {**kept, "PYTHONPATH": f"{ROOT}:{ROOT / 'gen' / 'python'}", "PYTHONUNBUFFERED": "1"}


def _run(module: str, dsn: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module],
        cwd=ROOT,
        env={**_bare(), "DATABASE_URL": dsn},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _render(out: Path, listen: str, admin: str, targets: Mapping[str, str], *more: str) -> None:
    words = [
        sys.executable,
        str(ROOT / "deploy/envoy/render.py"),
        "--out",
        str(out),
        "--listen",
        listen,
        "--admin",
        admin,
    ]
    words += [word for name, address in targets.items() for word in ("--target", f"{name}={address}")]
    subprocess.run([*words, *more], env=_bare(), cwd=ROOT, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def edge() -> Iterator[Edge]:
    """Postgres, migrations, three services and Envoy, all on free loopback ports."""
    folder = Path(tempfile.mkdtemp(prefix="teamlore-edge-")).resolve()
    folder.chmod(0o755)
    server = Postgres(folder / "pg", options={"shared_buffers": "16MB"}, relocation_root=folder / "moved")
    processes = _Processes(folder)
    try:
        dsn = server.start().dsn
        _run("kit.migrate", dsn)
        targets = {name: f"{LOOPBACK}:{free_port()}" for name in SERVICES}
        started = {}
        for name, address in targets.items():
            env = {
                "DATABASE_URL": dsn,
                "TEAMLORE_KEYSTORE": str(folder / "keys" / "keystore.db"),
                "TEAMLORE_LISTEN": address,
            }
            if name != "auth":
                env["TEAMLORE_AUTH_TARGET"] = targets["auth"]
            started[name] = processes.start(name, [sys.executable, "-m", f"services.{name}.main"], env)
        for name, (process, log) in started.items():
            port = int(targets[name].rpartition(":")[2])
            _until(lambda port=port: _serving(port), name, process, log)
        admin = _run("services.auth.bootstrap", dsn)
        port, admin_port = free_port(), free_port()
        # Index does not run here: what is refused for it is refused by the edge itself.
        known = {**targets, "index": f"{LOOPBACK}:{free_port()}"}
        _render(folder / "edge", f"{LOOPBACK}:{port}", f"{LOOPBACK}:{admin_port}", known)
        words = [
            str(Path(sys.executable).with_name("envoy")),
            "-c",
            str(folder / "edge/envoy.yaml"),
            "-l",
            "warn",
        ]
        process, log = processes.start("envoy", [*words, "--use-dynamic-base-id", "--concurrency", "2"], {})
        _until(lambda: _live(admin_port), "envoy", process, log)
        yield Edge(port, admin_port, dsn, admin)
    finally:
        processes.stop()
        server.destroy()
        shutil.rmtree(folder, ignore_errors=True)


def _bank(name: str) -> str:
    return f"project:{name}-1a2b3c4d"


def _record(text: str, **more: Any) -> dict[str, Any]:
    return {"id": uuid.uuid4().hex[:16], "text": text, **more}


def _mark(cursor: str) -> str:
    return quote(cursor, safe="")


# What is served


def test_a_push_by_curl_is_read_by_another_with_the_authors_name(edge: Edge) -> None:
    bank = _bank("walk")
    alice, bob = edge.token("user:alice", "read write"), edge.token("user:bob", "read")
    sent = _record(
        "We use SQS for the order queue.",
        tags=["queue"],
        fact_type="decision",
        metadata={"source": "codex", "pages": 3, "draft": False},
        occurred_at="2026-03-01T10:00:00Z",
    )
    pushed = edge.push(bank, alice["token"], sent)
    assert pushed.status == 200 and pushed.headers["content-type"] == "application/json"
    assert pushed.body == {
        "results": [{"id": sent["id"], "status": "stored", "reason": "", "duplicate_of": ""}],
        "dedup_skipped": pushed.body["dedup_skipped"],
    }
    listed = edge.call("GET", f"/v1/banks/{bank}/changes", token=bob["token"])
    assert listed.status == 200
    assert set(listed.body) == {"changes", "after_seq", "through_seq", "next_cursor", "has_more"}
    assert (listed.body["after_seq"], listed.body["through_seq"], listed.body["has_more"]) == (
        "0",
        "1",
        False,
    )
    (change,) = listed.body["changes"]
    assert set(change) == {
        "id", "text", "tags", "metadata", "occurred_at", "fact_type", "deleted", "seq", "changed_at", "retained_at",
        "derivation", "author", "lane", "status", "version",
    }  # fmt: skip
    assert {name: change[name] for name in sent} == sent
    assert (change["author"], change["seq"], change["deleted"], change["version"]) == (
        "user:alice",
        "1",
        False,
        1,
    )
    again = edge.call("GET", f"/v1/banks/{quote(bank, safe='')}/changes?cursor={_mark(listed.body['next_cursor'])}&limit=5",
                      token=bob["token"])  # fmt: skip
    assert (again.status, again.body["changes"], again.body["after_seq"]) == (200, [], "1")


def test_what_is_empty_is_still_written_out(edge: Edge) -> None:
    token = edge.token("user:alice", "read")["token"]
    digest = edge.call("GET", f"/v1/banks/{_bank('nobody-home')}/digest", token=token)
    assert (digest.status, digest.body) == (200, {"seq": "0", "count": "0", "sum": "0"})


def test_public_keys_need_no_credential(edge: Edge) -> None:
    keys = edge.call("GET", "/v1/auth/jwks")
    assert keys.status == 200
    assert [set(key) for key in keys.body["keys"]] == [{"kty", "crv", "kid", "alg", "use", "x"}]


def test_a_large_push_and_a_large_page_pass(edge: Edge) -> None:
    bank, token = _bank("large"), edge.token("user:alice", "read write")["token"]
    records = [_record(f"{number} " + "word " * 8000) for number in range(98)]
    pushed = edge.push(bank, token, *records)
    assert pushed.status == 200 and {result["status"] for result in pushed.body["results"]} == {"stored"}
    listed = edge.call("GET", f"/v1/banks/{bank}/changes?limit=1000", token=token)
    assert listed.status == 200
    assert sum(len(change["text"]) for change in listed.body["changes"]) > 2_000_000
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in "word ") * 8000
    body = json.dumps({"records": [_record("@")] * 12}).replace("@", escaped)
    assert len(body) > 2_000_000
    assert edge.call("POST", f"/v1/banks/{bank}/sync/push", body.encode(), token).status == 200


def test_a_body_without_end_is_refused(edge: Edge) -> None:
    token = edge.token("user:alice", "read write")["token"]
    assert edge.push(_bank("large"), token, *[_record("word " * 8000)] * 120).status == 429
    assert edge.push(_bank("large"), token, *[_record("word " * 8000)] * 450).status == 413


def test_fields_and_words_that_nobody_knows(edge: Edge) -> None:
    bank, token = _bank("unknown"), edge.token("user:alice", "read write")["token"]
    sent = _record("We keep what we know.")
    body = {"records": [sent | {"colour": "blue"}], "unknown": {"deep": 1}}
    dropped = edge.call("POST", f"/v1/banks/{bank}/sync/push", body, token)
    assert (dropped.status, dropped.body["results"][0]["status"]) == (200, "stored")
    refused = edge.call("GET", f"/v1/banks/{bank}/changes?colour=blue", token=token)
    assert refused.status == 400
    assert edge.call("GET", "/v1/nowhere", token=token).status == 404
    assert edge.call("PUT", f"/v1/banks/{bank}/changes", {}, token).status in (404, 405)


# What is refused


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("sync/push", {"records": []}, "records"),
        ("forget", {"memory_ids": ["short"]}, "memory_ids[0]"),
        ("forget", {"memory_ids": []}, "memory_ids"),
    ],
)
def test_a_bad_field_is_named(edge: Edge, path: str, body: Any, field: str) -> None:
    token = edge.token("user:alice", "read write forget")["token"]
    answer = edge.call("POST", f"/v1/banks/{_bank('bad')}/{path}", body, token)
    answer.refused(400, grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID")
    violations = answer.detail("BadRequest")["field_violations"]
    assert [violation["field"] for violation in violations] == [field] and violations[0]["description"]


def test_a_bad_word_in_a_grant_is_named(edge: Edge) -> None:
    body = {
        "principal": "user:alice",
        "kind": "robot",
        "grants": [{"pattern": "project:*", "permissions": ["read"]}],
    }
    answer = edge.call("POST", "/v1/admin/tokens", body, edge.admin)
    answer.refused(400, grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID")
    assert [violation["field"] for violation in answer.detail("BadRequest")["field_violations"]] == ["kind"]


@pytest.mark.parametrize("body", [b"{", b'{"records": 7}', b'{"records": [{"id": 7, "text": {}}]}', b"\xff"])
def test_what_is_no_json_of_the_request_is_refused_by_the_edge(edge: Edge, body: bytes) -> None:
    token = edge.token("user:alice", "write")["token"]
    assert edge.call("POST", f"/v1/banks/{_bank('bad')}/sync/push", body, token).status == 400


def test_without_a_credential(edge: Edge) -> None:
    answer = edge.call("GET", f"/v1/banks/{_bank('walk')}/changes")
    answer.refused(401, grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_MISSING")


def test_with_an_unknown_credential(edge: Edge) -> None:
    answer = edge.call("GET", f"/v1/banks/{_bank('walk')}/changes", token="tlk_" + "A" * 43)
    answer.refused(401, grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_INVALID")


def test_with_a_revoked_credential(edge: Edge) -> None:
    token = edge.token("user:carol", "read")
    path = f"/v1/banks/{_bank('walk')}/head"
    assert edge.call("GET", path, token=token["token"]).status == 200
    revoked = edge.call("DELETE", f"/v1/admin/tokens/{token['token_id']}", token=edge.admin)
    assert (revoked.status, revoked.body) == (200, {"revoked": True})
    deadline = time.monotonic() + 2
    while (
        answer := edge.call("GET", path, token=token["token"])
    ).status == 200 and time.monotonic() < deadline:
        time.sleep(0.05)
    answer.refused(401, grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_REVOKED")


def test_a_token_id_that_nobody_has(edge: Edge) -> None:
    unknown = edge.call("DELETE", "/v1/admin/tokens/0123456789abcdef", token=edge.admin)
    assert (unknown.status, unknown.body) == (200, {"revoked": False})
    malformed = edge.call("DELETE", "/v1/admin/tokens/zz", token=edge.admin)
    malformed.refused(400, grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID")
    assert [violation["field"] for violation in malformed.detail("BadRequest")["field_violations"]] == [
        "token_id"
    ]


def test_ids_that_nobody_has_are_not_forgotten(edge: Edge) -> None:
    token = edge.token("user:alice", "read write forget")["token"]
    answer = edge.call("POST", f"/v1/banks/{_bank('no-ids')}/forget", {"memory_ids": ["abcdefgh"]}, token)
    assert (answer.status, answer.body) == (200, {"deleted_count": 0, "erased_count": 0, "erasure_id": ""})


def test_without_the_permission(edge: Edge) -> None:
    answer = edge.push(_bank("walk"), edge.token("user:bob", "read")["token"], _record("no"))
    answer.refused(403, grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED")
    assert answer.detail("ErrorInfo")["metadata"] == {"permission": "write"}


def test_a_cursor_that_is_garbage(edge: Edge) -> None:
    token = edge.token("user:bob", "read")["token"]
    answer = edge.call("GET", f"/v1/banks/{_bank('walk')}/changes?cursor=garbage", token=token)
    answer.refused(400, grpc.StatusCode.INVALID_ARGUMENT, "CURSOR_INVALID")


@pytest.mark.parametrize("erase", [False, True])
def test_a_held_bank(edge: Edge, erase: bool) -> None:
    bank, token = _bank(f"held-{erase}"), edge.token("user:alice", "read write forget")["token"]
    sent = _record("Kept for the court.")
    assert edge.push(bank, token, sent).status == 200
    place = "select memory.place_hold($1, $2, 'M-1', 'user:officer', null)"
    edge.sql(place, bank, uuid.uuid4().hex)
    body = {"memory_ids": [sent["id"]], "erase": erase}
    answer = edge.call("POST", f"/v1/banks/{bank}/forget", body, token)
    answer.refused(423, grpc.StatusCode.FAILED_PRECONDITION, "BANK_HELD")


def test_a_cursor_of_a_history_that_is_gone_by_http_and_by_grpc(edge: Edge) -> None:
    bank, token = _bank("diverged"), edge.token("user:alice", "read write")["token"]
    assert edge.push(bank, token, _record("Before the restore.")).status == 200
    cursor = edge.call("GET", f"/v1/banks/{bank}/head", token=token).body["cursor"]
    edge.sql("update memory.history set epoch = epoch + 1")
    answer = edge.call("GET", f"/v1/banks/{bank}/changes?cursor={_mark(cursor)}", token=token)
    answer.refused(410, grpc.StatusCode.FAILED_PRECONDITION, "CURSOR_DIVERGED")
    # The same refusal, asked for in gRPC through the same port, is a gRPC refusal with all its parts, under HTTP 200.
    with grpc.insecure_channel(f"{LOOPBACK}:{edge.port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = feed_pb2_grpc.FeedServiceStub(channel)
        request = feed_pb2.ListChangesRequest(bank=bank, cursor=cursor)
        raw = request.SerializeToString()
        with pytest.raises(grpc.RpcError) as caught:
            stub.ListChanges(request, metadata=(("authorization", f"Bearer {token}"),), timeout=10)
    assert (caught.value.code(), _reason(caught.value)) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "CURSOR_DIVERGED",
    )
    connection = http.client.HTTPConnection(LOOPBACK, edge.port, timeout=10)
    with contextlib.closing(connection):
        headers = {"content-type": "application/grpc", "te": "trailers", "authorization": f"Bearer {token}"}
        frame = b"\0" + len(raw).to_bytes(4, "big") + raw
        connection.request("POST", "/teamlore.feed.v1.FeedService/ListChanges", frame, headers)
        plain = connection.getresponse()
        assert (plain.status, plain.getheader("grpc-status")) == (200, "9")


def test_a_service_that_is_away(edge: Edge) -> None:
    token = edge.token("user:alice", "read")["token"]
    answer = edge.call("POST", f"/v1/banks/{_bank('walk')}/search", {"query": "queue"}, token)
    assert answer.status == 503


# gRPC through the same port


def _reason(error: Any) -> str:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            info = error_details_pb2.ErrorInfo()
            assert status_pb2.Status.FromString(value).details[0].Unpack(info)
            return info.reason
    return ""


def test_a_watcher_hears_through_the_edge(edge: Edge) -> None:
    bank, token = _bank("watch"), edge.token("user:alice", "read write")["token"]
    with grpc.insecure_channel(f"{LOOPBACK}:{edge.port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        request = feed_pb2.WatchChangesRequest(bank=bank)
        metadata = (("authorization", f"Bearer {token}"),)
        watch = feed_pb2_grpc.FeedServiceStub(channel).WatchChanges(request, metadata=metadata, timeout=30)
        assert next(watch).bookmark.seq == 0
        sent = _record("Heard at once.")
        assert edge.push(bank, token, sent).status == 200
        assert [change.id for change in next(watch).batch.changes] == [sent["id"]]
        watch.cancel()


def test_calls_between_services_do_not_pass_the_edge(edge: Edge) -> None:
    with grpc.insecure_channel(f"{LOOPBACK}:{edge.port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        request = index_pb2.FindNearDuplicatesRequest(bank=_bank("walk"))
        with pytest.raises(grpc.RpcError) as caught:
            index_pb2_grpc.IndexServiceStub(channel).FindNearDuplicates(request, timeout=10)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        for path in (
            "/teamlore.compliance.v1.ErasureParticipantService/EraseObjects",
            "/grpc.health.v1.Health/Check",
        ):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(path)(b"", timeout=10)
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


# The rendered files


def test_envoy_accepts_the_configuration_with_tls_and_every_service(tmp_path: Path) -> None:
    certificate, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    _self_signed(certificate, key)
    targets = {name: f"{name}:8080" for name in ("auth", "sync", "feed", "compliance", "index")}
    _render(
        tmp_path,
        "0.0.0.0:8443",
        "127.0.0.1:9901",
        targets,
        "--certificate",
        str(certificate),
        "--key",
        str(key),
    )
    words = [
        str(Path(sys.executable).with_name("envoy")),
        "--mode",
        "validate",
        "-l",
        "warn",
        "-c",
        str(tmp_path / "envoy.yaml"),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr.lower()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "auth=here"], "'here' is not host:port"),
        (["--target", "entries=a:1"], "not entries"),
        ([], "--target names one of"),
        (["--target", "auth=a:1", "--key", "k.pem"], "come together"),
    ],
)
def test_arguments_that_cannot_be_used(tmp_path: Path, words: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "deploy/envoy/render.py"), "--out", str(tmp_path), *words],
        env=_bare(), cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2 and said in done.stderr
    assert not list(tmp_path.iterdir())


def _self_signed(certificate: Path, key: Path) -> None:
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key.write_bytes(private.private_bytes(serialization.Encoding.PEM, *plain))
