"""Sign-in against a real OpenID provider and a real stack: one device flow end to end, and every forgery refused."""

import asyncio
import base64
import hashlib
import hmac
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from teamlore.auth.v1 import access_pb2, access_pb2_grpc, auth_pb2, auth_pb2_grpc
from teamlore.feed.v1 import feed_pb2

from kit.dialing import refusal_of
from stack import topology
from stack.ports import free_port
from stack.topology import Settings
from tests.integration.conftest import ROOT, RunningStack, running_stack
from tests.integration.provider import Provider
from tests.integration.test_admin_commands import Shell

GOOD = {"email_verified": True, "groups": ["api", "not a group", "*"]}
ACCOUNTS: dict[str, dict[str, Any]] = {
    "alice": {**GOOD, "email": "Alice@Example.com"},
    "unverified": {**GOOD, "email": "bob@example.com", "email_verified": False},
    "no-email": {"groups": ["api"]},
    "prefixed": {**GOOD, "email": "user:bob"},
    "newline": {**GOOD, "email": "bob@example.com\n"},
    "wildcard": {**GOOD, "email": "*"},
    "kelvin": {**GOOD, "email": "\u212aim@example.com"},
}


def private_jwk(key: rsa.RSAPrivateKey, kid: str) -> dict[str, Any]:
    return {
        **jwt.get_algorithm_by_name("RS256").to_jwk(key, as_dict=True),
        "kid": kid,
        "use": "sig",
        "alg": "RS256",
    }


class World:
    """The stack, the provider and the key that it signs with."""

    def __init__(self, stack: RunningStack, provider: Provider, key: rsa.RSAPrivateKey) -> None:
        self.stack, self.provider, self.key = stack, provider, key

    async def start(self, **credential: str) -> auth_pb2.StartSessionResponse:
        async with self.stack.channel("auth") as channel:
            stub = auth_pb2_grpc.AuthServiceStub(channel)
            return await stub.StartSession(auth_pb2.StartSessionRequest(**credential))

    async def refused(self, **credential: str) -> str:
        with pytest.raises(grpc.aio.AioRpcError) as found:
            await self.start(**credential)
        return refusal_of(found.value).reason

    async def whoami(self, token: str) -> auth_pb2.WhoAmIResponse:
        async with self.stack.channel("auth") as channel:
            return await auth_pb2_grpc.AuthServiceStub(channel).WhoAmI(
                auth_pb2.WhoAmIRequest(), metadata=self.stack.credential(token)
            )

    def forged(self, key: Any = None, kid: str = "one", algorithm: str = "RS256", **changes: Any) -> str:
        now = int(time.time())
        claims = {
            "iss": self.provider.issuer,
            "aud": self.provider.client_id,
            "sub": "alice",
            "iat": now,
            "exp": now + 600,
            "email": "alice@example.com",
            "email_verified": True,
            "jti": os.urandom(8).hex(),
        }
        content = {name: value for name, value in {**claims, **changes}.items() if value is not None}
        return jwt.encode(content, key or self.key, algorithm=algorithm, headers={"kid": kid})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The stack is up before its issuer is."""
    key = rsa.generate_private_key(65537, 2048)
    folder = tmp_path_factory.mktemp("oidc")
    provider = Provider(free_port(), {"keys": [private_jwk(key, "one")]}, ACCOUNTS, folder)
    settings = {
        "TEAMLORE_OIDC_ISSUER": provider.issuer,
        "TEAMLORE_OIDC_AUDIENCE": provider.client_id,
        "TEAMLORE_OIDC_SCOPES": "openid email groups",
        "TEAMLORE_OIDC_GROUPS_CLAIM": "groups",
    }
    try:
        with running_stack({"auth": settings}) as stack:
            yield World(stack, provider, key)
    finally:
        provider.stop()


@pytest.fixture
async def signed_up(world: World) -> AsyncIterator[World]:
    """The world with its provider up."""
    if world.provider.process is None:
        await asyncio.to_thread(world.provider.start)
    yield world


async def sign_in(world: World, login: str, client_id: str = "") -> str:
    return await asyncio.to_thread(world.provider.sign_in, login, client_id)


async def test_auth_serves_without_its_issuer(world: World) -> None:
    if world.provider.process is not None:
        world.provider.stop()
    assert await world.refused(id_token=world.forged()) == "DEPENDENCY_UNAVAILABLE"
    assert (await world.whoami(world.stack.admin)).principal == "user:admin"
    person = await world.stack.token("user:carol", kind="person")
    assert (await world.start(person_token=person)).principal == "user:carol"
    # The failed look-up is not asked again at once.
    await asyncio.sleep(1.1)


async def test_the_device_flow_ends_in_a_person_session(signed_up: World) -> None:
    world = signed_up
    async with world.stack.channel("auth") as channel:
        told = await auth_pb2_grpc.AuthServiceStub(channel).GetSignIn(auth_pb2.GetSignInRequest())
    assert (told.issuer, told.client_id) == (world.provider.issuer, world.provider.client_id)
    assert list(told.scopes) == ["openid", "email", "groups"]
    id_token = await sign_in(world, "alice")
    session = await world.start(id_token=id_token)
    assert session.session_token.startswith("tlk_")
    assert session.principal == "user:alice@example.com"
    # With the ID token's ten minutes and the half minute that clocks may differ.
    assert 590 < session.expires_at.seconds - time.time() <= 631
    me = await world.whoami(session.session_token)
    assert (me.principal, me.kind, me.token_id) == ("user:alice@example.com", "person", session.token_id)
    assert me.person_present
    assert list(me.groups) == ["team:api"]
    assert me.expires_at.seconds == session.expires_at.seconds
    # Once only, and a session starts no session.
    assert await world.refused(id_token=id_token) == "CREDENTIAL_INVALID"
    assert await world.refused(person_token=session.session_token) == "CREDENTIAL_INVALID"
    # It is a token like any other for the other services.
    async with world.stack.channel("feed") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as found:
            await world.stack.feed(channel).GetHead(
                feed_pb2.GetHeadRequest(bank="project:x"),
                metadata=world.stack.credential(session.session_token),
            )
        assert refusal_of(found.value).reason == "PERMISSION_DENIED"
        await world.stack.feed(channel).GetHead(
            feed_pb2.GetHeadRequest(bank="private:user:alice@example.com"),
            metadata=world.stack.credential(session.session_token),
        )
    connection = await asyncpg.connect(world.stack.facts.database_url)
    audits = await connection.fetch(
        "select p.principal, a.name from compliance.audit_calls a join compliance.principals p using (principal_ref)"
        " where a.token_id = $1",
        session.token_id,
    )
    await connection.close()
    assert [tuple(row) for row in audits] == [("user:alice@example.com", "auth.session_started")]
    logs = b"".join(path.read_bytes() for path in (world.stack.data / "logs").glob("*.log"))
    for secret in (
        id_token,
        id_token.split(".")[1],
        session.session_token,
        "Alice@Example.com",
        "alice@example",
    ):
        assert secret.encode() not in logs


@pytest.mark.parametrize("login", sorted(set(ACCOUNTS) - {"alice"}))
async def test_real_tokens_that_name_nobody(signed_up: World, login: str) -> None:
    assert await signed_up.refused(id_token=await sign_in(signed_up, login)) == "CREDENTIAL_INVALID"


async def test_a_real_token_for_another_app(signed_up: World) -> None:
    token = await sign_in(signed_up, "alice", "another-app")
    assert await signed_up.refused(id_token=token) == "CREDENTIAL_INVALID"


async def test_forgeries(signed_up: World) -> None:
    """Made with the provider's own key where a claim is wrong, with another where the signature is."""
    world, now = signed_up, int(time.time())
    await world.start(id_token=world.forged())
    assert await world.refused(id_token=world.forged(exp=now - 60, iat=now - 600)) == "CREDENTIAL_EXPIRED"
    public = world.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    body = world.forged().split(".")[1]

    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    head = part({"alg": "HS256", "typ": "JWT", "kid": "one"})
    mac = base64.urlsafe_b64encode(hmac.new(public, f"{head}.{body}".encode(), hashlib.sha256).digest())
    for token in (
        world.forged(iss="http://127.0.0.1:1"),
        world.forged(aud="another-app"),
        world.forged(aud=[world.provider.client_id, "another-app"]),
        world.forged(iat=now + 600),
        world.forged(nbf=now + 600),
        world.forged(exp=None),
        world.forged(email="user:admin"),
        world.forged(key=rsa.generate_private_key(65537, 2048)),
        f"{part({'alg': 'none', 'kid': 'one'})}.{body}.",
        f"{head}.{body}.{mac.decode().rstrip('=')}",
        "nothing",
    ):
        assert await world.refused(id_token=token) == "CREDENTIAL_INVALID", token


async def test_a_suspended_person_does_not_get_in(signed_up: World) -> None:
    connection = await asyncpg.connect(signed_up.stack.facts.database_url)
    await connection.execute("insert into auth.suspensions values ('user:dave@example.com', 'user:admin')")
    await connection.close()
    assert await signed_up.refused(id_token=signed_up.forged(email="Dave@example.com")) == "ACCESS_REVOKED"


async def test_revoking_a_person_token_ends_its_session(signed_up: World) -> None:
    world = signed_up
    async with world.stack.channel("auth") as channel:
        access = access_pb2_grpc.AccessServiceStub(channel)
        made = await access.CreateToken(
            access_pb2.CreateTokenRequest(principal="user:erin", kind="person"),
            metadata=world.stack.credential(await world.stack.admin_session()),
        )
        session = await world.start(person_token=made.token)
        assert (await world.whoami(session.session_token)).person_present
        assert not (await world.whoami(made.token)).person_present
        await access.RevokeToken(
            access_pb2.RevokeTokenRequest(token_id=made.token_id),
            metadata=world.stack.credential(world.stack.admin),
        )
    await asyncio.sleep(0.5)
    with pytest.raises(grpc.aio.AioRpcError) as found:
        await world.whoami(session.session_token)
    assert refusal_of(found.value).reason == "CREDENTIAL_REVOKED"
    assert await world.refused(person_token=made.token) == "CREDENTIAL_REVOKED"


async def test_a_new_key_of_the_provider_is_found_and_an_outage_is_lived_through(signed_up: World) -> None:
    world, old = signed_up, signed_up.key
    world.provider.stop()
    assert (await world.start(id_token=world.forged())).principal == "user:alice@example.com"
    new = rsa.generate_private_key(65537, 2048)
    world.provider.jwks = {"keys": [private_jwk(new, "two"), private_jwk(old, "one")]}
    await asyncio.to_thread(world.provider.start)
    token = await sign_in(world, "alice")
    assert jwt.get_unverified_header(token)["kid"] == "two"
    assert (await world.start(id_token=token)).principal == "user:alice@example.com"
    await world.start(id_token=world.forged())


async def test_a_leaked_signing_key_of_ours_goes_without_a_refused_call(signed_up: World) -> None:
    """Callers send opaque tokens; what was signed by the old key is exchanged again behind the scenes."""
    stack = signed_up.stack
    token = await stack.token("user:frank", ("project:rot", "read"))
    settings = Settings(stack.data, root=ROOT)
    env = topology.service_env(settings, stack.facts, "auth") | topology.python_env(settings)
    stop, calls = asyncio.Event(), 0

    async def loop(channel: grpc.aio.Channel) -> None:
        nonlocal calls
        while not stop.is_set():
            await stack.feed(channel).GetHead(
                feed_pb2.GetHeadRequest(bank="project:rot"), metadata=stack.credential(token)
            )
            calls += 1
            await asyncio.sleep(0.002)

    async with stack.channel("feed") as channel, stack.channel("auth") as auth:
        stub = auth_pb2_grpc.AuthServiceStub(auth)
        held = (await stub.ExchangeToken(auth_pb2.ExchangeTokenRequest(token=token))).access_token
        await stack.feed(channel).GetHead(
            feed_pb2.GetHeadRequest(bank="project:rot"), metadata=stack.credential(held)
        )
        running = asyncio.create_task(loop(channel))
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "services.auth.rotate", "--now"],
            env=env,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        before = calls
        await asyncio.sleep(1.0)
        stop.set()
        await running
        assert calls > before
        with pytest.raises(grpc.aio.AioRpcError) as found:
            await stack.feed(channel).GetHead(
                feed_pb2.GetHeadRequest(bank="project:rot"), metadata=stack.credential(held)
            )
        assert refusal_of(found.value).reason == "CREDENTIAL_INVALID"
        keys = (await stub.GetJwks(auth_pb2.GetJwksRequest())).keys
        assert [key.kid for key in keys] != [jwt.get_unverified_header(held)["kid"]]
        assert len(keys) == 1


def test_a_setting_that_cannot_be_meant_stops_auth(world: World, tmp_path: Path) -> None:
    settings = Settings(world.stack.data, root=ROOT)
    env = topology.service_env(settings, world.stack.facts, "auth") | topology.python_env(settings)
    for wrong in (
        {"TEAMLORE_OIDC_ISSUER": "http://issuer.example", "TEAMLORE_OIDC_AUDIENCE": "c"},
        {"TEAMLORE_OIDC_ISSUER": "https://issuer.example"},
        {"TEAMLORE_KEY_LEAD_SECONDS": "20"},
    ):
        done = subprocess.run(
            [sys.executable, "-m", "services.auth.main"],
            env=env | wrong,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 1
        assert "auth cannot start: TEAMLORE_" in done.stderr


async def watched(stack: RunningStack, token: str, bank: str) -> str:
    """The reason with which an open stream is ended."""
    async with stack.channel("feed") as channel:
        request = feed_pb2.WatchChangesRequest(bank=bank)
        with pytest.raises(grpc.aio.AioRpcError) as found:
            async for _ in stack.feed(channel).WatchChanges(request, metadata=stack.credential(token)):
                pass
        return refusal_of(found.value).reason


async def refusal_for(world: World, token: str) -> str:
    try:
        await world.whoami(token)
    except grpc.aio.AioRpcError as error:
        return refusal_of(error).reason
    return ""


async def state_of(world: World, principal: str) -> tuple[int, list[str]]:
    """The version of the access state, and the ids of the principal's tokens that were revoked, with the time."""
    connection = await asyncpg.connect(world.stack.facts.database_url)
    version = await connection.fetchval("select version from auth.access_head")
    rows = await connection.fetch(
        "select token_id, revoked_at from auth.tokens where principal = $1", principal
    )
    await connection.close()
    return version, sorted(f"{row['token_id']} {row['revoked_at']}" for row in rows if row["revoked_at"])


async def test_one_command_ends_all_that_a_leaver_has(signed_up: World, tmp_path: Path) -> None:
    world, shell = signed_up, Shell(tmp_path, signed_up.stack)
    leaver, email = "user:leaver@example.com", "Leaver@example.com"

    async def admin(*arguments: str) -> Any:
        return await asyncio.to_thread(shell.admin, *arguments)

    team = (await admin("team", "put", "Leavers"))["team_id"]
    await admin("team", "member", team, leaver, "--role", "owner")
    await admin("grant", "put", leaver, f"project:{shell.name}-*", "read,write")
    await admin("group", "put", "team:leavers", leaver)
    await admin("bank", "put", f"space:{shell.name}", "--owner", leaver)
    person = await admin("token", "create", "--principal", leaver, "--kind", "person")
    agent = await admin("token", "create", "--principal", leaver, "--banks", "project:*")
    joined = await asyncio.to_thread(shell.join, person["token"])
    bank = joined["bank"]
    session = await world.start(person_token=person["token"])
    browser = await world.start(id_token=world.forged(email=email))
    kept = json.loads((shell.home / ".config/teamlore/team.json").read_text())["banks"][bank]["token"]
    secrets = [person["token"], agent["token"], kept, session.session_token, browser.session_token]
    ids = {person["token_id"], agent["token_id"], joined["personal_key"], session.token_id, browser.token_id}
    streams = [asyncio.create_task(watched(world.stack, token, bank)) for token in secrets]
    await asyncio.sleep(0.5)

    before = await state_of(world, leaver)
    would = await admin("offboard", leaver, "--dry-run")
    await asyncio.sleep(1.5)
    assert await state_of(world, leaver) == before
    assert not would["suspended"] and not any(stream.done() for stream in streams)
    assert [await refusal_for(world, secret) for secret in secrets] == [""] * 5

    held = await admin("offboard", leaver)
    reasons = set(await asyncio.wait_for(asyncio.gather(*streams), 20))
    assert reasons <= {"CREDENTIAL_REVOKED", "ACCESS_REVOKED"}
    assert {await refusal_for(world, secret) for secret in secrets} == {"CREDENTIAL_REVOKED"}
    assert await world.refused(person_token=person["token"]) == "CREDENTIAL_REVOKED"
    assert await world.refused(id_token=world.forged(email=email)) == "ACCESS_REVOKED"
    for told in (would, held):
        assert {token["token_id"] for token in told["tokens"]} == ids
        assert [grant["subject"] for grant in told["grants"]] == [leaver]
        assert set(told["groups"]) >= {"team:leavers"}
        assert [(m["team_id"], m["role"]) for m in told["memberships"]] == [(team, "owner")]
        assert told["banks"] == [f"space:{shell.name}"] and len(told["devices"]) == 1

    after = await state_of(world, leaver)
    assert after[0] > before[0] and len(after[1]) == len(before[1]) + 5
    again = await admin("offboard", leaver)
    assert await state_of(world, leaver) == after, "a second run changes nothing"
    assert again["suspended"] and again["tokens"] == []
    await admin("resume", leaver)
    await asyncio.sleep(0.6)
    assert {await refusal_for(world, secret) for secret in secrets} == {"CREDENTIAL_REVOKED"}
    assert (await world.start(id_token=world.forged(email=email))).principal == leaver
