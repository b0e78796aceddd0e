"""What is taken away ends within about a second on every replica and open stream; a blind process refuses."""

import asyncio
import contextlib
import os
import signal
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from teamlore.auth.v1 import access_pb2, access_pb2_grpc, auth_pb2, auth_pb2_grpc
from teamlore.compliance.v1 import compliance_pb2, compliance_pb2_grpc
from teamlore.feed.v1 import feed_pb2
from teamlore.index.v1 import index_pb2, index_pb2_grpc
from teamlore.sync.v1 import sync_pb2

from tests.integration.calls import outcome_of
from tests.integration.conftest import RunningStack
from tests.integration.replicas import replica, serving
from tests.robustness.processes import pid_of, postmaster_of

ROUNDS = int(os.environ.get("REVOKE_ROUNDS", "2"))
BANK = "project:revoked-1a2b3c4d"
SERVICES = ("auth", "sync", "feed", "compliance", "index")


@pytest.fixture(scope="module")
def addresses(stack: RunningStack) -> Iterator[dict[str, tuple[str, str]]]:
    """Two replicas of each service."""
    with contextlib.ExitStack() as open_:
        yield {name: (stack.address(name), open_.enter_context(replica(stack, name))) for name in SERVICES}


def knock(name: str, channel: grpc.aio.Channel) -> Callable[[Any], Awaitable[Any]]:
    """A call that a token with read, write and comply on BANK is allowed."""
    if name == "auth":
        stub = auth_pb2_grpc.AuthServiceStub(channel)
        return lambda who: stub.WhoAmI(auth_pb2.WhoAmIRequest(bank=BANK), metadata=who, timeout=10)
    if name == "sync":

        def push(who: Any) -> Any:
            record = sync_pb2.Record(id=uuid.uuid4().hex[:16], text=f"{uuid.uuid4()} {uuid.uuid4()}")
            request = sync_pb2.PushRequest(bank=BANK, records=[record])
            return RunningStack.sync(None, channel).Push(request, metadata=who, timeout=10)  # type: ignore[arg-type]

        return push
    if name == "feed":
        return lambda who: RunningStack.feed(None, channel).GetHead(  # type: ignore[arg-type]
            feed_pb2.GetHeadRequest(bank=BANK), metadata=who, timeout=10
        )
    if name == "compliance":
        holds = compliance_pb2_grpc.ComplianceServiceStub(channel)
        return lambda who: holds.ListHolds(
            compliance_pb2.ListHoldsRequest(bank=BANK), metadata=who, timeout=10
        )
    search = index_pb2_grpc.IndexServiceStub(channel)
    return lambda who: search.Search(index_pb2.SearchRequest(bank=BANK, query="x"), metadata=who, timeout=10)


async def refused_after(
    name: str, address: str, who: Any, revoked_at: asyncio.Future[float]
) -> tuple[str, float]:
    """Calls in a loop until refused; gives the reason and the seconds since the revocation was answered."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = knock(name, channel)
        while True:
            try:
                await call(who)
            except grpc.aio.AioRpcError as error:
                return outcome_of(error).reason, time.monotonic() - await revoked_at
            await asyncio.sleep(0.01)


async def stream_ends_after(address: str, who: Any, revoked_at: asyncio.Future[float]) -> tuple[str, float]:
    """Watches until the stream is ended; gives the reason and the seconds since the revocation was answered."""
    async with grpc.aio.insecure_channel(address) as channel:
        stream = RunningStack.feed(None, channel).WatchChanges(  # type: ignore[arg-type]
            feed_pb2.WatchChangesRequest(bank=BANK), metadata=who
        )
        try:
            async for _ in stream:
                pass
        except grpc.aio.AioRpcError as error:
            return outcome_of(error).reason, time.monotonic() - await revoked_at
        return "ended without a reason", 0.0


async def one_round(
    stack: RunningStack, addresses: dict[str, tuple[str, str]]
) -> dict[str, tuple[str, float]]:
    """Revokes a token under load; what each replica and stream answered, and after how many seconds."""
    who = stack.credential(await stack.token(f"user:{uuid.uuid4().hex[:8]}", (BANK, "read write comply")))
    revoked_at: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    places = {
        f"{name} {i}": (name, address) for name, pair in addresses.items() for i, address in enumerate(pair)
    }
    calls = [asyncio.create_task(refused_after(*place, who, revoked_at)) for place in places.values()]
    streams = [
        asyncio.create_task(stream_ends_after(address, who, revoked_at)) for address in addresses["feed"]
    ]
    await asyncio.sleep(0.4)
    async with stack.channel("auth") as channel:
        told = await auth_pb2_grpc.AuthServiceStub(channel).WhoAmI(auth_pb2.WhoAmIRequest(), metadata=who)
        await access_pb2_grpc.AccessServiceStub(channel).RevokeToken(
            access_pb2.RevokeTokenRequest(token_id=told.token_id), metadata=stack.credential(stack.admin)
        )
    revoked_at.set_result(time.monotonic())
    names = [*places, "stream 0", "stream 1"]
    return dict(zip(names, await asyncio.gather(*calls, *streams), strict=True))


async def test_a_revoked_token_ends_everywhere(
    stack: RunningStack, addresses: dict[str, tuple[str, str]]
) -> None:
    for _ in range(ROUNDS):
        seen = await asyncio.wait_for(one_round(stack, addresses), 60)
        assert {reason for reason, _ in seen.values()} == {"CREDENTIAL_REVOKED"}, seen


async def ended(
    stack: RunningStack, principal: str, address: str, take: Callable[[Any, Any], Awaitable[Any]]
) -> str:
    """How an open stream of `principal` ends once `take` has taken its access away."""
    who = stack.credential(await stack.token(principal, ("project:none", "read")))
    revoked_at: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    revoked_at.set_result(time.monotonic())
    watching = asyncio.create_task(stream_ends_after(address, who, revoked_at))
    await asyncio.sleep(0.3)
    assert not watching.done()
    async with stack.channel("auth") as channel:
        await take(access_pb2_grpc.AccessServiceStub(channel), stack.credential(stack.admin))
    return (await asyncio.wait_for(watching, 20))[0]


async def test_whatever_is_taken_ends_the_stream(
    stack: RunningStack, addresses: dict[str, tuple[str, str]]
) -> None:
    """A grant, a membership of a group, a deny, a suspension."""
    admin = stack.credential(stack.admin)
    here = addresses["feed"][1]

    def rule(subject: str, effect: str = "allow") -> access_pb2.AccessGrant:
        return access_pb2.AccessGrant(subject=subject, pattern=BANK, permissions=["read"], effect=effect)

    async with stack.channel("auth") as channel:
        access = access_pb2_grpc.AccessServiceStub(channel)
        for subject in ("user:taken-grant", "team:taken", "user:taken-deny", "user:taken-all"):
            await access.PutGrant(access_pb2.PutGrantRequest(grant=rule(subject)), metadata=admin)
        members = access_pb2.PutGroupRequest(group="team:taken", members=["user:taken-group"])
        await access.PutGroup(members, metadata=admin)
    grant = access_pb2.DeleteGrantRequest(subject="user:taken-grant", pattern=BANK, effect="allow")
    empty = access_pb2.PutGroupRequest(group="team:taken")
    deny = access_pb2.PutGrantRequest(grant=rule("user:taken-deny", "deny"))
    suspend = access_pb2.SuspendPrincipalRequest(principal="user:taken-all")
    assert (
        await ended(stack, "user:taken-grant", here, lambda a, m: a.DeleteGrant(grant, metadata=m))
        == "PERMISSION_DENIED"
    )
    assert (
        await ended(stack, "user:taken-group", here, lambda a, m: a.PutGroup(empty, metadata=m))
        == "PERMISSION_DENIED"
    )
    assert (
        await ended(stack, "user:taken-deny", here, lambda a, m: a.PutGrant(deny, metadata=m))
        == "PERMISSION_DENIED"
    )
    assert (
        await ended(stack, "user:taken-all", here, lambda a, m: a.SuspendPrincipal(suspend, metadata=m))
        == "ACCESS_REVOKED"
    )


def backends_of(postmaster: int) -> list[int]:
    """Postgres and all its processes."""
    found = [postmaster]
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == postmaster:
                found.append(int(entry.name))
    return found


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # a backend that was on its way out
            os.kill(pid, number)


async def test_with_postgres_paused_the_services_refuse_and_come_back(
    stack: RunningStack, addresses: dict[str, tuple[str, str]]
) -> None:
    who = stack.credential(await stack.token("user:paused", (BANK, "read write comply")))
    places = [(name, address) for name, pair in addresses.items() for address in pair]
    channels = {address: grpc.aio.insecure_channel(address) for _, address in places}
    for name, address in places:
        await knock(name, channels[address])(who)
    paused = backends_of(await postmaster_of(stack))
    send(paused, signal.SIGSTOP)
    try:
        await asyncio.sleep(1.5)
        for name, address in places:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await knock(name, channels[address])(who)
            seen = outcome_of(caught.value)
            assert (seen.code, seen.reason) == ("UNAVAILABLE", "ACCESS_STATE_STALE"), name
            assert seen.retry_after
            assert not await asyncio.to_thread(serving, address)
    finally:
        send(paused, signal.SIGCONT)
    deadline = time.monotonic() + 20
    for name, address in places:
        while True:
            try:
                await knock(name, channels[address])(who)
                break
            except grpc.aio.AioRpcError as error:
                assert error.code() == grpc.StatusCode.UNAVAILABLE
                assert time.monotonic() < deadline, name
                await asyncio.sleep(0.1)
        await channels[address].close()


async def test_auth_away_and_back(stack: RunningStack) -> None:
    """Who was known goes on without auth; who was not is told plainly; with auth back all is well, without a restart."""
    known = stack.credential(await stack.token("user:known", (BANK, "read")))
    new = stack.credential(await stack.token("user:new", (BANK, "read")))
    with replica(stack, "feed", {"TEAMLORE_AUTH_TARGET": "127.0.0.1:1"}) as blind:
        async with grpc.aio.insecure_channel(blind) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await knock("feed", channel)(new)
            seen = outcome_of(caught.value)
            assert (seen.code, seen.reason) == ("UNAVAILABLE", "DEPENDENCY_UNAVAILABLE")
    async with stack.channel("feed") as channel:
        call = knock("feed", channel)
        await call(known)
        pid = pid_of(stack, "auth")
        os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(20):
                await call(known)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(new)
            assert outcome_of(caught.value).reason == "DEPENDENCY_UNAVAILABLE"
        finally:
            os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + 20
        while True:
            try:
                await call(new)
                break
            except grpc.aio.AioRpcError as error:
                assert outcome_of(error).reason == "DEPENDENCY_UNAVAILABLE" and time.monotonic() < deadline
                await asyncio.sleep(0.1)
