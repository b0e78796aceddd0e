"""Signing keys change under load and nobody valid is refused; auth goes away and comes back, and so do its callers."""

import asyncio
import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from teamlore.auth.v1 import auth_pb2, auth_pb2_grpc

from tests.integration.calls import Outcome, outcome_of
from tests.integration.conftest import RunningStack, running_stack
from tests.integration.replicas import replica
from tests.integration.test_revocation import BANK, SERVICES, knock

LEAD, ROTATION, LIFE, LEEWAY = 3.0, 8.0, 6, 5
QUICK = {"TEAMLORE_KEY_REFRESH_SECONDS": "0.5"}
AUTH = QUICK | {
    "TEAMLORE_KEY_ROTATION_SECONDS": str(ROTATION),
    "TEAMLORE_KEY_LEAD_SECONDS": str(LEAD),
    "TEAMLORE_JWT_SECONDS": str(LIFE),
}
Call = Callable[[Any], Awaitable[Any]]


@pytest.fixture(scope="module")
def quick() -> Iterator[RunningStack]:
    """A stack whose keys and JWTs live for seconds."""
    extra: dict[str, dict[str, str]] = {name: dict(QUICK) for name in SERVICES}
    extra["auth"] = AUTH
    with running_stack(extra) as running:
        yield running


async def exchanged(address: str, token: str) -> auth_pb2.ExchangeTokenResponse:
    async with grpc.aio.insecure_channel(address) as channel:
        request = auth_pb2.ExchangeTokenRequest(token=token)
        return await auth_pb2_grpc.AuthServiceStub(channel).ExchangeToken(request, timeout=10)


class Load:
    """Callers in loops; what they were refused, and when each key was first seen to sign."""

    def __init__(self, stack: RunningStack, token: str, auths: tuple[str, ...]) -> None:
        self.stack, self.token, self.auths = stack, token, auths
        self.refused: list[tuple[str, Outcome]] = []
        self.answered: dict[str, int] = defaultdict(int)
        self.signed: dict[str, float] = {}
        self.stop = asyncio.Event()

    async def ask(self, name: str, call: Call, credential: str) -> None:
        try:
            await call(self.stack.credential(credential))
            self.answered[name] += 1
        except grpc.aio.AioRpcError as error:
            self.refused.append((name, outcome_of(error)))
        await asyncio.sleep(0.04)

    async def opaque(self, name: str, call: Call) -> None:
        while not self.stop.is_set():
            await self.ask(f"{name} opaque", call, self.token)

    async def kept(self, name: str, call: Call, auth: str) -> None:
        """A caller that exchanges its token only when its JWT has ended."""
        ends, held = 0.0, ""
        while not self.stop.is_set():
            if ends <= time.time():
                answer = await exchanged(auth, self.token)
                ends, held = float(answer.expires_at.seconds), answer.access_token
            await self.ask(f"{name} kept", call, held)

    async def stranger(self, call: Call) -> None:
        """Sends JWTs of keys that nobody knows: what a service may look up because of these must cost others nothing."""
        key = Ed25519PrivateKey.generate()
        while not self.stop.is_set():
            claims = {"sub": "user:x", "exp": int(time.time()) + 60, "aud": "teamlore:x"}
            forged = jwt.encode(claims, key, algorithm="EdDSA", headers={"kid": os.urandom(8).hex()})
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(self.stack.credential(forged))
            assert outcome_of(caught.value).reason == "CREDENTIAL_INVALID"
            await asyncio.sleep(0.1)

    async def mint(self) -> None:
        """Notes when each key signs first, on either replica."""
        while not self.stop.is_set():
            for address in self.auths:
                answer = await exchanged(address, self.token)
                kid = str(jwt.get_unverified_header(answer.access_token)["kid"])
                self.signed.setdefault(kid, time.time())
            await asyncio.sleep(0.1)


async def test_keys_change_under_load_without_a_refused_call(quick: RunningStack) -> None:
    token = await quick.token("user:busy", (BANK, "read write comply"))
    database = await asyncpg.connect(quick.facts.database_url)
    with replica(quick, "auth", AUTH) as auth, replica(quick, "feed", QUICK) as feed:
        auths = (quick.address("auth"), auth)
        places = [("sync", quick.address("sync")), ("feed", quick.address("feed")), ("feed", feed)]
        places += [("auth", address) for address in auths]
        load = Load(quick, token, auths)
        channels = [grpc.aio.insecure_channel(address) for _, address in places]
        calls = [(f"{name} {i}", knock(name, channels[i])) for i, (name, _) in enumerate(places)]
        tasks = [asyncio.create_task(load.mint())]
        for i, (name, call) in enumerate(calls):
            tasks += [
                asyncio.create_task(load.opaque(name, call)),
                asyncio.create_task(load.kept(name, call, auths[i % 2])),
            ]
            if not name.startswith("auth"):
                tasks.append(asyncio.create_task(load.stranger(call)))
        deadline = time.monotonic() + 200
        retired: list[asyncpg.Record] = []
        # A key is kept for its JWTs' life, their leeway and a minute; by then many more have followed.
        while len(load.signed) < 4 or not retired:
            assert time.monotonic() < deadline, (load.signed, retired)
            assert not [task for task in tasks if task.done()]
            await asyncio.sleep(1)
            retired = await database.fetch("select * from auth.signing_keys where retired_at is not null")
        await asyncio.sleep(2)
        load.stop.set()
        await asyncio.gather(*tasks)
        for channel in channels:
            await channel.close()
        async with grpc.aio.insecure_channel(auth) as channel:
            jwks = await auth_pb2_grpc.AuthServiceStub(channel).GetJwks(auth_pb2.GetJwksRequest())
    keys = {row["kid"]: row for row in await database.fetch("select * from auth.signing_keys")}
    await database.close()
    assert load.refused == []
    assert len(load.answered) == 2 * len(places) and min(load.answered.values()) > 100, load.answered
    first = min(keys, key=lambda kid: keys[kid]["active_from"])
    for kid, moment in load.signed.items():
        if kid != first:
            assert moment >= keys[kid]["created_at"].timestamp() + LEAD - 0.1, "published before it signs"
    assert first in {row["kid"] for row in retired}
    for row in retired:
        assert row["sealed_private_key"] is None
        assert row["kid"] not in {key.kid for key in jwks.keys}


async def outcome(call: Call, who: Any) -> Outcome:
    try:
        await call(who)
    except grpc.aio.AioRpcError as error:
        return outcome_of(error)
    return Outcome("OK")


async def until_ok(call: Call, who: Any, passing: set[str]) -> None:
    deadline = time.monotonic() + 20
    while (seen := await outcome(call, who)).code != "OK":
        assert seen.reason in passing and time.monotonic() < deadline, seen
        await asyncio.sleep(0.1)


async def test_without_auth_all_goes_on_until_jwts_end_and_with_it_again_by_itself(
    quick: RunningStack,
) -> None:
    token = await quick.token("user:steady", (BANK, "read"))
    who, other = quick.credential(token), quick.credential(await quick.token("user:late", (BANK, "read")))
    away = "DEPENDENCY_UNAVAILABLE"
    with contextlib.ExitStack() as services:
        with replica(quick, "auth", AUTH) as auth:
            target = QUICK | {"TEAMLORE_AUTH_TARGET": auth}
            feed = services.enter_context(replica(quick, "feed", target))
            channel = grpc.aio.insecure_channel(feed)
            call = knock("feed", channel)
            answer = await exchanged(auth, token)
            held, ends = quick.credential(answer.access_token), answer.expires_at.seconds
            assert (await outcome(call, held)).code == "OK"
            # The service's own JWT for the opaque token is no younger than the one held here.
            assert (await outcome(call, who)).code == "OK"
        served = 0
        while time.time() < ends - 0.2:
            assert (await outcome(call, who)).code == (await outcome(call, held)).code == "OK"
            served += 1
        assert served, "auth went too slowly for this test to show anything"
        assert (await outcome(call, other)).reason == away
        late = services.enter_context(replica(quick, "feed", target))
        async with grpc.aio.insecure_channel(late) as second:
            blind = knock("feed", second)
            assert {(await outcome(blind, one)).reason for one in (who, held)} == {away}
            await asyncio.sleep(max(0.0, ends + LEEWAY + 1.1 - time.time()))
            told = await outcome(call, who)
            assert (told.code, told.reason) == ("UNAVAILABLE", away) and told.retry_after
            assert (await outcome(call, held)).reason == "CREDENTIAL_EXPIRED"
            with replica(quick, "auth", AUTH, int(auth.rpartition(":")[2])):
                for each in (call, blind):
                    await until_ok(each, who, {away})
                    await until_ok(each, other, {away})
                    fresh = quick.credential((await exchanged(auth, token)).access_token)
                    assert (await outcome(each, fresh)).code == "OK"
        await channel.close()
