"""Secrets of every kind, used, misused and sent to wrong places: then every file, table and trace is searched for them."""

import asyncio
import base64
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from teamlore.auth.v1 import access_pb2, access_pb2_grpc, auth_pb2, auth_pb2_grpc
from teamlore.sync.v1 import sync_pb2
from terminal import TEAMLORE, terminal

from kit import sealing
from stack import topology
from stack.topology import SERVICES, Settings
from tests.canary.search import Found, search
from tests.canary.test_erase import Laptop
from tests.integration.calls import call, service_of
from tests.integration.conftest import ROOT, RunningStack, running_stack
from tests.integration.test_access_matrix import bearer, request_for
from tests.integration.test_person import KEYRING
from tests.test_descriptors import methods

BANK = "project:secrets-1a2b3c4d"
ISSUER = "http://127.0.0.1:1"
# What a caller with the right to do so writes down for all to read stays written down.
WRITTEN = {"note", "name", "matter", "text"}


class Collector(grpc.GenericRpcHandler):
    """An OTLP collector that keeps what it gets, byte for byte."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def service(self, handler_call_details: Any) -> Any:
        def keep(request: bytes, context: Any) -> bytes:
            with self.file.open("ab") as output:
                output.write(request)
            return b""

        return grpc.unary_unary_rpc_method_handler(keep)


@dataclass
class World:
    """The stack, its folder, what must be nowhere, and what may stand in one place each."""

    stack: RunningStack
    folder: Path
    words: set[str] = field(default_factory=set)
    raw: dict[str, bytes] = field(default_factory=dict)
    """By word: the bytes that it stands for."""

    def secret(self, token: str) -> str:
        """Notes a token or a JWT: as it is, and what it is made of."""
        self.words.add(token)
        if token.startswith("tlk_"):
            self.raw[token] = base64.urlsafe_b64decode(token.removeprefix("tlk_") + "=")
        elif token.count(".") == 2:
            signature = token.rpartition(".")[2]
            self.words.add(signature)
            self.raw[token] = base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4))
        return token


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    traces = tmp_path_factory.mktemp("traces")
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Collector(traces / "spans"),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    told = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_BSP_SCHEDULE_DELAY": "500"}
    extra = {name: dict(told) for name in SERVICES}
    extra["auth"] |= {"TEAMLORE_OIDC_ISSUER": ISSUER, "TEAMLORE_OIDC_AUDIENCE": "cli"}
    try:
        with running_stack(extra) as running:
            yield World(running, traces)
    finally:
        server.stop(None)


async def private_keys(world: World) -> list[tuple[bytes, bytes]]:
    """Each signing key's private half: raw, and sealed as the database keeps it."""
    database = await asyncpg.connect(world.stack.facts.database_url)
    rows = await database.fetch("select * from auth.signing_keys where retired_at is null")
    await database.close()
    store = sealing.KeyStore(world.stack.data / "keys" / "keystore.db")
    secret = store.secret("auth.signing")
    store.close()
    return [
        (sealing.unseal(secret, "auth.signing", row["kid"], row["sealed_private_key"]), row["sealed_private_key"])
        for row in rows
    ]


async def exchanged(world: World, token: str) -> str:
    async with world.stack.channel("auth") as channel:
        answer = await auth_pb2_grpc.AuthServiceStub(channel).ExchangeToken(
            auth_pb2.ExchangeTokenRequest(token=token)
        )
    return world.secret(answer.access_token)


async def made(world: World) -> list[str]:
    """A credential of every kind: tokens, a rotated one, sessions, a personal key, JWTs of all, wrong ID tokens."""
    stack = world.stack
    tokens = [
        await stack.token("user:ann", (BANK, "read write forget")),
        await stack.token("user:ann", (BANK, "read write"), kind="person"),
        await stack.token("service:robot", (BANK, "read"), kind="service"),
    ]
    async with stack.channel("auth") as channel:
        access, auth = access_pb2_grpc.AccessServiceStub(channel), auth_pb2_grpc.AuthServiceStub(channel)
        session = await auth.StartSession(auth_pb2.StartSessionRequest(person_token=tokens[1]))
        tokens.append(session.session_token)
        key = await access.CreatePersonalKey(
            access_pb2.CreatePersonalKeyRequest(), metadata=bearer(session.session_token)
        )
        tokens.append(key.token)
        rotated = await access.RotateToken(
            access_pb2.RotateTokenRequest(token_id=key.token_id, overlap_seconds=600), metadata=bearer(stack.admin)
        )
        tokens.append(rotated.token)
        for token in tokens:
            world.secret(token)
        jwts = [await exchanged(world, token) for token in tokens]
        claims = {"iss": ISSUER, "aud": "cli", "sub": "ann", "email": "ann@example.com", "exp": int(time.time()) + 600}
        signer = rsa.generate_private_key(65537, 2048)
        for wrong in (claims, claims | {"iss": "https://elsewhere.example"}):
            id_token = world.secret(jwt.encode(wrong, signer, algorithm="RS256", headers={"kid": "k"}))
            with contextlib.suppress(grpc.aio.AioRpcError):
                await auth.StartSession(auth_pb2.StartSessionRequest(id_token=id_token))
            jwts.append(id_token)
    return [*tokens, *jwts]


def misplaced(method: MethodDescriptor, secret: str, *before: str) -> Iterator[bytes]:
    """Requests of the method with the secret in one text field each, as it is and in what no id may be; or `before` it."""
    for each in method.input_type.fields:
        if each.type != FieldDescriptor.TYPE_STRING or each.name in WRITTEN or each.message_type is not None:
            continue
        for text in [part + secret for part in before] or [secret, f"{secret}\x00", f"user {secret}"]:
            message: Any = message_factory.GetMessageClass(method.input_type)()
            message.MergeFromString(request_for(method, BANK))
            if each.is_repeated:
                getattr(message, each.name).append(text)
            else:
                setattr(message, each.name, text)
            yield message.SerializeToString()


async def sent_to_wrong_places(world: World, secrets: list[str]) -> int:
    stack, calls = world.stack, 0
    channels = {name: stack.channel(name) for name in SERVICES}
    callers = [bearer(stack.admin), bearer(secrets[0])]
    for number, method in enumerate(methods()):
        channel = channels[service_of(method)]
        # Each method gets one token and one JWT in each of its fields, and over all methods all of them come around.
        tokens = [s for s in secrets if s.startswith("tlk_")]
        jwts = [s for s in secrets if not s.startswith("tlk_")]
        for secret in (tokens[number % len(tokens)], jwts[number % len(jwts)]):
            for raw in misplaced(method, secret):
                for who in callers:
                    await call(channel, method, raw, who, timeout=5)
                    calls += 1
            # Well-formed ids, which the admin could make true; from others they are refused.
            for raw in misplaced(method, secret, "project:", "user:", "team:", "private:user:"):
                await call(channel, method, raw, callers[1], timeout=5)
                calls += 1
            plain = request_for(method, BANK)
            for metadata in (
                bearer(secret + "x"), (("authorization", secret),), (("authorization", f"Basic {secret}"),),
                (("x-api-key", secret + "x"),), (*bearer(stack.facts.tokens["sync"]), ("x-teamlore-on-behalf-of", secret)),
                (*bearer(stack.admin), ("x-teamlore-on-behalf-of", secret)), (*bearer(secrets[0]), ("x-teamlore-team", secret)),
                (*bearer(secrets[0]), ("x-teamlore-principal", secret)),
            ):  # fmt: skip
                await call(channel, method, plain, metadata, timeout=5)
            await call(channel, method, b"\xff\xff" + secret.encode(), bearer(secret), timeout=5)
            calls += 9
    record = sync_pb2.Record(id=os.urandom(8).hex(), text=f"the token is {secrets[0]} and not another")
    push = sync_pb2.PushRequest(bank=BANK, records=[record])
    await stack.sync(channels["sync"]).Push(push, metadata=bearer(secrets[0]))
    for channel in channels.values():
        await channel.close()
    return calls


async def errors_happen(world: World, secrets: list[str]) -> None:
    """Backends die under calls that carry credentials; then the keys are changed as for a leak."""
    stack = world.stack
    database = await asyncpg.connect(stack.facts.database_url)
    picked = [m for m in methods() if m.name in ("Push", "WhoAmI", "ListChanges", "ListHolds", "Search", "ListTokens")]
    channels = {name: stack.channel(name) for name in SERVICES}

    async def knock() -> None:
        for _ in range(5):
            for method in picked:
                await call(channels[service_of(method)], method, request_for(method, BANK), bearer(secrets[0]), timeout=5)

    for _ in range(3):
        running = asyncio.create_task(knock())
        for _ in range(5):
            await database.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
                " and datname = current_database()"
            )
            await asyncio.sleep(0.1)
        await running
    await database.close()
    for channel in channels.values():
        await channel.close()
    settings = Settings(stack.data, root=ROOT)
    env = topology.service_env(settings, stack.facts, "auth") | topology.python_env(settings)
    env |= {"TEAMLORE_OIDC_ISSUER": ISSUER, "TEAMLORE_OIDC_AUDIENCE": "cli"}
    command = [sys.executable, "-m", "services.auth.rotate", "--now"]
    done = await asyncio.to_thread(subprocess.run, command, env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (stack.data / "logs" / "rotate.log").write_text(done.stdout + done.stderr)


async def dumped(world: World) -> None:
    """Every table of every schema of ours as a dump has it, beside the files."""
    target = world.stack.data / "dump"
    target.mkdir()
    database = await asyncpg.connect(world.stack.facts.database_url)
    tables = await database.fetch(
        "select schemaname, tablename from pg_tables where schemaname not in ('pg_catalog', 'information_schema')"
    )
    assert len(tables) > 20
    for schema, table in tables:
        await database.copy_from_table(table, schema_name=schema, output=target / f"{schema}.{table}")
    await database.execute("checkpoint")
    await database.close()


def joined(world: World) -> tuple[list[Path], list[str]]:
    """Two laptops: one with an agent's token, one with a personal key that a person's token made. Homes and credentials."""
    stack, folder = world.stack, world.stack.data.parent
    addresses = ",".join(f"{name}={stack.address(name)}" for name in ("auth", "sync", "feed", "compliance"))
    homes, kept = [], []
    for name, kind in (("agent", "agent"), ("person", "person")):
        laptop = Laptop(folder / name)
        token = asyncio.run(stack.token(f"user:{name}", ("project:*", "read write forget"), kind=kind))
        if kind == "agent":
            laptop.run("team", "join", "--server", addresses, "--token", token, "--yes")
        else:
            laptop.run("memory", "list")
            with terminal(laptop.home, TEAMLORE_SERVER=addresses, **KEYRING) as at:
                at.run("cd orders")
                at.type(f"{TEAMLORE} team join {addresses} --yes; echo __$?__")
                at.expect("[Tt]oken.*: ")
                at.type(token)
                code, said = at.end()
                assert code == 0, said
        laptop.run("memory", "add", f"We use SQS, says the {name}.")
        laptop.run("team", "sync")
        team = json.loads((laptop.home / ".config/teamlore/team.json").read_text())
        (entry,) = team["banks"].values()
        kept.append(world.secret(entry["token"]))
        assert (kept[-1] == token) == (kind == "agent")
        world.secret(token)
        homes.append(laptop.home)
    return homes, kept


def test_no_secret_is_in_any_file_table_log_or_trace(world: World) -> None:
    stack = world.stack
    homes, kept = joined(world)
    before = asyncio.run(private_keys(world))
    secrets = asyncio.run(made(world))
    assert asyncio.run(sent_to_wrong_places(world, secrets)) > 500
    asyncio.run(errors_happen(world, secrets))
    keys = before + asyncio.run(private_keys(world))
    assert len({raw for raw, _ in keys}) == 2
    asyncio.run(dumped(world))
    time.sleep(1.5)
    assert (world.folder / "spans").stat().st_size > 1000, "traces were exported"

    # The search finds what is there: sealed keys in the database, and credentials where they belong.
    sealed = search([stack.data], (), [keys[-1][1]])
    assert {"postgres", "dump"} <= {found.path.relative_to(stack.data).parts[0] for found in sealed}
    servers = [stack.data, world.folder]
    assert places(search(servers, stack.facts.tokens.values())) == {"secrets.json"}
    assert places(search(servers, [stack.admin])) == {"admin.token"}
    stores = search(homes, kept)
    assert {found.path for found in stores} == {home / ".config/teamlore/team.json" for home in homes}

    others = {word: raw for word, raw in world.raw.items() if word not in kept}
    assert told(search(homes, world.words - set(kept), others.values())) == set()
    assert told(search(servers, world.words, [*world.raw.values(), *(raw for raw, _ in keys)])) == set()
    store = sealing.KeyStore(stack.data / "keys" / "keystore.db")
    sealing_secret = store.secret("auth.signing")
    store.close()
    assert {found.path.parent.name for found in search(servers, (), [sealing_secret])} == {"keys"}


def told(found: list[Found]) -> set[str]:
    return {f"{each.path.parent.name}/{each.path.name}: {each.form}" for each in found}


def places(found: list[Found]) -> set[str]:
    return {each.path.name for each in found}
