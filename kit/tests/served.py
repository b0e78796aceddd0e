"""A service that answers by the interceptor, and callers of it: what the tests of the steps of a call share."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from teamlore.auth.v1 import access_pb2_grpc, auth_pb2, auth_pb2_grpc
from teamlore.compliance.v1 import compliance_pb2_grpc
from teamlore.feed.v1 import feed_pb2, feed_pb2_grpc
from teamlore.sync.v1 import sync_pb2, sync_pb2_grpc

from kit import audit
from kit.access import Caller, Grant
from kit.access_state import AccessState
from kit.database import Database
from kit.decisions import Decisions
from kit.errors import Refusal
from kit.foundation import Drain

QUERIES = Path(__file__).resolve().parents[2] / "services" / "feed" / "queries.sql"
BANK, FEED, AUTH = "project:serve-1", "teamlore.feed.v1.FeedService", "teamlore.auth.v1.AuthService"
PARTICIPANT = "teamlore.compliance.v1.ErasureParticipantService"
CANARY = "canary-word-of-an-exception"
SYNC, ACCESS = "teamlore.sync.v1.SyncService", "teamlore.auth.v1.AccessService"
HEAD, WATCH, EXCHANGE = f"{FEED}.GetHead", f"{FEED}.WatchChanges", f"{AUTH}.ExchangeToken"


class Feed(feed_pb2_grpc.FeedServiceServicer):
    """Answers at once; a stream sends one bookmark and stays open, or floods its reader."""

    flooded = 0

    async def GetHead(self, request: Any, context: Any) -> feed_pb2.GetHeadResponse:
        if request.bank.endswith("-gone"):
            raise Refusal("ACCESS_REVOKED", "your access was taken away")
        if request.bank.endswith("-nowhere"):
            raise Refusal("NOT_FOUND", "there is no such object")
        if request.bank.endswith("-defect"):
            raise KeyError(CANARY)
        return feed_pb2.GetHeadResponse()

    async def WatchChanges(self, request: Any, context: Any) -> AsyncIterator[feed_pb2.WatchChangesResponse]:
        yield feed_pb2.WatchChangesResponse(bookmark=feed_pb2.Bookmark())
        while request.bank.endswith("-flood"):
            Feed.flooded += 1
            yield feed_pb2.WatchChangesResponse(bookmark=feed_pb2.Bookmark(cursor="x" * 1_000_000))
        if request.bank.endswith("-ends"):
            return
        if request.bank.endswith("-revoked"):
            raise Refusal("CREDENTIAL_REVOKED", "the token was revoked")
        if request.bank.endswith("-defect"):
            raise KeyError(CANARY)
        await asyncio.sleep(60)


class Push(sync_pb2_grpc.SyncServiceServicer):
    """Answers each batch; notes the audit's call, does `then`, and waits while the gate is closed."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.then: Callable[[], Any] = lambda: None

    async def PushStream(self, requests: Any, context: Any) -> AsyncIterator[sync_pb2.PushStreamResponse]:
        async for request in requests:
            call = audit.current()
            self.calls.append(call.call_id if call else None)
            await self.gate.wait()
            self.then()
            yield sync_pb2.PushStreamResponse(sequence=request.sequence)


class Auth(auth_pb2_grpc.AuthServiceServicer):
    """Knows one token."""

    async def GetJwks(self, request: Any, context: Any) -> auth_pb2.GetJwksResponse:
        return auth_pb2.GetJwksResponse()

    async def ExchangeToken(self, request: Any, context: Any) -> auth_pb2.ExchangeTokenResponse:
        if request.token != "tlk_known":
            raise Refusal("CREDENTIAL_INVALID", "the token is not one of this deployment")
        return auth_pb2.ExchangeTokenResponse()


class Callers:
    """Takes the credential itself for a name."""

    def __init__(self, database: Database) -> None:
        self.access = AccessState(database)
        self.revoked: set[str] = set()

    async def renew(self, known: Caller) -> Caller:
        if known.principal in self.revoked:
            raise Refusal("CREDENTIAL_REVOKED", "the token was revoked")
        return known

    async def authenticate(self, metadata: Sequence[tuple[str, str]]) -> Caller:
        name = dict(metadata).get("authorization", "").removeprefix("Bearer ")
        if not name:
            raise Refusal("CREDENTIAL_MISSING", "send a token")
        grants = (Grant("project:serve-*", frozenset(("read", "write"))),)
        return Caller(f"user:{name}", "agent", f"t-{name}", grants, internal=name == "internal")


class Served:
    def __init__(
        self,
        url: str,
        address: str,
        channel: grpc.aio.Channel,
        counted: Decisions,
        callers: Callers,
        push: Push,
        drain: Drain,
    ) -> None:
        self.url, self.address, self.decisions = url, address, counted
        self.callers, self.push, self.drain = callers, push, drain
        self.channel = channel
        self.feed, self.auth = feed_pb2_grpc.FeedServiceStub(channel), auth_pb2_grpc.AuthServiceStub(channel)
        self.participant = compliance_pb2_grpc.ErasureParticipantServiceStub(channel)
        self.sync, self.access = sync_pb2_grpc.SyncServiceStub(channel), access_pb2_grpc.AccessServiceStub(channel)

    async def head(self, name: str = "alice", bank: str = BANK) -> None:
        metadata = (("authorization", f"Bearer {name}"),) if name else ()
        await self.feed.GetHead(feed_pb2.GetHeadRequest(bank=bank), metadata=metadata, timeout=10)

    def watch(self, name: str = "alice", bank: str = BANK) -> Any:
        request = feed_pb2.WatchChangesRequest(bank=bank)
        return self.feed.WatchChanges(request, metadata=(("authorization", f"Bearer {name}"),), timeout=30)

    async def counted(self, name: str) -> set[tuple[str, str, str, str, str, int]]:
        """Method, principal, token, reason, bank and count of all rows so named."""
        connection = await asyncpg.connect(self.url)
        try:
            rows = await connection.fetch(
                "select d.*, coalesce(p.principal, '') as principal from compliance.decisions d"
                " left join compliance.principals p using (principal_ref) where name = $1",
                name,
            )
        finally:
            await connection.close()
        assert {row["service"] for row in rows} <= {"feed"}
        return {
            (
                r["method"].rpartition(".")[2],
                r["principal"],
                r["token_id"],
                r["reason"],
                r["bank"],
                r["count"],
            )
            for r in rows
        }


async def refused(call: Any) -> tuple[str, float]:
    """The reason, and the seconds that RetryInfo says (0: none)."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return told(caught.value)


def told(error: grpc.aio.AioRpcError) -> tuple[str, float]:
    """What `refused` gives, of a refusal."""
    raw = dict(error.trailing_metadata() or ())["grpc-status-details-bin"]
    reason, seconds = "", 0.0
    for detail in status_pb2.Status.FromString(raw).details:  # type: ignore[arg-type]
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            reason = info.reason
        if detail.Unpack(retry):
            seconds = retry.retry_delay.ToMilliseconds() / 1000
    return reason, seconds
