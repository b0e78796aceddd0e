"""The connection: addresses, refusals with their details, and patience that ends."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from laptop import BANK
from teamlore.auth.v1 import auth_pb2, auth_pb2_grpc
from teamlore.sync.v1 import sync_pb2
from teamlore_client import _calls
from teamlore_client._address import SERVICES, parse_address
from teamlore_client._errors import Refused, ServerUnreachable
from teamlore_client._memory import FieldInvalid
from teamlore_client._rpc import TOGETHER_MOST, TeamClient


class Auth(auth_pb2_grpc.AuthServiceServicer):
    """Fails as often as it is told, then answers."""

    def __init__(self, code: grpc.StatusCode, details: list[Any], times: int) -> None:
        self.code, self.details, self.times = code, details, times
        self.calls = 0
        self.credentials: list[str] = []

    def WhoAmI(self, request: Any, context: Any) -> auth_pb2.WhoAmIResponse:
        self.calls += 1
        self.credentials.append(str(dict(context.invocation_metadata()).get("authorization", "")))
        if self.calls > self.times:
            return auth_pb2.WhoAmIResponse(principal="user:bob", permissions=["read"])
        status = status_pb2.Status(code=self.code.value[0], message="as told")
        for detail in self.details:
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(self.code, "as told")
        raise AssertionError


@contextmanager
def served(auth: Auth) -> Iterator[TeamClient]:
    server = grpc.server(ThreadPoolExecutor(1))
    auth_pb2_grpc.add_AuthServiceServicer_to_server(auth, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with TeamClient(parse_address(f"http://127.0.0.1:{port}"), "tlk_secret") as client:
            yield client
    finally:
        server.stop(None)


def info(reason: str, **metadata: str) -> error_details_pb2.ErrorInfo:
    return error_details_pb2.ErrorInfo(domain="teamlore.dev", reason=reason, metadata=metadata)


def test_a_refusal_carries_reason_field_and_permission() -> None:
    violation = error_details_pb2.BadRequest.FieldViolation(field="bank", description="bad")
    details = [
        info("PERMISSION_DENIED", permission="forget"),
        error_details_pb2.BadRequest(field_violations=[violation]),
    ]
    auth = Auth(grpc.StatusCode.PERMISSION_DENIED, details, 9)
    with served(auth) as client, pytest.raises(Refused) as caught:
        client.who_am_i(BANK)
    error = caught.value
    assert (error.reason, error.message, error.field, error.permission) == (
        "PERMISSION_DENIED",
        "as told",
        "bank",
        "forget",
    )
    assert error.undone
    assert auth.calls == 1
    assert auth.credentials == ["Bearer tlk_secret"]


def test_a_refusal_without_details_is_named_by_its_code() -> None:
    with served(Auth(grpc.StatusCode.UNIMPLEMENTED, [], 9)) as client, pytest.raises(Refused) as caught:
        client.who_am_i(BANK)
    assert caught.value.reason == "UNIMPLEMENTED"
    assert not caught.value.undone  # it may be a proxy's word


def test_a_refusal_after_an_unanswered_try_tells_nothing_of_that_one() -> None:
    auth = Auth(grpc.StatusCode.UNAVAILABLE, [info("RATE_LIMITED")], 9)

    def then_refuses(request: Any, context: Any) -> None:
        answer = Auth.WhoAmI(auth, request, context)
        raise AssertionError(answer)

    def first(request: Any, context: Any) -> auth_pb2.WhoAmIResponse:
        auth.WhoAmI = then_refuses  # type: ignore[assignment, method-assign]
        try:
            return Auth.WhoAmI(auth, request, context)
        finally:
            auth.code = grpc.StatusCode.RESOURCE_EXHAUSTED

    auth.WhoAmI = first  # type: ignore[assignment, method-assign]
    with served(auth) as client, pytest.raises(Refused) as caught:
        client.who_am_i(BANK)
    assert (auth.calls, caught.value.reason, caught.value.undone) == (2, "RATE_LIMITED", False)


def test_only_unavailable_is_tried_again_and_retry_info_is_honoured() -> None:
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromMilliseconds(400)
    auth = Auth(grpc.StatusCode.UNAVAILABLE, [info("DRAINING"), retry], 2)
    began = time.monotonic()
    with served(auth) as client:
        assert client.who_am_i(BANK).principal == "user:bob"
    assert auth.calls == 3
    assert time.monotonic() - began >= 0.8
    auth = Auth(grpc.StatusCode.RESOURCE_EXHAUSTED, [info("RATE_LIMITED"), retry], 1)
    with served(auth) as client, pytest.raises(Refused):
        client.who_am_i(BANK)
    assert auth.calls == 1


def test_a_server_that_says_why_it_cannot_is_told_from_one_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_calls, "RETRY_SECONDS", 0.0)
    for details, reason in (([info("KEYSTORE_UNAVAILABLE")], "KEYSTORE_UNAVAILABLE"), ([], "")):
        with served(Auth(grpc.StatusCode.UNAVAILABLE, details, 9)) as client, pytest.raises(ServerUnreachable) as caught:
            client.who_am_i(BANK)
        assert caught.value.reason == reason


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_calls, "RETRY_SECONDS", 0.5)
    auth = Auth(grpc.StatusCode.UNAVAILABLE, [], 1000)
    began = time.monotonic()
    with served(auth) as client, pytest.raises(ServerUnreachable, match="as told"):
        client.who_am_i(BANK)
    assert auth.calls > 1
    assert time.monotonic() - began < 3
    with (
        TeamClient(parse_address("http://127.0.0.1:1"), "tlk_secret") as client,
        pytest.raises(ServerUnreachable),
    ):
        client.who_am_i(BANK)


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "ä", "\udcff"])
def test_a_token_that_no_header_can_carry_is_named(token: str) -> None:
    with pytest.raises(FieldInvalid) as caught:
        TeamClient(parse_address("http://127.0.0.1:1"), token)
    assert caught.value.field == "token"
    assert token not in str(caught.value) or not token


@pytest.mark.parametrize(
    ("given", "authority", "tls", "in_clear"),
    [
        ("https://memory.example.com", "memory.example.com:443", True, False),
        ("https://memory.example.com:8443/", "memory.example.com:8443", True, False),
        ("http://127.0.0.1:7000", "127.0.0.1:7000", False, False),
        ("http://[::1]:7000", "[::1]:7000", False, False),
        ("http://memory.internal", "memory.internal:80", False, True),
    ],
)
def test_one_url_of_an_edge(given: str, authority: str, tls: bool, in_clear: bool) -> None:
    address = parse_address(given)
    assert set(address.targets) == set(SERVICES)
    assert {(each.authority, each.tls) for each in address.targets.values()} == {(authority, tls)}
    assert address.in_clear is in_clear
    assert parse_address(address.text) == address


def test_an_address_a_service_and_the_file_of_a_stack(tmp_path: Path) -> None:
    text = "auth=127.0.0.1:1,sync=127.0.0.1:2,feed=127.0.0.1:3,compliance=127.0.0.1:4"
    address = parse_address(text)
    assert [address.targets[name].port for name in SERVICES] == [1, 2, 3, 4]
    file = tmp_path / "stack.json"
    file.write_text(json.dumps({"ports": {"auth": 1, "sync": 2, "feed": 3, "compliance": 4, "index": 5}}))
    assert parse_address(f"@{file}") == address


@pytest.mark.parametrize(
    "given",
    [
        "",
        "memory.example.com",
        "ftp://memory.example.com",
        "https://",
        "https://user:secret@memory.example.com",
        "https://memory.example.com/path",
        "https://memory.example.com:99999",
        "https://memory.example.com:0",
        "auth=127.0.0.1:1",
        "auth=127.0.0.1:1,auth=127.0.0.1:2,sync=a:1,feed=a:1,compliance=a:1",
        "@/nowhere/stack.json",
        "https://m\udcff",
    ],
)
def test_anything_else_names_server(given: str) -> None:
    with pytest.raises(FieldInvalid) as caught:
        parse_address(given)
    assert caught.value.field == "server"
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("named", "perhaps_more"), [(TOGETHER_MOST - 1, False), (TOGETHER_MOST, True)])
def test_as_many_as_are_named_at_most_may_be_more(
    monkeypatch: pytest.MonkeyPatch, named: int, perhaps_more: bool
) -> None:
    ids = [f"chunk-{number:04}" for number in range(named)]
    answer = sync_pb2.GetMemoriesResponse(
        memories=[sync_pb2.Memory(id=id_, author="user:bob", text="text") for id_ in ids[:100]],
        remaining_ids=ids[100:],
    )
    monkeypatch.setattr(TeamClient, "call", lambda *_: answer)
    with TeamClient(parse_address("http://127.0.0.1:1"), "tlk_secret") as client:
        doomed = client.doomed(BANK, ids[0])
    assert doomed is not None
    assert (doomed.others, doomed.perhaps_more) == (named - 1, perhaps_more)
