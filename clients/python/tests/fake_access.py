"""auth's two services in memory, on a real port: as much of their rules as the command line meets."""

import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from teamlore.auth.v1 import access_pb2, access_pb2_grpc, auth_pb2, auth_pb2_grpc


@dataclass
class Held:
    """One credential."""

    principal: str
    kind: str = "agent"
    session: bool = False
    token_id: str = field(default_factory=lambda: secrets.token_hex(8))
    revoked: bool = False


class FakeAccess:
    """Answers WhoAmI, StartSession, CreatePersonalKey and RevokeToken by rule, all other calls as a test says."""

    def __init__(self) -> None:
        self.tokens: dict[str, Held] = {}
        self.calls: list[tuple[str, Any]] = []
        self.credentials: list[str] = []
        self.answers: dict[str, Callable[[Any], Any]] = {}
        self.sign_in = auth_pb2.GetSignInResponse()
        self.session_seconds = 900.0
        self.person_of_id_token: Callable[[str], str] = lambda _: "user:alice"
        self.server = ""

    def add(self, secret: str, principal: str, kind: str = "agent", session: bool = False) -> str:
        self.tokens[secret] = Held(principal, kind, session)
        return secret

    def asked(self, name: str) -> list[Any]:
        return [request for called, request in self.calls if called == name]

    def answer(self, name: str, request: Any, context: Any) -> Any:
        self.calls.append((name, request))
        if name in self.answers:
            answered = self.answers[name](request)
            if isinstance(answered, error_details_pb2.ErrorInfo):
                refuse(context, answered.reason, answered.metadata)
            if isinstance(answered, grpc.StatusCode):
                context.abort(answered, "as told")
            return answered
        return getattr(self, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())(request, context)

    def caller(self, context: Any) -> Held:
        sent = str(dict(context.invocation_metadata()).get("authorization", "")).removeprefix("Bearer ")
        self.credentials.append(sent)
        found = self.tokens.get(sent)
        if found is None or found.revoked:
            refuse(context, "CREDENTIAL_REVOKED" if found else "CREDENTIAL_INVALID", {})
        assert found is not None
        return found

    def who_am_i(self, request: Any, context: Any) -> auth_pb2.WhoAmIResponse:
        held = self.caller(context)
        return auth_pb2.WhoAmIResponse(
            principal=held.principal,
            kind=held.kind,
            token_id=held.token_id,
            permissions=["read", "write"] if request.bank else [],
            groups=["team:api"],
            person_present=held.session,
        )

    def get_sign_in(self, request: Any, context: Any) -> auth_pb2.GetSignInResponse:
        return self.sign_in

    def start_session(self, request: Any, context: Any) -> auth_pb2.StartSessionResponse:
        if request.person_token:
            held = self.tokens.get(request.person_token)
            if held is None or held.kind != "person" or held.revoked:
                refuse(context, "CREDENTIAL_INVALID", {})
            assert held is not None
            principal = held.principal
        else:
            principal = self.person_of_id_token(request.id_token)
        secret = self.add(f"tlk_session{secrets.token_hex(16)}", principal, "person", session=True)
        answer = auth_pb2.StartSessionResponse(
            session_token=secret, token_id=self.tokens[secret].token_id, principal=principal
        )
        answer.expires_at.FromNanoseconds(int((time.time() + self.session_seconds) * 1e9))
        return answer

    def create_personal_key(self, request: Any, context: Any) -> access_pb2.CreatePersonalKeyResponse:
        held = self.caller(context)
        if not held.session:
            refuse(context, "PERSON_REQUIRED", {})
        secret = self.add(f"tlk_key{secrets.token_hex(16)}", held.principal)
        answer = access_pb2.CreatePersonalKeyResponse(token=secret, token_id=self.tokens[secret].token_id)
        answer.expires_at.FromSeconds(int(time.time()) + 90 * 86_400)
        return answer

    def revoke_token(self, request: Any, context: Any) -> access_pb2.RevokeTokenResponse:
        self.caller(context)
        found = next((each for each in self.tokens.values() if each.token_id == request.token_id), None)
        changed = found is not None and not found.revoked
        if found is not None:
            found.revoked = True
        return access_pb2.RevokeTokenResponse(revoked=changed)

    def sessions(self) -> list[str]:
        return [secret for secret, held in self.tokens.items() if held.session]


def refuse(context: Any, reason: str, metadata: Any, field_name: str = "") -> None:
    status = status_pb2.Status(code=grpc.StatusCode.PERMISSION_DENIED.value[0], message="as told")
    details: list[Any] = [
        error_details_pb2.ErrorInfo(domain="teamlore.dev", reason=reason, metadata=metadata)
    ]
    if named := metadata.get("field", field_name):
        violation = error_details_pb2.BadRequest.FieldViolation(field=named, description="bad")
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(grpc.StatusCode.PERMISSION_DENIED, "as told")


def _servicer(base: type, fake: FakeAccess) -> Any:
    def method(name: str) -> Any:
        return lambda self, request, context: fake.answer(name, request, context)

    names = [name for name in vars(base) if not name.startswith("_")]
    return type(base.__name__, (base,), {name: method(name) for name in names})()


@contextmanager
def serving(*more: Callable[[grpc.Server], None]) -> Iterator[FakeAccess]:
    fake = FakeAccess()
    server = grpc.server(ThreadPoolExecutor(4))
    auth_pb2_grpc.add_AuthServiceServicer_to_server(
        _servicer(auth_pb2_grpc.AuthServiceServicer, fake), server
    )
    access_pb2_grpc.add_AccessServiceServicer_to_server(
        _servicer(access_pb2_grpc.AccessServiceServicer, fake), server
    )
    for add in more:
        add(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    fake.server = f"http://127.0.0.1:{port}"
    try:
        yield fake
    finally:
        stopped: threading.Event = server.stop(None)
        stopped.wait(5)
