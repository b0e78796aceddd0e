"""Every call × every credential, from the descriptors: a new call cannot escape, a permission cannot be forgotten."""

import asyncio
import base64
import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import asyncpg
import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from teamlore.auth.v1 import access_pb2, access_pb2_grpc, auth_pb2, auth_pb2_grpc
from teamlore.common.v1.access_pb2 import Permission
from teamlore.sync.v1 import sync_pb2

from kit import sealing
from kit.access import PERMISSIONS
from kit.authorising import access_of
from tests.integration.calls import Metadata, Outcome, call, outcome_of, service_of
from tests.integration.conftest import RunningStack
from tests.test_descriptors import methods

BANK, OTHER = "project:matrix-1a2b3c4d", "project:matrix-5e6f7a8b"
# Nothing of the matrix writes here; its calls archive BANK.
THERE = "project:matrix-9c0d1e2f"
TEAM, FOREIGN = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))
ALL = " ".join(PERMISSIONS)
REFUSED = {"PERMISSION_DENIED", "PERSON_REQUIRED", "ACCESS_REVOKED"}
CREDENTIAL = {"CREDENTIAL_MISSING", "CREDENTIAL_INVALID", "CREDENTIAL_EXPIRED", "CREDENTIAL_REVOKED"}


@dataclass(frozen=True)
class Holder:
    """A credential, what it gives on BANK, and what the answer must be where it is no credential at all."""

    name: str
    metadata: Metadata
    holds: frozenset[str] = frozenset()
    everywhere: bool = False
    internal: bool = False
    person: bool = False
    refused: str = ""
    bank: str = BANK
    behalf: bool = field(default=False)


def bearer(token: str) -> Metadata:
    return (("authorization", f"Bearer {token}"),)


async def signing_key(stack: RunningStack) -> tuple[str, Ed25519PrivateKey, str]:
    """The deployment's own key: with it a test can sign what auth never would."""
    database = await asyncpg.connect(stack.facts.database_url)
    row = await database.fetchrow(
        "select kid, sealed_private_key from auth.signing_keys where retired_at is null"
        " and active_from <= now() order by active_from desc limit 1"
    )
    audience = f"teamlore:{await database.fetchval('select deployment from auth.access_head')}"
    await database.close()
    store = sealing.KeyStore(stack.data / "keys" / "keystore.db")
    raw = sealing.unseal(store.secret("auth.signing"), "auth.signing", row["kid"], row["sealed_private_key"])
    store.close()
    return row["kid"], Ed25519PrivateKey.from_private_bytes(raw), audience


async def forged(stack: RunningStack, token_id: str) -> list[Holder]:
    """JWTs that differ from a good one in one thing each."""
    kid, key, audience = await signing_key(stack)
    now = int(time.time())
    claims = {
        "sub": "user:full",
        "kind": "person",
        "tid": token_id,
        "aud": audience,
        "iat": now,
        "exp": now + 300,
    }

    def signed(by: Any, algorithm: str = "EdDSA", header: str = kid, **changes: Any) -> Metadata:
        return bearer(jwt.encode({**claims, **changes}, by, algorithm=algorithm, headers={"kid": header}))

    def b64(part: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")

    public = key.public_key().public_bytes_raw()
    none = f"{b64({'alg': 'none', 'kid': kid})}.{b64(claims)}."
    invalid = "CREDENTIAL_INVALID"
    return [
        Holder("JWT expired", signed(key, exp=now - 60), refused="CREDENTIAL_EXPIRED"),
        Holder("JWT of another audience", signed(key, aud="teamlore:another"), refused=invalid),
        Holder("JWT without audience", signed(key, aud=None), refused=invalid),
        Holder("JWT of another key", signed(Ed25519PrivateKey.generate()), refused=invalid),
        Holder("JWT of an unknown key id", signed(key, header="nobody"), refused=invalid),
        Holder("JWT with alg none", bearer(none), refused=invalid),
        Holder("JWT with HS256 of the public key", signed(public, "HS256"), refused=invalid),
        Holder("JWT of an unknown token", signed(key, tid="f" * 16), refused=invalid),
        Holder("JWT of another principal", signed(key, sub="user:admin"), refused=invalid),
        Holder(
            "JWT that says internal by a person", signed(key, kind="internal", tid=token_id), refused=invalid
        ),
    ]


async def made(stack: RunningStack) -> list[Holder]:
    """All holders of the matrix."""
    async with stack.channel("auth") as channel:
        access = access_pb2_grpc.AccessServiceStub(channel)
        auth = auth_pb2_grpc.AuthServiceStub(channel)
        admin = bearer(stack.admin)

        async def token(
            principal: str, words: str, pattern: str = BANK, kind: str = "agent", **more: Any
        ) -> str:
            grants = [access_pb2.Grant(pattern=pattern, permissions=words.split())] if words else []
            request = access_pb2.CreateTokenRequest(principal=principal, kind=kind, grants=grants, **more)
            return str((await access.CreateToken(request, metadata=admin)).token)

        async def grant(subject: str, words: str, pattern: str, effect: str = "allow") -> None:
            rule = access_pb2.AccessGrant(
                subject=subject, pattern=pattern, permissions=words.split(), effect=effect
            )
            await access.PutGrant(access_pb2.PutGrantRequest(grant=rule), metadata=admin)

        soon = auth_pb2.WhoAmIResponse().expires_at
        soon.FromMilliseconds(int(time.time() * 1000) + 1500)
        expired = await token("user:expired", ALL, expires_at=soon)
        revoked = await token("user:revoked", ALL)
        who = await auth.WhoAmI(auth_pb2.WhoAmIRequest(), metadata=bearer(revoked))
        await access.RevokeToken(access_pb2.RevokeTokenRequest(token_id=who.token_id), metadata=admin)
        suspended = await token("user:suspended", ALL)
        await access.SuspendPrincipal(
            access_pb2.SuspendPrincipalRequest(principal="user:suspended"), metadata=admin
        )
        present = await auth.StartSession(auth_pb2.StartSessionRequest(person_token=stack.admin))
        grants = [access_pb2.Grant(pattern="*", permissions=ALL.split())]
        made = access_pb2.CreateTokenRequest(principal="user:full", kind="person", grants=grants)
        person = (await access.CreateToken(made, metadata=bearer(present.session_token))).token
        await grant("user:full", ALL, "*")
        session = await auth.StartSession(auth_pb2.StartSessionRequest(person_token=person))
        await access.PutGroup(
            access_pb2.PutGroupRequest(group="team:matrix", members=["user:grouped"]), metadata=admin
        )
        await grant("team:matrix", "read", BANK)
        denied = await token("user:denied", ALL, "*")
        await grant("user:denied", ALL, BANK, "deny")
        full_agent, reader = await token("user:full", ALL, "*"), await token("user:reader", "read")
        service = await token("service:ci", ALL, "*", "service")
        narrow_service = await token("service:narrow", "read", kind="service")
        everything = frozenset(PERMISSIONS)
        read = frozenset(("read",))
        grouped = await token("user:grouped", "")
        narrow = access_pb2.CreatePersonalKeyRequest(
            grants=[access_pb2.Grant(pattern=BANK, permissions=["read", "admin"])]
        )
        key = (await access.CreatePersonalKey(narrow, metadata=bearer(session.session_token))).token
        await asyncio.sleep(max(0.0, soon.ToMilliseconds() / 1000 - time.time()) + 0.1)
        return [
            Holder("nothing", (), refused="CREDENTIAL_MISSING"),
            Holder("an empty bearer", bearer(""), refused="CREDENTIAL_MISSING"),
            Holder("a word", bearer("hello"), refused="CREDENTIAL_INVALID"),
            Holder("an unknown token", bearer("tlk_" + "A" * 43), refused="CREDENTIAL_INVALID"),
            Holder("an expired token", bearer(expired), refused="CREDENTIAL_EXPIRED"),
            Holder("a revoked token", bearer(revoked), refused="CREDENTIAL_REVOKED"),
            Holder("a suspended principal", bearer(suspended), refused="ACCESS_REVOKED"),
            *await forged(stack, session.token_id),
            Holder(
                "a person with all", bearer(session.session_token), everything, everywhere=True, person=True
            ),
            Holder("a person's stored token, nobody present", bearer(person), everything, everywhere=True),
            Holder("a key of theirs narrowed to one bank", bearer(key), frozenset(("read", "admin"))),
            Holder("an agent with all", bearer(full_agent), everything, everywhere=True),
            Holder(
                "an agent with all, PRIVATE of another",
                bearer(full_agent),
                everywhere=True,
                bank="private:user:x",
            ),
            Holder("all on another bank", bearer(await token("user:other", ALL, OTHER))),
            *[
                Holder(f"{word} alone", bearer(await token(f"user:{word}", word)), frozenset((word,)))
                for word in PERMISSIONS
            ],
            Holder(
                "a forged principal header",
                (
                    *bearer(reader),
                    ("x-teamlore-principal", "user:full"),
                    ("x-astrocyte-principal", "user:full"),
                ),
                read,
            ),
            Holder("a deny rule", bearer(denied)),
            Holder("a member of a group", bearer(grouped), read),
            Holder(
                "a service on behalf of a reader",
                (*bearer(service), ("x-teamlore-on-behalf-of", reader)),
                read,
            ),
            Holder(
                "a reading service on behalf of one with all",
                (*bearer(narrow_service), ("x-teamlore-on-behalf-of", session.session_token)),
                read,
            ),
            Holder(
                "an agent on behalf of another",
                (*bearer(reader), ("x-teamlore-on-behalf-of", full_agent)),
                refused="PERMISSION_DENIED",
            ),
            Holder("another service of the deployment", bearer(stack.facts.tokens["sync"]), internal=True),
        ]


@pytest.fixture(scope="module")
def holders(stack: RunningStack) -> list[Holder]:
    return asyncio.run(made(stack))


def request_for(method: MethodDescriptor, bank: str) -> bytes:
    """The least request that says what is to be authorised; the rest of it may be wrong."""
    access = access_of(method)
    message: Any = message_factory.GetMessageClass(method.input_type)()
    rule = access.WhichOneof("rule")
    if rule in ("bank", "banks", "pattern"):
        at: Any = message
        *parents, last = getattr(access, rule).split(".")
        for part in parents:
            at = (
                getattr(at, part).add()
                if at.DESCRIPTOR.fields_by_name[part].is_repeated
                else getattr(at, part)
            )
        if at.DESCRIPTOR.fields_by_name[last].is_repeated:
            getattr(at, last).append(bank)
        else:
            setattr(at, last, bank)
    elif rule == "resource":
        setattr(message, access.resource, "0" * 32)
    return bytes(message.SerializeToString())


def expected(method: MethodDescriptor, holder: Holder) -> set[str]:
    """Which reasons are right; empty: any but a refusal of access."""
    access = access_of(method)
    rule = access.WhichOneof("rule")
    if rule == "public":
        return set()
    if holder.refused:
        return {holder.refused}
    word = Permission.Name(access.permission).removeprefix("PERMISSION_").lower()
    allowed = {
        "bank": word in holder.holds,
        "banks": word in holder.holds,
        "pattern": "admin" in holder.holds or (holder.everywhere and holder.bank == BANK),
        "deployment": holder.everywhere,
        "internal": holder.internal,
        "self": True,
        "resource": False,
    }[str(rule)]
    if rule == "resource":
        return {"NOT_FOUND"}
    if rule == "pattern" and holder.bank != BANK:
        # Admin on `*` covers the pattern's text, yet what it gives never reaches the PRIVATE bank itself.
        allowed = True
    if not allowed:
        return {"PERMISSION_DENIED"}
    return {"PERSON_REQUIRED"} if access.person and not holder.person else set()


@pytest.mark.parametrize("method", methods(), ids=lambda m: m.full_name)
async def test_every_call_with_every_credential(
    stack: RunningStack, holders: Sequence[Holder], method: MethodDescriptor
) -> None:
    wrong = []
    async with stack.channel(service_of(method)) as channel:
        for holder in holders:
            seen = await call(channel, method, request_for(method, holder.bank), holder.metadata)
            right = expected(method, holder)
            # A handler may refuse by the same words what the caller asks about another; here nobody is named.
            fine = seen.reason in right if right else seen.reason not in REFUSED | CREDENTIAL
            if not fine or seen.code in ("INTERNAL", "UNKNOWN", "UNIMPLEMENTED"):
                wrong.append(f"{holder.name}: {seen.code} {seen.reason}, not {right or 'an answer'}")
    assert wrong == []


BANK_CALLS = [method for method in methods() if access_of(method).WhichOneof("rule") in ("bank", "banks")]


@pytest.mark.parametrize("method", BANK_CALLS, ids=lambda m: m.full_name)
async def test_a_refusal_does_not_tell_whether_the_bank_is_there(
    stack: RunningStack, holders: Sequence[Holder], method: MethodDescriptor
) -> None:
    stranger = next(holder for holder in holders if holder.name == "all on another bank")
    admin = bearer(stack.admin)
    async with stack.channel("sync") as channel:
        record = sync_pb2.Record(id=uuid.uuid4().hex[:16], text="there is something here")
        await stack.sync(channel).Push(sync_pb2.PushRequest(bank=THERE, records=[record]), metadata=admin)
    async with stack.channel(service_of(method)) as channel:
        there = await call(channel, method, request_for(method, THERE), stranger.metadata)
        absent = await call(channel, method, request_for(method, "project:never-there"), stranger.metadata)
    assert there.reason == "PERMISSION_DENIED"
    assert there == absent


@dataclass(frozen=True)
class Clients:
    """Credentials around the CLIENT bank of a Team."""

    bank: str
    never: Metadata
    granted: Metadata
    revoked: Metadata
    owner: Metadata
    stopped: Metadata


@pytest.fixture(scope="module")
def clients(stack: RunningStack) -> Clients:
    async def make() -> Clients:
        async with stack.channel("auth") as channel:
            access, admin = access_pb2_grpc.AccessServiceStub(channel), bearer(stack.admin)
            for team in (TEAM, FOREIGN):
                await access.PutTeam(access_pb2.PutTeamRequest(team_id=team, name="a Team"), metadata=admin)
            put = access_pb2.PutClientRequest(team_id=TEAM, client_id="acme")
            bank = (await access.PutClient(put, metadata=admin)).bank
            members = {
                "client-member": ("member", "active"),
                "client-owner": ("owner", "active"),
                "client-stopped": ("owner", "suspended"),
            }
            for name, (role, status) in members.items():
                await access.PutMembership(
                    access_pb2.PutMembershipRequest(
                        team_id=TEAM, principal=f"user:{name}", role=role, status=status
                    ),
                    metadata=admin,
                )
            for name in ("client-member", "client-gone"):
                rule = access_pb2.AccessGrant(
                    subject=f"user:{name}", pattern=bank, permissions=ALL.split(), effect="allow"
                )
                await access.PutGrant(access_pb2.PutGrantRequest(grant=rule), metadata=admin)
            gone = access_pb2.DeleteGrantRequest(subject="user:client-gone", pattern=bank, effect="allow")
            await access.DeleteGrant(gone, metadata=admin)
        names = ("client-never", "client-member", "client-gone", "client-owner", "client-stopped")
        tokens = [bearer(await stack.token(f"user:{name}", ("project:none", "read"))) for name in names]
        return Clients(bank, *tokens)

    return asyncio.run(make())


@pytest.mark.parametrize("method", BANK_CALLS, ids=lambda m: m.full_name)
async def test_a_client_bank_hides_itself(
    stack: RunningStack, clients: Clients, method: MethodDescriptor
) -> None:
    unknown = f"client:{TEAM}:nobody"
    word = Permission.Name(access_of(method).permission).removeprefix("PERMISSION_").lower()

    def full(words: Outcome) -> bool:
        return words.reason not in REFUSED | CREDENTIAL

    async with stack.channel(service_of(method)) as channel:

        async def tried(who: Metadata, bank: str = clients.bank) -> Outcome:
            return await call(channel, method, request_for(method, bank), who)

        assert (await tried(clients.never)).reason == "NOT_FOUND"
        assert await tried(clients.never) == await tried(clients.never, unknown)
        assert (await tried(clients.revoked)).reason == "ACCESS_REVOKED"
        assert (await tried(clients.stopped)).reason == "ACCESS_REVOKED"
        assert (await tried(clients.granted, unknown)).reason == "NOT_FOUND"
        assert full(await tried(clients.granted))
        # Full access of a Team's owner leaves out comply, which is given by name alone.
        owner = await tried(clients.owner)
        assert owner.reason == "NOT_FOUND" if word == "comply" else full(owner)
        team = "x-teamlore-team"
        assert full(await tried((*clients.granted, (team, TEAM))))
        assert (await tried((*clients.granted, (team, FOREIGN)))).reason == "PERMISSION_DENIED"
        for malformed in ("", "acme", TEAM.upper() + "A", f"{TEAM},{FOREIGN}"):
            assert (await tried((*clients.granted, (team, malformed)))).reason == "INVALID_SCOPE"
        twice = (*clients.granted, (team, TEAM), (team, TEAM))
        assert (await tried(twice)).reason == "INVALID_SCOPE"
        elsewhere = await tried((*bearer(stack.admin), (team, FOREIGN)))
        assert elsewhere.reason == "NOT_FOUND"


async def test_a_body_never_widens(stack: RunningStack) -> None:
    """The author is who called, whatever the record claims; a tenant other than ours is refused."""
    token = bearer(await stack.token("user:reader2", (THERE, "read write")))
    record = sync_pb2.Record(id=uuid.uuid4().hex[:16], text=f"a claim {uuid.uuid4()}")
    record.metadata["_actor"].string_value = "user:full"
    async with stack.channel("sync") as channel:
        await stack.sync(channel).Push(sync_pb2.PushRequest(bank=THERE, records=[record]), metadata=token)
    database = await asyncpg.connect(stack.facts.database_url)
    assert (
        await database.fetchval("select author from memory.memories where id = $1", record.id)
        == "user:reader2"
    )
    await database.close()
    async with stack.channel("auth") as channel:
        put = access_pb2.PutBankRequest(bank=THERE, tenant_id="another-organisation")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await access_pb2_grpc.AccessServiceStub(channel).PutBank(put, metadata=bearer(stack.admin))
    assert outcome_of(caught.value).reason == "INVALID_SCOPE"


def test_the_matrix_would_see_a_hole() -> None:
    """The expectation itself is no rubber stamp: it refuses each word to those who hold another."""
    push = next(method for method in methods() if method.name == "Push")
    reader = Holder("r", (), frozenset(("read",)))
    assert expected(push, reader) == {"PERMISSION_DENIED"}
    assert expected(push, replace(reader, holds=frozenset(("write",)))) == set()
