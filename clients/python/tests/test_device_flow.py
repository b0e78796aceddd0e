"""The device flow against an issuer in memory that answers as it is told."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import pytest
from fake_access import serving
from teamlore.auth.v1 import auth_pb2
from teamlore_client._device_flow import SignInFailed, Waiting, sign_in
from teamlore_client._errors import ServerUnreachable
from terminal import TEAMLORE, terminal

PENDING = (400, {"error": "authorization_pending"})
SLOW = (400, {"error": "slow_down"})
DONE = (200, {"id_token": "eyIDTOKEN", "access_token": "a"})


class Issuer:
    def __init__(self) -> None:
        self.url = ""
        self.polls: list[Any] = [DONE]
        self.forms: list[dict[str, list[str]]] = []
        self.described: dict[str, Any] = {}
        self.started: dict[str, Any] = {
            "device_code": "dc",
            "user_code": "ABCD-EFGH",
            "verification_uri": "https://sign.in/device",
            "expires_in": 60,
            "interval": 2,
        }

    def answer(self, path: str, form: dict[str, list[str]]) -> tuple[int, Any]:
        if path.endswith("openid-configuration"):
            told = {
                "issuer": self.url,
                "device_authorization_endpoint": f"{self.url}/device",
                "token_endpoint": f"{self.url}/token",
            }
            return 200, told | self.described
        self.forms.append(form)
        if path == "/device":
            return 200, self.started
        return self.polls.pop(0) if len(self.polls) > 1 else self.polls[0]


@contextmanager
def issuing() -> Iterator[Issuer]:
    issuer = Issuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            status, body = issuer.answer(self.path, parse_qs(self.rfile.read(length).decode()))
            self.send_response(status)
            if status == 302:
                self.send_header("location", str(body))
            self.end_headers()
            self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    issuer.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as served:
        yield served


def flow(issuer: Issuer) -> tuple[str, list[Waiting], list[float]]:
    shown: list[Waiting] = []
    slept: list[float] = []
    token = sign_in(
        issuer.url, "cli", ["email"], shown.append, sleep=slept.append, clock=lambda: float(sum(slept))
    )
    return token, shown, slept


def test_it_waits_as_it_is_told_and_returns_the_id_token(issuer: Issuer) -> None:
    issuer.polls = [PENDING, SLOW, PENDING, (503, {}), DONE]
    token, shown, slept = flow(issuer)
    assert token == "eyIDTOKEN"
    assert shown == [Waiting("https://sign.in/device", "ABCD-EFGH", "")]
    assert slept == [2, 2, 7, 7, 14]
    assert issuer.forms[0] == {"client_id": ["cli"], "scope": ["openid email"]}
    assert issuer.forms[1]["device_code"] == ["dc"]
    assert issuer.forms[1]["grant_type"] == ["urn:ietf:params:oauth:grant-type:device_code"]


def _say(poll: Any) -> Callable[[Issuer], None]:
    return lambda issuer: setattr(issuer, "polls", [poll])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_say((400, {"error": "access_denied"})), "denied"),
        (_say((400, {"error": "expired_token"})), "in time"),
        (_say(PENDING), "in time"),
        (_say((400, {"error": "invalid_client", "error_description": "who?"})), "who?"),
        (_say((200, {"access_token": "a"})), "id_token"),
        (_say((200, b"<html>")), "not JSON"),
        (lambda i: i.described.update(issuer="https://else"), "another issuer"),
        (lambda i: i.described.update(token_endpoint="http://example.com/token"), "not https"),
        (lambda i: i.described.update(device_authorization_endpoint="file:///etc/passwd"), "not https"),
        (lambda i: i.started.pop("device_code"), "does not start"),
        (lambda i: i.started.pop("user_code"), "user_code"),
    ],
)
def test_what_cannot_be_signed_in_says_why(
    issuer: Issuer, change: Callable[[Issuer], Any], says: str
) -> None:
    change(issuer)
    with pytest.raises(SignInFailed, match=says):
        flow(issuer)


def test_a_redirect_is_not_followed(issuer: Issuer) -> None:
    issuer.polls = [(302, f"{issuer.url}/elsewhere"), DONE]
    with pytest.raises(SignInFailed, match="HTTP 302"):
        flow(issuer)


def test_an_issuer_in_clear_or_away_is_told_apart(issuer: Issuer) -> None:
    issuer.url = "http://example.com"
    with pytest.raises(SignInFailed, match="not https"):
        flow(issuer)
    issuer.url = "http://127.0.0.1:1"
    with pytest.raises(ServerUnreachable):
        flow(issuer)


def test_login_with_an_issuer_shows_url_and_code_and_holds_the_session(home: Any, issuer: Issuer) -> None:
    issuer.started["interval"] = 0.1
    issuer.polls = [PENDING, DONE]
    with serving() as fake, terminal(home, TEAMLORE_SERVER=fake.server) as at:
        fake.sign_in = auth_pb2.GetSignInResponse(issuer=issuer.url, client_id="cli", scopes=["email"])
        code, said = at.run(f"{TEAMLORE} login")
        assert (code, "https://sign.in/device" in said, "ABCD-EFGH" in said) == (0, True, True), said
        assert "eyIDTOKEN" not in said
        assert fake.asked("StartSession")[0].id_token == "eyIDTOKEN"
        assert at.run(f"{TEAMLORE} session")[0] == 0
