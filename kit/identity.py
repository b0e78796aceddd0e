"""Who is calling: JWTs verified locally, opaque tokens exchanged at auth, and ID tokens of an issuer."""

import asyncio
import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from datetime import timezone
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from kit.access import Caller
from kit.access_state import AccessState
from kit.errors import Refusal
from kit.key_cache import KeyCache

UTC = timezone.utc
JWT_SECONDS = 300
JWT_LEEWAY = 5
RENEW_SECONDS = 30
"""A JWT that ends sooner is renewed by those who hold its token."""
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
