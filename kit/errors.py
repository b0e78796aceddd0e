"""The one table of refusals: reason → gRPC code, HTTP status. Handlers raise `Refusal` and never build a status."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import asyncpg
import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from teamlore.common.v1 import errors_pb2

DOMAIN = "teamlore.dev"
# What a driver raises when its server is away or dies in the middle of a call, a prepare included. Background loops
# that must outlive a restart of Postgres suppress exactly these.
LOST = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
_C = grpc.StatusCode


@dataclass(frozen=True)
class Rule:
    """How one reason is answered: gRPC code and HTTP status. A status gRPC would not give travels in a trailer."""

    code: grpc.StatusCode
    http: int
    retry_after: float | None = None
    """Seconds after which the same call may work, where whoever refuses knows no better."""


TABLE: Mapping[str, Rule] = {
    "FIELD_INVALID": Rule(_C.INVALID_ARGUMENT, 400),
    "INVALID_SCOPE": Rule(_C.INVALID_ARGUMENT, 400),
    "CREDENTIAL_MISSING": Rule(_C.UNAUTHENTICATED, 401),
    "CREDENTIAL_INVALID": Rule(_C.UNAUTHENTICATED, 401),
    "CREDENTIAL_EXPIRED": Rule(_C.UNAUTHENTICATED, 401),
    "CREDENTIAL_REVOKED": Rule(_C.UNAUTHENTICATED, 401),
    "PERMISSION_DENIED": Rule(_C.PERMISSION_DENIED, 403),
    "RATE_LIMITED": Rule(_C.RESOURCE_EXHAUSTED, 429, 1.0),
    "NOT_FOUND": Rule(_C.NOT_FOUND, 404),
    "CURSOR_INVALID": Rule(_C.INVALID_ARGUMENT, 400),
    "CURSOR_BEFORE_HORIZON": Rule(_C.OUT_OF_RANGE, 400),
    "CURSOR_DIVERGED": Rule(_C.FAILED_PRECONDITION, 410),
    "SLOW_CONSUMER": Rule(_C.RESOURCE_EXHAUSTED, 429, 1.0),
    "BANK_HELD": Rule(_C.FAILED_PRECONDITION, 423),
    "KEYSTORE_UNAVAILABLE": Rule(_C.UNAVAILABLE, 503, 1.0),
    "KEY_MISSING": Rule(_C.DATA_LOSS, 500),
    "ACCESS_STATE_STALE": Rule(_C.UNAVAILABLE, 503, 0.5),
    "DEPENDENCY_UNAVAILABLE": Rule(_C.UNAVAILABLE, 503, 0.5),
    "DEADLINE_EXCEEDED": Rule(_C.DEADLINE_EXCEEDED, 504),
    "MODEL_MISMATCH": Rule(_C.FAILED_PRECONDITION, 409),
    "NOT_SUPPORTED": Rule(_C.UNIMPLEMENTED, 501),
    "DRAINING": Rule(_C.UNAVAILABLE, 503, 0.2),
    "ACCESS_REVOKED": Rule(_C.PERMISSION_DENIED, 403),
    "PERSON_REQUIRED": Rule(_C.PERMISSION_DENIED, 403),
    "QUOTA_EXCEEDED": Rule(_C.RESOURCE_EXHAUSTED, 429, 3600.0),
    "BANK_ARCHIVED": Rule(_C.FAILED_PRECONDITION, 409),
    "HUMAN_TRUST_REQUIRES_PERSON": Rule(_C.PERMISSION_DENIED, 403),
    "VERSION_CONFLICT": Rule(_C.ABORTED, 409),
    "ACCESS_MANAGED": Rule(_C.FAILED_PRECONDITION, 409),
    "INTERNAL": Rule(_C.INTERNAL, 500),
}

# What Envoy makes of a gRPC code by itself; where the table says another number, the trailer carries it.
_ENVOY_HTTP = {
    _C.INVALID_ARGUMENT: 400,
    _C.OUT_OF_RANGE: 400,
    _C.FAILED_PRECONDITION: 400,
    _C.UNAUTHENTICATED: 401,
    _C.PERMISSION_DENIED: 403,
    _C.NOT_FOUND: 404,
    _C.RESOURCE_EXHAUSTED: 429,
    _C.UNIMPLEMENTED: 501,
    _C.UNAVAILABLE: 503,
    _C.DEADLINE_EXCEEDED: 504,
    _C.ABORTED: 409,
    _C.INTERNAL: 500,
    _C.DATA_LOSS: 500,
}


@dataclass(frozen=True)
class Violation:
    """One field that breaks its rule: its path in the request (empty when the bytes do not decode) and the rule."""

    field: str
    description: str


class Refusal(Exception):
    """The call is refused for one reason of the table. `message` and `metadata` reach the caller: no text of theirs."""

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[Violation] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.rule = TABLE[reason]
        self.message = message
        self.metadata = dict(metadata or {})
        self.violations = tuple(violations)
        self.retry_after = self.rule.retry_after if retry_after is None else retry_after


def field_invalid(field: str, description: str) -> Refusal:
    """The refusal for one bad field."""
    return Refusal(
        "FIELD_INVALID", f"{field or 'request'}: {description}", violations=[Violation(field, description)]
    )


def trailers(refusal: Refusal) -> tuple[tuple[str, str | bytes], ...]:
    """The trailing metadata of a refusal: the status with its details, and the HTTP number where gRPC's differs."""
    details: list[any_pb2.Any] = []

    def add(message: object) -> None:
        packed = any_pb2.Any()
        packed.Pack(message)  # type: ignore[arg-type]  # the stubs of error_details know no common base
        details.append(packed)

    add(error_details_pb2.ErrorInfo(domain=DOMAIN, reason=refusal.reason, metadata=refusal.metadata))
    if refusal.violations:
        add(
            error_details_pb2.BadRequest(
                field_violations=[
                    error_details_pb2.BadRequest.FieldViolation(field=v.field, description=v.description)
                    for v in refusal.violations
                ]
            )
        )
    if refusal.retry_after is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(max(1, int(refusal.retry_after * 1000)))
        add(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=refusal.rule.code.value[0], message=refusal.message, details=details)
    result: list[tuple[str, str | bytes]] = [("grpc-status-details-bin", status.SerializeToString())]
    if _ENVOY_HTTP.get(refusal.rule.code) != refusal.rule.http:
        result.append(("x-http-status", str(refusal.rule.http)))
    return tuple(result)


def from_driver(error: BaseException) -> Refusal | None:
    """Turns what a database, a socket or a neighbour raised into a refusal; None for a defect of ours."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        if state == "TL001":
            return Refusal("BANK_HELD", "the bank is under a legal hold; nothing was forgotten or erased")
        if state == "23514" and getattr(error, "constraint_name", None) in (
            "scope_of_layer",
            "banks_layer_check",
            "ids_of_layer",
        ):
            return Refusal(
                "INVALID_SCOPE",
                "the bank id names no layer: use project:, space:, client:, private:, system:",
            )
        if state[:2] in ("08", "53", "57", "40") or state in ("55P03", "25006", "25P03"):
            return Refusal(
                "DEPENDENCY_UNAVAILABLE", "the database cannot serve the call now", retry_after=0.5
            )
        return None
    if isinstance(error, asyncpg.InterfaceError | asyncpg.InternalClientError | OSError | TimeoutError):
        return Refusal("DEPENDENCY_UNAVAILABLE", "the database cannot be reached now", retry_after=0.5)
    if isinstance(error, grpc.aio.AioRpcError):
        return Refusal(
            "DEPENDENCY_UNAVAILABLE", "a neighbouring service cannot serve the call now", retry_after=0.5
        )
    return None


def reasons() -> list[str]:
    """Every reason of the proto enum without its prefix."""
    prefix = "ERROR_REASON_"
    return [
        name.removeprefix(prefix) for name in errors_pb2.ErrorReason.keys() if name != prefix + "UNSPECIFIED"
    ]
