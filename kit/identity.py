"""Who is calling: JWTs verified locally, opaque tokens exchanged at auth, and the access state polled from Postgres."""

import asyncio
import contextlib
import fnmatch
import hashlib
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from datetime import timezone
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from kit.access import BankFacts, Caller, Grant, Membership, needs_facts, role_of
from kit.database import Database
from kit.errors import LOST, Refusal

UTC = timezone.utc
JWT_SECONDS = 300
JWT_LEEWAY = 5
RENEW_SECONDS = 30
"""A JWT that ends sooner is renewed by those who hold its token."""
POLL_SECONDS = 0.25
STALE_SECONDS = 1.0
_READ_SECONDS = 2.0
_MOST_READS = 5
TEAM = "x-teamlore-team"
ON_BEHALF_OF = "x-teamlore-on-behalf-of"
_OPAQUE = re.compile(r"tlk_[A-Za-z0-9_-]{43}")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

_caller: ContextVar[Caller | None] = ContextVar("teamlore_caller", default=None)


def caller() -> Caller:
    """The authenticated caller of the running call. Raises Refusal CREDENTIAL_MISSING outside of one."""
    found = _caller.get()
    if found is None:
        raise Refusal("CREDENTIAL_MISSING", "send a token in the authorization header")
    return found


def set_caller(value: Caller | None) -> None:
    """Sets the caller of the running call; only the interceptor does."""
    _caller.set(value)


def mint(
    key: Ed25519PrivateKey,
    kid: str,
    audience: str,
    principal: str,
    kind: str,
    token_id: str,
    seconds: int = JWT_SECONDS,
) -> tuple[str, float]:
    """A JWT that carries identity, not grants; gives it and when it ends (Unix seconds)."""
    now = time.time()
    claims = {
        "sub": principal,
        "kind": kind,
        "tid": token_id,
        "aud": audience,
        "iat": int(now),
        "exp": int(now) + seconds,
    }
    return jwt.encode(claims, key, algorithm="EdDSA", headers={"kid": kid}), float(claims["exp"])  # type: ignore[arg-type]


def read_unverified(token: str) -> tuple[str, str, str]:
    """Principal, kind and token id of a JWT that this process has just made itself."""
    claims = jwt.decode(token, options={"verify_signature": False})
    return str(claims["sub"]), str(claims["kind"]), str(claims["tid"])


KeyFetcher = Callable[[], Awaitable[Mapping[str, Ed25519PublicKey]]]


class KeyCache:
    """Public keys by id. A key is published minutes before its first use, so reading them twice a minute suffices.

    Keeps the last good ones when a read fails; an unknown id costs one read per `refresh` seconds at most, one a second
    while auth is away. A moved access state is read at once, for it may mean that a key leaked and was retired.
    """

    def __init__(self, fetch: KeyFetcher, refresh: float = 30.0) -> None:
        self._fetch = fetch
        self._refresh = refresh
        self._keys: Mapping[str, Ed25519PublicKey] = {}
        self._version = 0
        self._read_at = float("-inf")
        self._asked_at = float("-inf")
        self._failed_at: float | None = None
        """When the last read failed; None where it worked."""
        self._lock = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None

    async def get(self, kid: str, version: int = 0) -> Ed25519PublicKey:
        """The key, as of the access state's `version` at least.

        Raises Refusal CREDENTIAL_INVALID for an unknown one, DEPENDENCY_UNAVAILABLE when none can be had.
        """
        if self._keys and version != self._version:
            async with self._lock:
                if version != self._version:
                    # Once a version, whether or not it works: auth may be down, and its keys are good then.
                    self._version = version
                    await self._read_quietly()
        if kid in self._keys:
            if time.monotonic() - self._read_at > self._refresh and self._reading is None:
                self._reading = asyncio.create_task(self._read_quietly())
            return self._keys[kid]
        async with self._lock:
            # Only a read that worked counts in full, so that a service which starts before auth is not shut for long.
            if kid not in self._keys and self._may_ask():
                with contextlib.suppress(Exception):
                    await self._read()
                    self._asked_at = time.monotonic()
                    self._version = version
        if kid not in self._keys:
            if self._failed_at is not None:
                # It may be a key that followed meanwhile: nobody is told that a good credential is none.
                raise Refusal("DEPENDENCY_UNAVAILABLE", "the keys of auth cannot be had", retry_after=1)
            raise Refusal("CREDENTIAL_INVALID", "the token was signed by no key of this deployment")
        return self._keys[kid]

    def _may_ask(self) -> bool:
        now = time.monotonic()
        return now - self._asked_at >= self._refresh and (self._failed_at is None or now - self._failed_at >= 1)

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(_READ_SECONDS):
                self._keys = await self._fetch()
        except Exception:
            self._failed_at = time.monotonic()
            raise
        self._failed_at = None
        self._read_at = time.monotonic()

    async def _read_quietly(self) -> None:
        try:
            await self._read()
        except Exception:
            # The keys held stay good; the next call tries again, once a second at most.
            self._read_at = time.monotonic() - self._refresh + 1
        finally:
            self._reading = None


class AccessState:
    """Who may do what, dropped whenever `auth.access_head` moves. Without a poll for a second it refuses."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._callers: dict[str, Caller | None] = {}
        self._refusals: dict[str, str] = {}
        self._banks: dict[str, BankFacts] = {}
        self._version = -1
        self._last_good = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self.audience = ""
        """Whom this deployment's JWTs are for; known after `start`."""
        self.deployment = ""
        """The id of this deployment, which is one organisation; known after `start`."""

    async def start(self) -> None:
        """Polls once and goes on in the background. Raises what the database raises."""
        row = await self._database.execute_raw("select deployment from auth.access_head")
        self.deployment = str(row["deployment"])
        self.audience = f"teamlore:{self.deployment}"
        await self._poll_once()
        self._task = asyncio.create_task(self._poll())

    async def stop(self) -> None:
        """Ends the polling."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def fresh(self) -> bool:
        """Whether the last good poll is younger than a second."""
        return time.monotonic() - self._last_good < STALE_SECONDS

    @property
    def version(self) -> int:
        """The version of the access state that was seen last; it grows with every change."""
        return self._version

    def require_fresh(self) -> None:
        """Raises Refusal ACCESS_STATE_STALE when the last good poll is older than a second."""
        if not self.fresh:
            raise Refusal("ACCESS_STATE_STALE", "who may do what cannot be read now", retry_after=0.5)

    async def _poll_once(self) -> None:
        started = time.monotonic()
        async with asyncio.timeout(STALE_SECONDS):
            row = await self._database.execute_raw("select version from auth.access_head")
        if row["version"] != self._version:
            self._callers.clear()
            self._refusals.clear()
            self._banks.clear()
            self._version = row["version"]
        self._last_good = started

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self._poll_once()
            except LOST:
                continue

    async def of(self, token_id: str) -> Caller:
        """Who holds the token and may do what now. Raises Refusal when it is unknown, revoked, expired or stale."""
        self.require_fresh()
        if token_id in self._callers:
            found, refused = self._callers[token_id], self._refusals.get(token_id, "")
        else:
            found, refused = await self._load(token_id)
        if refused:
            if refused == "ACCESS_REVOKED":
                raise Refusal("ACCESS_REVOKED", "the principal is suspended; ask an admin")
            raise Refusal("CREDENTIAL_REVOKED", "the token was revoked; ask an admin for a new one")
        if found is None:
            raise Refusal("CREDENTIAL_INVALID", "the token is not one of this deployment")
        if found.expires_at is not None and found.expires_at <= time.time():
            raise Refusal("CREDENTIAL_EXPIRED", "the token has ended; ask an admin for a new one")
        return found

    async def _load(self, token_id: str) -> tuple[Caller | None, str]:
        for _ in range(_MOST_READS):
            version = self._version
            caller, refused = await self.explain(token_id, None) or (None, "")
            if version == self._version:
                break
        else:
            # The state moved each time while it was read: good for this call, but it may be older than what was seen.
            return caller, refused
        if len(self._callers) > 50_000:
            self._callers.clear()
            self._refusals.clear()
        self._callers[token_id] = caller
        if refused:
            self._refusals[token_id] = refused
        return caller, refused

    async def explain(self, token_id: str | None, principal: str | None) -> tuple[Caller, str] | None:
        """What the database says now of a token, or of a principal without one; None for an unknown token.

        Gives the caller and why it is refused: CREDENTIAL_REVOKED, ACCESS_REVOKED or empty.
        """
        row = await self._database.execute_raw(
            "select auth.caller_access($1, $2) as access", token_id, principal
        )
        return None if row["access"] is None else caller_of(json.loads(row["access"]), token_id or "")

    async def facts(self, caller: Caller, bank: str) -> BankFacts | None:
        """What of the bank decides access; None where only the caller does."""
        if not needs_facts(caller, bank):
            return None
        found = self._banks.get(bank)
        if found is None:
            version = self._version
            row = await self._database.execute_raw("select auth.bank_access($1) as access", bank)
            read = json.loads(row["access"])
            found = BankFacts(read["owner"], read["client"])
            # A bank that is not there yet may be made without an access change.
            if version == self._version and (found.owner or found.client) and len(self._banks) < 50_000:
                self._banks[bank] = found
        return found

    async def require(self, caller: Caller, permission: str, bank: str) -> None:
        """Raises Refusal when the caller lacks `permission` on `bank`; a CLIENT bank does not tell that it is there."""
        if caller.may(permission, bank, await self.facts(caller, bank)):
            return
        if bank.startswith("client:"):
            if caller.lost(bank, permission):
                raise Refusal("ACCESS_REVOKED", "your access to this client was taken away")
            raise Refusal("NOT_FOUND", "there is no such object, or you may not see it")
        raise Refusal(
            "PERMISSION_DENIED",
            f"you lack the permission {permission}",
            metadata={"permission": permission},
        )


def caller_of(read: Mapping[str, Any], token_id: str) -> tuple[Caller, str]:
    """The caller that an answer of `auth.caller_access` describes, and why it is refused; empty where it is not."""
    principal, groups = str(read["principal"]), tuple(read["groups"])
    former = read.get("former_groups", ())
    rules: dict[str, list[Grant]] = {"allow": [], "deny": [], "revoked": []}
    own_groups = tuple(read.get("token_groups", ()))
    for subject, pattern, effect, words, revoked in read["rules"]:
        if subject in groups or fnmatch.fnmatchcase(principal, subject):
            word = "deny" if effect == "deny" else "grant"
            by = ", a group of the token itself" if subject in own_groups else ""
            grant = Grant(pattern, frozenset(words), f"{word} {subject} {pattern}{by}")
            rules["revoked" if revoked else effect].append(grant)
        elif subject in former and effect == "allow":
            rules["revoked"].append(Grant(pattern, frozenset(words)))
    rules["revoked"] += [role_of(team) for team in read.get("stepped_down", ())]
    nothing: Mapping[str, Any] = {
        "kind": "",
        "personal": True,
        "session": False,
        "revoked": False,
        "grants": [],
        "origin": [],
    }
    token = read["token"] or nothing
    own, origin = (
        tuple(Grant(pattern, frozenset(words), f"{name} {pattern}") for pattern, words in token[part])
        for part, name in (("grants", f"token {token_id}"), ("origin", "the person's token"))
    )
    caller = Caller(
        principal,
        token["kind"],
        token_id,
        grants=(*rules["allow"], *(origin if token["personal"] else own)),
        denies=tuple(rules["deny"]),
        revoked=tuple(rules["revoked"]),
        ceiling=own if token["personal"] and own else None,
        groups=groups,
        token_groups=own_groups,
        memberships={
            team: Membership(role, status == "active" and not archived)
            for team, role, status, archived in read["memberships"]
        },
        default_access=read["default_access"],
        person_present=token["session"] and token["kind"] == "person",
        expires_at=token.get("expires_at"),
    )
    if token["revoked"]:
        return caller, "CREDENTIAL_REVOKED"
    return caller, "ACCESS_REVOKED" if read["suspended"] else ""


Exchange = Callable[[str], Awaitable[tuple[str, float]]]


class Authenticator:
    """Turns call metadata into a Caller. `exchange` turns an opaque token into a JWT and the time it ends."""

    def __init__(self, keys: KeyCache, access: AccessState, exchange: Exchange) -> None:
        self._keys = keys
        self.access = access
        self._exchange = exchange
        self._jwts: dict[bytes, tuple[str, float]] = {}
        self._renewing: dict[bytes, asyncio.Task[None]] = {}
        self._verified: dict[str, tuple[str, Ed25519PublicKey, Mapping[str, Any]]] = {}

    async def authenticate(self, metadata: Sequence[tuple[str, str]]) -> Caller:
        """The caller. Raises Refusal CREDENTIAL_… when there is no good credential; a principal header is ignored."""
        # First of all: without the access state nobody is let in, and what follows may wait for a database that hangs.
        self.access.require_fresh()
        values = dict(metadata)
        credential = values.get("x-api-key", "")
        scheme, _, bearer = values.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            credential = bearer.strip()
        if not credential:
            raise Refusal("CREDENTIAL_MISSING", "send a token in the authorization header: `Bearer tlk_…`")
        caller = await self._identify(credential)
        if ON_BEHALF_OF in values:
            if caller.kind != "service":
                raise Refusal("PERMISSION_DENIED", "only a service may call on behalf of a principal")
            caller = caller.on_behalf_of(await self._identify(values[ON_BEHALF_OF].strip()))
        teams = [value for key, value in metadata if key == TEAM]
        return self._select(caller, teams) if teams else caller

    async def renew(self, known: Caller) -> Caller:
        """The same caller with the grants of now; for streams. Raises as `authenticate` does."""
        if known.internal:
            return known
        if known.through is not None:
            service = await self.access.of(known.through.token_id)
            return replace(service.on_behalf_of(await self.access.of(known.behalf_token_id)), team=known.team)
        return replace(await self.access.of(known.token_id), team=known.team)

    def _select(self, caller: Caller, teams: Sequence[str]) -> Caller:
        """Narrows the caller to one Team. A body's team id never does that."""
        if len(teams) != 1 or _UUID.fullmatch(teams[0]) is None:
            raise Refusal("INVALID_SCOPE", f"{TEAM} must be exactly one UUID in lower case")
        membership = caller.memberships.get(teams[0])
        if not (membership is not None and membership.active) and not caller.covers("*"):
            raise Refusal(
                "PERMISSION_DENIED", "you are no active member of this Team", metadata={"permission": "team"}
            )
        return replace(caller, team=teams[0])

    async def _identify(self, credential: str) -> Caller:
        if not credential.startswith("tlk_"):
            return await self._verify(credential)
        if _OPAQUE.fullmatch(credential) is None:
            # Never sent to auth, which would answer for its own request's field and be asked in vain.
            raise Refusal("CREDENTIAL_INVALID", "the token is not one of this deployment")
        exchanged = await self._jwt_of(credential)
        try:
            return await self._verify(exchanged)
        except Refusal as refusal:
            if refusal.reason != "CREDENTIAL_INVALID":
                raise
            # The key that signed the JWT we kept may have leaked and been retired; the token itself may be good.
            if self._jwts.pop(hashlib.sha256(credential.encode()).digest(), None) is None:
                raise
            return await self._verify(await self._jwt_of(credential))

    async def _jwt_of(self, token: str) -> str:
        digest = hashlib.sha256(token.encode()).digest()
        held = self._jwts.get(digest)
        if held is None or held[1] <= time.time():
            held = await self._fresh(digest, token)
        elif held[1] < time.time() + RENEW_SECONDS and digest not in self._renewing:
            # Aside, for auth may hang: nobody waits for a new one while the old one is good.
            self._renewing[digest] = asyncio.create_task(self._renew(digest, token))
        return held[0]

    async def _fresh(self, digest: bytes, token: str) -> tuple[str, float]:
        fresh = await self._exchange(token)
        if len(self._jwts) > 10_000:
            self._jwts = {key: value for key, value in self._jwts.items() if value[1] > time.time()}
        self._jwts[digest] = fresh
        return fresh

    async def _renew(self, digest: bytes, token: str) -> None:
        try:
            await self._fresh(digest, token)
        except Exception:
            # The one held is good until it ends; then the caller is told what is wrong. Until then not each call asks.
            await asyncio.sleep(1)
        finally:
            del self._renewing[digest]

    async def _claims(self, token: str) -> Mapping[str, Any]:
        """What a JWT says, once its signature was verified; for as long as its key is published and it lasts."""
        held = self._verified.get(token)
        if held is not None:
            kid, key, claims = held
            if (
                await self._keys.get(kid, self.access.version) is key
                and claims["exp"] > time.time() - JWT_LEEWAY
            ):
                return claims
            del self._verified[token]
        kid = str(jwt.get_unverified_header(token).get("kid", ""))
        key = await self._keys.get(kid, self.access.version)
        claims = jwt.decode(
            token,
            key,
            algorithms=["EdDSA"],
            audience=self.access.audience,
            leeway=JWT_LEEWAY,
            options={"require": ["sub", "exp", "aud"]},
        )
        if len(self._verified) >= 10_000:
            self._verified.clear()
        self._verified[token] = (kid, key, claims)
        return claims

    async def _verify(self, token: str) -> Caller:
        try:
            claims = await self._claims(token)
        except jwt.ExpiredSignatureError as error:
            raise Refusal("CREDENTIAL_EXPIRED", "the JWT has ended; exchange the token again") from error
        except (jwt.PyJWTError, ValueError, UnicodeError) as error:
            raise Refusal("CREDENTIAL_INVALID", "the credential is not one of this deployment") from error
        principal, kind, token_id = (
            str(claims["sub"]),
            str(claims.get("kind", "")),
            str(claims.get("tid", "")),
        )
        if kind == "internal":
            if not principal.startswith("service:") or token_id != principal:
                raise Refusal("CREDENTIAL_INVALID", "the credential is not one of this deployment")
            self.access.require_fresh()
            return Caller(principal, kind, token_id, (), internal=True)
        caller = await self.access.of(token_id)
        if caller.principal != principal:
            raise Refusal("CREDENTIAL_INVALID", "the credential is not one of this deployment")
        return caller


# Which keys an algorithm takes, as RFC 7518 and RFC 8037 name them; no algorithm with a shared secret is among them.
ID_TOKEN_KEYS: Mapping[str, tuple[str, str | None]] = {
    "RS256": ("RSA", None),
    "RS384": ("RSA", None),
    "RS512": ("RSA", None),
    "PS256": ("RSA", None),
    "PS384": ("RSA", None),
    "PS512": ("RSA", None),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}


def id_token_header(token: str, algorithms: Sequence[str]) -> tuple[str, str, str]:
    """Key id (may be empty), algorithm and claimed issuer of an ID token that nobody has verified yet.

    Raises Refusal CREDENTIAL_INVALID for what is no ID token under one of `algorithms`.
    """
    try:
        header = jwt.get_unverified_header(token)
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, UnicodeError, RecursionError) as error:
        raise bad_id_token() from error
    kid, algorithm, kind = header.get("kid", ""), str(header.get("alg")), header.get("typ", "JWT")
    if algorithm not in algorithms or algorithm not in ID_TOKEN_KEYS or not isinstance(kid, str):
        raise bad_id_token()
    # Access and logout tokens of the same issuer say what they are (RFC 9068); neither proves a sign-in.
    if "crit" in header or not isinstance(kind, str) or kind.upper() != "JWT":
        raise bad_id_token()
    return kid, algorithm, str(claims.get("iss", ""))


def verify_id_token(
    token: str, jwk: Mapping[str, Any], algorithm: str, issuer: str, audience: str, leeway: float
) -> Mapping[str, Any]:
    """The claims of an ID token that `jwk` signed for `audience`. Raises Refusal CREDENTIAL_INVALID or _EXPIRED."""
    try:
        key = jwt.PyJWK.from_dict(dict(jwk), algorithm=algorithm)
        if jwk.get("kty") == "RSA" and key.key.key_size < 2048:
            raise bad_id_token()
        claims = jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            audience=audience,
            issuer=issuer,
            leeway=leeway,
            options={"require": ["iss", "sub", "aud", "exp", "iat"]},
        )
    except jwt.ExpiredSignatureError as error:
        raise Refusal("CREDENTIAL_EXPIRED", "the ID token has ended; sign in again") from error
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError, AttributeError) as error:
        raise bad_id_token() from error
    several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    if (several or "azp" in claims) and claims.get("azp") != audience:
        raise bad_id_token()
    return claims


def bad_id_token() -> Refusal:
    """The one refusal of an ID token; what is wrong with it helps only who forges one."""
    return Refusal("CREDENTIAL_INVALID", "the ID token is not one that starts a session here")
