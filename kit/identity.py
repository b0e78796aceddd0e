"""Who is calling: JWTs verified locally, opaque tokens exchanged at auth, and the access state polled from Postgres."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timezone
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from kit.access import Caller, Grant
from kit.database import Database
from kit.errors import LOST, Refusal

UTC = timezone.utc
AUDIENCE = "teamlore"
JWT_SECONDS = 300
POLL_SECONDS = 0.25
STALE_SECONDS = 1.0
_REFRESH_SECONDS = 30.0

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


def mint(key: Ed25519PrivateKey, kid: str, principal: str, kind: str, token_id: str) -> tuple[str, float]:
    """A 5-minute JWT that carries identity, not grants; gives it and when it ends (Unix seconds)."""
    now = time.time()
    claims = {
        "sub": principal,
        "kind": kind,
        "tid": token_id,
        "aud": AUDIENCE,
        "iat": int(now),
        "exp": int(now) + JWT_SECONDS,
    }
    return jwt.encode(claims, key, algorithm="EdDSA", headers={"kid": kid}), float(claims["exp"])  # type: ignore[arg-type]


def read_unverified(token: str) -> tuple[str, str, str]:
    """Principal, kind and token id of a JWT that this process has just made itself."""
    claims = jwt.decode(token, options={"verify_signature": False})
    return str(claims["sub"]), str(claims["kind"]), str(claims["tid"])


KeyFetcher = Callable[[], Awaitable[Mapping[str, Ed25519PublicKey]]]


class KeyCache:
    """Public keys by id. Keeps the last good ones when a refresh fails; an unknown id costs one refresh per 30 s."""

    def __init__(self, fetch: KeyFetcher) -> None:
        self._fetch = fetch
        self._keys: Mapping[str, Ed25519PublicKey] = {}
        self._next_refresh = 0.0
        self._lock = asyncio.Lock()

    async def get(self, kid: str) -> Ed25519PublicKey:
        """The key. Raises Refusal CREDENTIAL_INVALID for an unknown one, DEPENDENCY_UNAVAILABLE when none can be had."""
        if kid not in self._keys:
            async with self._lock:
                if kid not in self._keys and time.monotonic() >= self._next_refresh:
                    try:
                        self._keys = await self._fetch()
                        self._next_refresh = time.monotonic() + _REFRESH_SECONDS
                    except Exception as error:
                        if not self._keys:
                            raise Refusal(
                                "DEPENDENCY_UNAVAILABLE", "the keys of auth cannot be had", retry_after=1
                            ) from error
        if kid not in self._keys:
            raise Refusal("CREDENTIAL_INVALID", "the token was signed by no key of this deployment")
        return self._keys[kid]


@dataclass(frozen=True)
class TokenAccess:
    """What the database says of a token."""

    grants: tuple[Grant, ...]
    expires_at: float | None
    revoked: bool


class AccessState:
    """The grants of tokens, dropped whenever `auth.access_head` moves. Without a poll for a second it refuses."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tokens: dict[str, TokenAccess | None] = {}
        self._version = -1
        self._last_good = 0.0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Polls once and goes on in the background. Raises what the database raises."""
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

    async def _poll_once(self) -> None:
        started = time.monotonic()
        async with asyncio.timeout(STALE_SECONDS):
            row = await self._database.execute_raw("select version from auth.access_head")
        if row["version"] != self._version:
            self._tokens.clear()
            self._version = row["version"]
        self._last_good = started

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self._poll_once()
            except LOST:
                continue

    async def of(self, token_id: str) -> TokenAccess:
        """What the token may do now. Raises Refusal when it is unknown, revoked, expired or the state is stale."""
        if not self.fresh:
            raise Refusal("ACCESS_STATE_STALE", "who may do what cannot be read now", retry_after=0.5)
        if token_id not in self._tokens:
            version = self._version
            row = await self._database.execute_raw("select * from auth.token_access($1)", token_id)
            access = None if row is None else _token_access(row)
            if version == self._version:
                self._tokens[token_id] = access
        else:
            access = self._tokens[token_id]
        if access is None:
            raise Refusal("CREDENTIAL_INVALID", "the token is not one of this deployment")
        if access.revoked:
            raise Refusal("CREDENTIAL_REVOKED", "the token was revoked; ask an admin for a new one")
        if access.expires_at is not None and access.expires_at <= time.time():
            raise Refusal("CREDENTIAL_EXPIRED", "the token has ended; ask an admin for a new one")
        return access


def _token_access(row: Any) -> TokenAccess:
    grants = tuple(
        Grant(p, frozenset(words.split(",")))
        for p, words in zip(row["patterns"], row["permissions"], strict=True)
    )
    expires = row["expires_at"].timestamp() if row["expires_at"] else None
    return TokenAccess(grants, expires, row["revoked_at"] is not None)


Exchange = Callable[[str], Awaitable[tuple[str, float]]]


class Authenticator:
    """Turns call metadata into a Caller. `exchange` turns an opaque token into a JWT and the time it ends."""

    def __init__(self, keys: KeyCache, access: AccessState, exchange: Exchange) -> None:
        self._keys = keys
        self.access = access
        self._exchange = exchange
        self._jwts: dict[bytes, tuple[str, float]] = {}

    async def authenticate(self, metadata: Mapping[str, str]) -> Caller:
        """The caller. Raises Refusal CREDENTIAL_… when there is no good credential; a principal header is ignored."""
        credential = metadata.get("x-api-key", "")
        scheme, _, bearer = metadata.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            credential = bearer.strip()
        if not credential:
            raise Refusal("CREDENTIAL_MISSING", "send a token in the authorization header: `Bearer tlk_…`")
        if credential.startswith("tlk_"):
            credential = await self._jwt_of(credential)
        return await self._verify(credential)

    async def renew(self, known: Caller) -> Caller:
        """The same caller with the grants of now; for streams. Raises as `authenticate` does."""
        if known.internal:
            return known
        access = await self.access.of(known.token_id)
        return Caller(known.principal, known.kind, known.token_id, access.grants)

    async def _jwt_of(self, token: str) -> str:
        digest = hashlib.sha256(token.encode()).digest()
        held = self._jwts.get(digest)
        if held is None or held[1] < time.time() + 30:
            try:
                fresh = await self._exchange(token)
            except Refusal as refusal:
                if refusal.rule.http != 503 or held is None or held[1] <= time.time():
                    raise
                fresh = held
            if len(self._jwts) > 10_000:
                self._jwts = {key: value for key, value in self._jwts.items() if value[1] > time.time()}
            held = self._jwts[digest] = fresh
        return held[0]

    async def _verify(self, token: str) -> Caller:
        try:
            kid = str(jwt.get_unverified_header(token).get("kid", ""))
            key = await self._keys.get(kid)
            claims = jwt.decode(
                token,
                key,
                algorithms=["EdDSA"],
                audience=AUDIENCE,
                leeway=5,
                options={"require": ["sub", "exp", "aud"]},
            )
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
            if not self.access.fresh:
                raise Refusal("ACCESS_STATE_STALE", "who may do what cannot be read now", retry_after=0.5)
            return Caller(principal, kind, token_id, (), internal=True)
        access = await self.access.of(token_id)
        return Caller(principal, kind, token_id, access.grants)
