"""What every call goes through: limits before access and validation, decisions counted, spans without text."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import grpc
import protovalidate
import pytest
from google.rpc import error_details_pb2, status_pb2
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from teamlore.auth.v1 import access_pb2, access_pb2_grpc, auth_pb2, auth_pb2_grpc
from teamlore.compliance.v1 import compliance_pb2, compliance_pb2_grpc
from teamlore.feed.v1 import feed_pb2, feed_pb2_grpc
from teamlore.sync.v1 import sync_pb2, sync_pb2_grpc

from kit import audit, decisions, dialing, serving, telemetry
from kit.access import BankFacts, Caller, Grant
from kit.access_state import AccessState
from kit.database import Database
from kit.decisions import Decisions
from kit.errors import Refusal
from kit.foundation import Drain, Foundation, Settings
from kit.limits import Limits
from kit.serving import OPTIONS, Built, Interceptor, _serve

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


@pytest.fixture
async def served(database_url: str) -> AsyncIterator[Served]:
    database = await Database.connect(database_url, "feed", QUERIES)
    callers, push, drain = Callers(database), Push(), Drain()
    services = {
        FEED: (feed_pb2_grpc.add_FeedServiceServicer_to_server, Feed()),
        AUTH: (auth_pb2_grpc.add_AuthServiceServicer_to_server, Auth()),
        SYNC: (sync_pb2_grpc.add_SyncServiceServicer_to_server, push),
        PARTICIPANT: (
            compliance_pb2_grpc.add_ErasureParticipantServiceServicer_to_server,
            compliance_pb2_grpc.ErasureParticipantServiceServicer(),
        ),
        ACCESS: (access_pb2_grpc.add_AccessServiceServicer_to_server, access_pb2_grpc.AccessServiceServicer()),
    }
    counted = Decisions(database, "feed")
    built = Built(
        callers,  # type: ignore[arg-type]  # callers are the test's
        services,
        counted_as={f"{SYNC}.PushStream": f"{SYNC}.Push"},
        judges_credentials=frozenset((f"{AUTH}.ExchangeToken",)),
    )
    limits = Limits(100, 4, 2, {HEAD: 5, f"{SYNC}.Push": 20})
    server = grpc.aio.server(interceptors=[Interceptor(built, drain, limits, counted)], options=OPTIONS)
    for add, handlers in services.values():
        add(handlers, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Served(database_url, f"127.0.0.1:{port}", channel, counted, callers, push, drain)
    await server.stop(0)
    await counted.stop()
    await database.close()


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


async def test_calls_are_limited_before_access_is_decided_and_before_validation(served: Served) -> None:
    for _ in range(5):
        await served.head()
    reason, seconds = await refused(served.head())
    assert reason == "RATE_LIMITED" and 0 < seconds <= 12
    assert (await refused(served.head(bank="project:other")))[0] == "RATE_LIMITED"
    too_long = feed_pb2.WatchChangesRequest(bank=BANK, cursor="x" * 5000)
    metadata = (("authorization", "Bearer alice"),)
    assert (await refused(served.feed.WatchChanges(too_long, metadata=metadata).read()))[0] == "FIELD_INVALID"
    await served.head("bob")


async def test_denied_calls_count_against_who_makes_them(served: Served) -> None:
    for _ in range(5):
        assert (await refused(served.head("eve", "project:other")))[0] == "PERMISSION_DENIED"
    assert (await refused(served.head("eve", "project:other")))[0] == "RATE_LIMITED"
    assert (await refused(served.head("eve")))[0] == "RATE_LIMITED"
    await served.head("bob")


async def test_a_limited_caller_is_not_told_what_is_wrong_with_its_request(served: Served) -> None:
    request = feed_pb2.RegisterDeviceRequest(bank=BANK, device_id="!")
    metadata = (("authorization", "Bearer alice"),)
    reasons = ["FIELD_INVALID"]
    while reasons[-1] == "FIELD_INVALID" and len(reasons) < 1000:
        reasons.append((await refused(served.feed.RegisterDevice(request, metadata=metadata)))[0])
    assert reasons[-1] == "RATE_LIMITED" and len(reasons) > 100


async def test_a_refused_caller_makes_nobody_look_through_what_it_sent(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, covered = list[int](), list[str]()
    collect, covers = protovalidate.collect_violations, Caller.covers

    def counting(message: Any, **more: Any) -> Any:
        looked.append(message.ByteSize())
        return collect(message, **more)

    def covering(self: Caller, pattern: str, *more: Any) -> bool:
        covered.append(pattern)
        return covers(self, pattern, *more)

    monkeypatch.setattr(protovalidate, "collect_violations", counting)
    monkeypatch.setattr(Caller, "covers", covering)
    metadata = (("authorization", "Bearer eve"),)
    ids = sync_pb2.ForgetRequest(bank="project:other", memory_ids=["a"] * 20_000)
    assert (await refused(served.sync.Forget(ids, metadata=metadata)))[0] == "PERMISSION_DENIED"
    assert looked == [sync_pb2.ForgetRequest(bank="project:other").ByteSize()]
    ids.bank = "b" * 20_000
    assert (await refused(served.sync.Forget(ids, metadata=metadata)))[0] == "FIELD_INVALID"
    grant = access_pb2.Grant(pattern="*", permissions=["read"] * 20_000)
    token = access_pb2.CreateTokenRequest(principal="user:eve", kind="agent", grants=[grant])
    assert (await refused(served.access.CreateToken(token, metadata=metadata)))[0] == "PERMISSION_DENIED"
    assert covered == ["*"] and max(looked) < 100
    token = access_pb2.CreateTokenRequest(grants=[access_pb2.Grant(pattern="*")] * 20_000)
    assert (await refused(served.access.CreateToken(token, metadata=metadata)))[0] == "FIELD_INVALID"
    assert covered == ["*"] and max(looked) < 100
    token = access_pb2.CreateTokenRequest(grants=[access_pb2.Grant(pattern="no pattern")])
    assert (await refused(served.access.CreateToken(token, metadata=metadata)))[0] == "FIELD_INVALID"


async def test_other_services_are_not_limited(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async def facts(self: AccessState, caller: Caller, bank: str) -> BankFacts | None:
        return None

    monkeypatch.setattr(AccessState, "facts", facts)
    for _ in range(8):
        await served.head("internal")
    held = [served.watch("internal") for _ in range(4)]
    for call in held:
        await call.read()


async def test_calls_without_a_credential_share_a_budget_by_address(served: Served) -> None:
    for _ in range(4):
        await served.auth.GetJwks(auth_pb2.GetJwksRequest())
    reason, seconds = await refused(served.auth.GetJwks(auth_pb2.GetJwksRequest()))
    assert reason == "RATE_LIMITED" and 0 < seconds <= 15


async def test_what_others_send_uses_up_no_good_credential_s_budget(served: Served) -> None:
    def exchange(token: str) -> Any:
        return served.auth.ExchangeToken(auth_pb2.ExchangeTokenRequest(token=token))

    answers = [(await refused(exchange(f"tlk_guess{number}")))[0] for number in range(20)]
    assert answers == ["CREDENTIAL_INVALID"] * 4 + ["RATE_LIMITED"] * 16
    for _ in range(100):
        await exchange("tlk_known")
    assert (await refused(exchange("tlk_known")))[0] == "RATE_LIMITED", "one token has a budget too"
    await served.decisions.stop()
    assert await served.counted("access.denied") == {("ExchangeToken", "", "", "CREDENTIAL_INVALID", "", 20)}


async def test_one_credential_has_one_budget_however_its_bytes_are_written(served: Served) -> None:
    call = served.channel.unary_unary(f"/{AUTH}/ExchangeToken")
    known = auth_pb2.ExchangeTokenRequest(token="tlk_known").SerializeToString()
    other = auth_pb2.ExchangeTokenRequest(token="tlk_other").SerializeToString()
    for number in range(50):
        await call(known + b"\xfa\x3f\x04" + number.to_bytes(4, "big"))  # a field that no message has
        await call(other + known)  # of one field written twice the last counts
    assert (await refused(call(known + b"\xfa\x3f\x01x")))[0] == "RATE_LIMITED"


async def test_calls_with_bad_credentials_count_against_their_address(served: Served) -> None:
    answers = [(await refused(served.head("")))[0] for _ in range(6)]
    assert answers == ["CREDENTIAL_MISSING"] * 4 + ["RATE_LIMITED"] * 2
    await served.head()


async def test_streams_are_counted_apart_and_until_they_end(served: Served) -> None:
    first, second = served.watch(), served.watch()
    for call in (first, second):
        await call.read()
    reason, seconds = await refused(served.watch().read())
    assert reason == "RATE_LIMITED" and seconds > 0
    await served.head()
    other = served.watch("bob")
    await other.read()
    first.cancel()
    for _ in range(100):
        third = served.watch()
        try:
            await third.read()
            break
        except grpc.aio.AioRpcError:
            await asyncio.sleep(0.02)
    else:
        raise AssertionError("the ended stream still counts")


async def test_a_reader_that_does_not_read_is_cut_and_never_buffered_for(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "SLOW_SECONDS", 1.0)
    monkeypatch.setattr(Feed, "flooded", 0)
    stream, quick = served.watch(bank="project:serve-flood"), served.watch("bob")
    await stream.read()
    await quick.read()
    for number in range(50):
        await asyncio.sleep(0.05)
        await served.head(f"caller-{number}")
    # Messages of a megabyte: what the two ends' windows and buffers hold, and then it stood still.
    assert 0 < Feed.flooded <= 16
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        while True:
            await stream.read()
    assert told(caught.value)[0] == "SLOW_CONSUMER"
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    quick.cancel()


async def test_a_denial_is_written_before_it_is_answered(served: Served) -> None:
    for _ in range(2):
        assert (await refused(served.head("eve", "project:other")))[0] == "PERMISSION_DENIED"
    assert await served.counted("access.denied") == {
        ("GetHead", "user:eve", "t-eve", "PERMISSION_DENIED", "project:other", 2)
    }
    await refused(served.head(""))
    await refused(served.auth.ExchangeToken(auth_pb2.ExchangeTokenRequest(token="tlk_guess")))
    await refused(served.head("eve", "project:serve-gone"))
    stream = served.watch("eve", "project:serve-revoked")
    await stream.read()
    await refused(stream.read())
    assert await served.counted("access.denied") == {
        ("GetHead", "user:eve", "t-eve", "PERMISSION_DENIED", "project:other", 2),
        ("GetHead", "", "", "CREDENTIAL_MISSING", "", 1),
        ("ExchangeToken", "", "", "CREDENTIAL_INVALID", "", 1),
        ("GetHead", "user:eve", "t-eve", "ACCESS_REVOKED", "project:serve-gone", 1),
        ("WatchChanges", "user:eve", "t-eve", "CREDENTIAL_REVOKED", "project:serve-revoked", 1),
    }
    # What a handler does not find is no decision; a malformed bank is told to those who may something.
    await refused(served.head("eve", "project:serve-nowhere"))
    await refused(served.head("eve", "no bank at all"))
    assert len(await served.counted("access.denied")) == 5


async def test_a_private_bank_and_a_principal_stand_as_numbers(served: Served) -> None:
    await refused(served.head("eve", "private:user:bob"))
    await refused(served.head("eve", "private:bob"))
    connection = await asyncpg.connect(served.url)
    try:
        rows = await connection.fetch("select * from compliance.decisions")
        bob = await connection.fetchval("select compliance.ref_of('user:bob')")
    finally:
        await connection.close()
    assert {row["bank"] for row in rows} == {f"private:{bob}", "private:"}
    assert not any(name in str([dict(row) for row in rows]).replace("t-eve", "") for name in ("bob", "eve"))


async def test_what_is_granted_is_counted_and_written_at_the_end(served: Served) -> None:
    for _ in range(3):
        await served.head()
    await served.head("bob")
    await served.auth.ExchangeToken(auth_pb2.ExchangeTokenRequest(token="tlk_known"))
    assert await served.counted("access.granted") == set()
    await served.decisions.stop()
    assert await served.counted("access.granted") == {
        ("GetHead", "user:alice", "t-alice", "", "", 3),
        ("GetHead", "user:bob", "t-bob", "", "", 1),
    }


async def test_what_is_granted_is_written_every_few_seconds(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "FLUSH_SECONDS", 0.05)
    database = await Database.connect(database_url, "feed", QUERIES)
    counted = Decisions(database, "feed")
    counted.granted(HEAD, Caller("user:alice", "agent", "t"))
    connection = await asyncpg.connect(database_url)
    for _ in range(200):
        if await connection.fetchval("select sum(count) from compliance.decisions") == 1:
            break
        await asyncio.sleep(0.02)
    else:
        raise AssertionError("nothing was written")
    await connection.close()
    await counted.stop()
    await database.close()


async def test_many_denials_at_once_are_few_statements_and_all_counted(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = 0
    count = Decisions._count

    async def counting(self: Decisions, batch: Any) -> None:
        nonlocal statements
        statements += 1
        await count(self, batch)

    monkeypatch.setattr(Decisions, "_count", counting)
    alice = Caller("user:alice", "agent", "t")
    await asyncio.gather(
        *(served.decisions.denied(HEAD, alice, "PERMISSION_DENIED", f"project:{n % 300}") for n in range(900))
    )
    rows = await served.counted("access.denied")
    assert sum(row[5] for row in rows) == 900 and statements <= 3
    # A caller chooses the banks it is denied, not how many rows that makes.
    assert len(rows) == decisions.BANKS_A_MINUTE + 1 and any(row[4] == "*" for row in rows)


async def test_a_database_that_is_away_holds_up_no_refusal_and_loses_no_count(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = True
    run = Database.execute_raw

    async def execute(self: Database, sql: str, *args: Any) -> Any:
        if away and "count_decisions" in sql:
            raise asyncpg.CannotConnectNowError("starting up")
        return await run(self, sql, *args)

    monkeypatch.setattr(Database, "execute_raw", execute)
    for _ in range(2):
        assert (await refused(served.head("")))[0] == "CREDENTIAL_MISSING"
    assert await served.counted("access.denied") == set()
    away = False
    await refused(served.head(""))
    assert await served.counted("access.denied") == {("GetHead", "", "", "CREDENTIAL_MISSING", "", 3)}


async def test_a_database_that_hangs_holds_up_a_refusal_for_a_moment(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(self: Database, sql: str, *args: Any) -> Any:
        await asyncio.sleep(60)

    monkeypatch.setattr(decisions, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(decisions, "WRITE_SECONDS", 60)
    with monkeypatch.context() as hung:
        hung.setattr(Database, "execute_raw", hang)
        assert (await refused(served.head("")))[0] == "CREDENTIAL_MISSING"


async def test_a_database_that_hangs_does_not_hold_up_the_end(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = await Database.connect(database_url, "feed", QUERIES)
    counted = Decisions(database, "feed")
    counted.granted(HEAD, Caller("user:alice", "agent", "t"))

    async def stubborn(self: Database, sql: str, *args: Any) -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(60)

    monkeypatch.setattr(Database, "execute_raw", stubborn)
    monkeypatch.setattr(decisions, "WRITE_SECONDS", 0.05)
    async with asyncio.timeout(20):
        await counted.stop()
    await database.close()


async def test_a_service_that_ends_closes_in_reverse_and_writes_what_it_granted(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "FLUSH_SECONDS", 600)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = Settings(database_url=database_url, keystore=str(tmp_path / "k.db"), listen=address)
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            ended.append("task")

    async def build(given: Settings, base: Foundation) -> Built:
        assert given is settings and base.access.fresh
        base.at_end(lambda: ended.append("first"))
        base.spawn(waits())

        async def close() -> None:
            assert await base.database.execute_raw("select 1")
            ended.append("last")

        base.at_end(close)
        callers: Any = Callers(base.database)
        callers.access = base.access
        return Built(callers, {FEED: (feed_pb2_grpc.add_FeedServiceServicer_to_server, Feed())})

    serving = asyncio.create_task(_serve("feed", settings, QUERIES, build, 4))
    async with grpc.aio.insecure_channel(address) as channel:
        request = feed_pb2.GetHeadRequest(bank=BANK)
        metadata = (("authorization", "Bearer alice"),)
        stub = feed_pb2_grpc.FeedServiceStub(channel)
        await stub.GetHead(request, metadata=metadata, wait_for_ready=True, timeout=20)
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(20):
        await serving
    assert ended == ["last", "task", "first"]
    connection = await asyncpg.connect(database_url)
    rows = await connection.fetch("select name, method, count from compliance.decisions")
    await connection.close()
    assert [tuple(row) for row in rows] == [("access.granted", HEAD, 1)]


class Spans(SpanExporter):
    def __init__(self) -> None:
        self.held: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.held += spans
        return SpanExportResult.SUCCESS


async def test_calls_and_streams_leave_a_span_with_the_answer_and_no_text(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans, provider, answers = Spans(), TracerProvider(), list[tuple[str, str]]()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(telemetry, "tracer", provider.get_tracer("teamlore"))

    class Calls:
        def add(self, count: int, what: dict[str, str]) -> None:
            answers.extend([(what["method"], what["answer"])] * count)

    monkeypatch.setattr(telemetry, "calls", Calls())
    await served.head()
    await refused(served.head("eve", "project:other-name"))
    ended = served.watch(bank="project:serve-ends")
    assert [answer async for answer in ended]
    await refused(served.watch("eve", "project:other-name").read())
    left = served.watch()
    await left.read()
    left.cancel()
    expected = {
        (HEAD, "OK"), (HEAD, "PERMISSION_DENIED"), (WATCH, "OK"), (WATCH, "PERMISSION_DENIED"), (WATCH, "CANCELLED"),
    }  # fmt: skip
    for _ in range(100):
        if len(spans.held) == 5:
            break
        await asyncio.sleep(0.02)
    assert {(span.name, (span.attributes or {}).get("answer")) for span in spans.held} == expected
    assert set(answers) == expected and len(answers) == 5
    for span in spans.held:
        assert (
            not span.events and span.status.description is None and set(span.attributes or {}) == {"answer"}
        )
        assert "other-name" not in str(span.to_json()) and "lack" not in str(span.to_json())


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    held, provider = Spans(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(held))
    monkeypatch.setattr(telemetry, "tracer", provider.get_tracer("teamlore"))
    return held


async def test_a_defects_words_stay_out_of_its_span_and_its_status_is_the_reason(
    served: Served, spans: Spans
) -> None:
    assert (await refused(served.head(bank="project:serve-defect")))[0] == "INTERNAL"
    broken = served.watch(bank="project:serve-defect")
    await broken.read()
    assert (await refused(broken.read()))[0] == "INTERNAL"
    await refused(served.head(bank="project:serve-gone"))
    for _ in range(100):
        if len(spans.held) == 3:
            break
        await asyncio.sleep(0.02)
    for span in spans.held:
        assert not span.events and CANARY not in str(span.to_json())
    assert [span.status.description for span in spans.held] == ["INTERNAL", "INTERNAL", None]
    assert [span.status.is_ok for span in spans.held] == [False, False, True]


async def test_spans_of_services_join(served: Served, spans: Spans) -> None:
    metadata = (("authorization", "Bearer alice"),)
    async with dialing.dial(served.address) as channel:
        stub = feed_pb2_grpc.FeedServiceStub(channel)
        with telemetry.tracer.start_as_current_span("outer") as outer:
            await stub.GetHead(feed_pb2.GetHeadRequest(bank=BANK), metadata=metadata)
            ends = feed_pb2.WatchChangesRequest(bank="project:serve-ends")
            assert len([answer async for answer in stub.WatchChanges(ends, metadata=metadata)]) == 1
            await stub.GetHead(feed_pb2.GetHeadRequest(bank=BANK), metadata=(*metadata, ("tracestate", f"a={CANARY}")))
        await stub.GetHead(feed_pb2.GetHeadRequest(bank=BANK), metadata=metadata)
    await served.feed.GetHead(
        feed_pb2.GetHeadRequest(bank=BANK), metadata=(*metadata, ("traceparent", "no parent"))
    )
    for _ in range(100):
        if len(spans.held) == 6:
            break
        await asyncio.sleep(0.02)
    above = outer.get_span_context()
    parents = [(span.parent.trace_id, span.parent.span_id) if span.parent else None for span in spans.held]
    assert parents == [(above.trace_id, above.span_id)] * 3 + [None] * 3
    assert not any(CANARY in str(span.to_json()) for span in spans.held)


async def test_too_many_calls_at_once_are_each_told_why(served: Served) -> None:
    async def call() -> str:
        try:
            await served.head("")
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return "OK"

    answers = await asyncio.gather(*(call() for _ in range(4000)))
    assert set(answers) <= {"UNAUTHENTICATED", "RESOURCE_EXHAUSTED"}


async def test_a_call_of_services_alone_says_so(served: Served) -> None:
    request = compliance_pb2.EraseObjectsRequest(bank=BANK)
    call = served.participant.EraseObjects(request, metadata=(("authorization", "Bearer alice"),))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert caught.value.details() == "only another service of this deployment may call this"


def batch(sequence: int, bank: str = "", records: int = 1, text: str = "x") -> sync_pb2.PushStreamRequest:
    records_ = [sync_pb2.Record(id=f"memory-{n}", text=text) for n in range(records)]
    return sync_pb2.PushStreamRequest(bank=bank, sequence=sequence, records=records_)


async def talk(served: Served, *requests: Any, name: str = "alice") -> tuple[list[int], str]:
    """The sequences that were answered, and how the stream ended."""

    async def sent() -> AsyncIterator[Any]:
        for request in requests:
            yield request

    answered: list[int] = []
    call = served.sync.PushStream(sent(), metadata=(("authorization", f"Bearer {name}"),), timeout=10)
    try:
        async for answer in call:
            answered.append(answer.sequence)
    except grpc.aio.AioRpcError as error:
        return answered, told(error)[0]
    return answered, "OK"


async def test_each_message_of_a_stream_is_judged_by_what_the_first_one_named(served: Served) -> None:
    other = "project:serve-2"
    assert await talk(served, batch(1, BANK), batch(2), batch(3, BANK)) == ([1, 2, 3], "OK")
    assert await talk(served, batch(1, BANK), batch(2, other)) == ([1], "FIELD_INVALID")
    assert await talk(served, batch(1, "project:elsewhere"), batch(2, BANK)) == ([], "PERMISSION_DENIED")
    assert await talk(served, batch(1, BANK), batch(2, records=0), batch(3)) == ([1], "FIELD_INVALID")
    assert await talk(served, batch(1, BANK, records=101)) == ([], "FIELD_INVALID")
    assert await talk(served) == ([], "FIELD_INVALID")
    assert await talk(served, batch(1, BANK), name="") == ([], "CREDENTIAL_MISSING")


async def test_a_stream_of_requests_ends_at_the_first_one_after_a_revocation(served: Served) -> None:
    served.push.then = lambda: served.callers.revoked.add("user:alice")
    assert await talk(served, batch(1, BANK), batch(2)) == ([1], "CREDENTIAL_REVOKED")


async def test_each_message_of_a_stream_is_one_call_of_the_budget_and_of_the_audit(served: Served) -> None:
    assert await talk(served, *(batch(n, BANK) for n in range(25)), name="bob") == (
        list(range(20)),
        "RATE_LIMITED",
    )
    assert len(set(served.push.calls)) == 20


async def test_a_drain_ends_a_stream_after_the_answer_to_what_was_stored(served: Served) -> None:
    served.push.then = served.drain.started.set
    assert await talk(served, batch(1, BANK), batch(2)) == ([1], "DRAINING")


async def test_who_sends_nothing_holds_no_stream(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "IDLE_SECONDS", 0.2)
    call = served.sync.PushStream(metadata=(("authorization", "Bearer alice"),), timeout=10)
    await call.write(batch(1, BANK))
    assert (await call.read()).sequence == 1
    assert (await refused(call.read()))[0] == "DEADLINE_EXCEEDED"


async def test_a_stream_is_read_no_faster_than_it_is_served(served: Served) -> None:
    served.push.gate.clear()
    call = served.sync.PushStream(metadata=(("authorization", "Bearer alice"),), timeout=10)
    sent = 0

    async def send() -> None:
        nonlocal sent
        for number in range(60):
            await call.write(batch(number, BANK, records=20, text="y" * 50_000))
            sent += 1

    sending = asyncio.create_task(send())
    await asyncio.sleep(1)
    # A megabyte a message: one with the handler, one in the server's window of 1 MiB, and what sockets hold.
    assert sent <= 4 and len(served.push.calls) == 1
    sending.cancel()
    call.cancel()


async def test_who_has_no_credential_takes_no_stream_of_others(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "STREAM_BUDGET", 3)
    silent = [served.sync.PushStream(timeout=30) for _ in range(6)]
    reasons = sorted([(await refused(asyncio.wait_for(call.read(), 10)))[0] for call in silent])
    assert reasons == ["CREDENTIAL_MISSING"] * 4 + ["RATE_LIMITED"] * 2
    assert await talk(served, batch(1, BANK)) == ([1], "OK")


async def test_who_holds_streams_uses_up_its_own_before_those_of_all(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "STREAM_BUDGET", 3)
    metadata = (("authorization", "Bearer eve"),)
    silent = [served.sync.PushStream(metadata=metadata, timeout=30) for _ in range(6)]
    ended = [asyncio.create_task(call.read()) for call in silent]
    while sum(task.done() for task in ended) < 4:
        await asyncio.sleep(0.02)
    assert {told(task.exception())[0] for task in ended if task.done()} == {"RATE_LIMITED"}  # type: ignore[arg-type]
    assert await talk(served, batch(1, BANK)) == ([1], "OK")
    assert (await refused(served.watch("eve").read()))[0] == "RATE_LIMITED"
    await served.watch("bob").read()
    for call in silent:
        call.cancel()
    await asyncio.gather(*ended, return_exceptions=True)


async def test_what_nobody_is_known_to_have_sent_is_not_read(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of one request whose message has not come: who has no credential is told so, others are waited for."""
    monkeypatch.setattr(serving, "UNARY_BUDGET", 3)
    path, known = "/" + HEAD.replace(".GetHead", "/GetHead"), (("authorization", "Bearer alice"),)

    async def never() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def nothing() -> AsyncIterator[bytes]:
        for each in ():
            yield each

    def asked(requests: AsyncIterator[bytes], metadata: Any) -> Any:
        return served.channel.stream_unary(path)(requests, metadata=metadata, timeout=10)

    assert (await refused(asked(never(), ())))[0] == "CREDENTIAL_MISSING"
    watching = served.channel.stream_stream("/" + WATCH.replace(".WatchChanges", "/WatchChanges"))(never(), timeout=10)
    assert (await refused(watching.read()))[0] == "CREDENTIAL_MISSING"
    waiting = [asyncio.create_task(refused(asked(never(), known))) for _ in range(5)]
    await asyncio.sleep(0.1)
    await served.head("bob")
    assert (await refused(asked(nothing(), known)))[0] == "FIELD_INVALID"
    monkeypatch.setattr(serving, "IDLE_SECONDS", 0.2)
    assert (await refused(asked(never(), known)))[0] == "DEADLINE_EXCEEDED"
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
