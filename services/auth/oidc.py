"""Sign-in at an OIDC issuer: its keys, kept up to date, and what an ID token of it says about a person."""

import asyncio
import hashlib
import ipaddress
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2

from kit import identity
from kit.errors import Refusal

log = logging.getLogger("teamlore.auth")
LEEWAY_SECONDS = 30.0
KEYS_SECONDS = 300.0
UNKNOWN_SECONDS = 30.0
OLDEST_SECONDS = 86_400.0
"""How long the last good keys serve while the issuer cannot be read."""
_TIMEOUT_SECONDS = 5.0
_LONGEST_SECONDS = 10 * 365 * 86_400.0
_LARGEST_ANSWER = 256 * 1024
_MOST_KEYS, _MOST_GROUPS = 100, 200
_PRINCIPAL = re.compile(r"user:[A-Za-z0-9._@-]{1,100}")
_GROUP = re.compile(r"team:[A-Za-z0-9._@-]{1,100}")

Jwk = Mapping[str, Any]
Get = Callable[[str], Awaitable[Mapping[str, Any]]]


class IssuerAway(Exception):
    """The issuer gave no usable answer; the text says what was wrong and holds nothing of the answer."""


@dataclass(frozen=True)
class Issuer:
    """The configured issuer and how its claims name people and groups; no `url` means that there is none."""

    url: str = ""
    audience: str = ""
    scopes: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ()
    principal_claim: str = "email"
    principal_prefix: str = "user:"
    groups_claim: str = ""
    group_prefix: str = "team:"

    def __post_init__(self) -> None:
        """Raises RuntimeError for a setting that cannot be meant."""
        if not self.url:
            return
        if not _safe(self.url) or urlsplit(self.url).query or urlsplit(self.url).fragment:
            raise RuntimeError("TEAMLORE_OIDC_ISSUER must be an https address; http is for loopback alone")
        if not self.audience:
            raise RuntimeError(
                "TEAMLORE_OIDC_AUDIENCE must be the client id where TEAMLORE_OIDC_ISSUER is set"
            )
        if not self.algorithms or not set(self.algorithms) <= set(identity.ID_TOKEN_KEYS):
            raise RuntimeError(
                f"TEAMLORE_OIDC_ALGORITHMS must be some of {', '.join(identity.ID_TOKEN_KEYS)}: "
                "a signature that its reader could make proves nothing"
            )
        if not _PRINCIPAL.fullmatch(self.principal_prefix + "x"):
            raise RuntimeError("TEAMLORE_OIDC_PRINCIPAL_PREFIX must begin with `user:`")
        if not _GROUP.fullmatch(self.group_prefix + "x"):
            raise RuntimeError("TEAMLORE_OIDC_GROUP_PREFIX must begin with `team:`")
        if not self.principal_claim or "openid" not in self.scopes:
            raise RuntimeError("TEAMLORE_OIDC_PRINCIPAL_CLAIM and the scope openid must be given")


@dataclass(frozen=True)
class SignIn:
    """What an ID token proves: who, in which groups, until when (Unix seconds); and by which hash it is used once."""

    principal: str
    groups: tuple[str, ...]
    ends_at: float
    token_hash: bytes


def read_claims(issuer: Issuer, claims: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Principal and groups of verified claims. Raises Refusal CREDENTIAL_INVALID where they name no principal."""
    value = claims.get(issuer.principal_claim)
    if not isinstance(value, str):
        raise identity.bad_id_token()
    if issuer.principal_claim == "email":
        if claims.get("email_verified") is not True:
            raise identity.bad_id_token()
        # One mailbox is one person however it is written: another spelling must not slip past a deny or a suspension.
        # ASCII alone, for some other letters become ASCII ones by lower().
        value = value.lower() if value.isascii() else ""
    principal = issuer.principal_prefix + value
    if not _PRINCIPAL.fullmatch(principal):
        raise identity.bad_id_token()
    listed = claims.get(issuer.groups_claim) if issuer.groups_claim else None
    groups = {
        issuer.group_prefix + name: None
        for name in (listed if isinstance(listed, list) else ())
        if isinstance(name, str) and _GROUP.fullmatch(issuer.group_prefix + name)
    }
    return principal, tuple(groups)[:_MOST_GROUPS]


class IssuerKeys:
    """The issuer's public keys. Keeps the last good ones; one read at a time serves all who wait for it."""

    def __init__(self, url: str, get: Get, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._get = get
        self._clock = clock
        self._keys: Sequence[Jwk] = ()
        self._read_at = float("-inf")
        self._failed_at = float("-inf")
        self._asked_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def find(self, kid: str, algorithm: str) -> Jwk:
        """The key that signed. Raises Refusal CREDENTIAL_INVALID where there is none, DEPENDENCY_UNAVAILABLE unread."""
        now = self._clock()
        if now - self._read_at > KEYS_SECONDS and now - self._failed_at > (
            UNKNOWN_SECONDS if self._keys else 1
        ):
            await self._read()
        if not self._keys or self._clock() - self._read_at > OLDEST_SECONDS:
            raise _away()
        found = self._match(kid, algorithm)
        if found is None and self._clock() - self._asked_at >= UNKNOWN_SECONDS:
            self._asked_at = self._clock()
            await self._read()
            found = self._match(kid, algorithm)
        if found is None:
            raise _away() if self._failed_at > self._read_at else identity.bad_id_token()
        return found

    def _match(self, kid: str, algorithm: str) -> Jwk | None:
        kind, curve = identity.ID_TOKEN_KEYS[algorithm]
        found = [
            key
            for key in self._keys
            if key.get("kty") == kind
            and (curve is None or key.get("crv") == curve)
            and key.get("use", "sig") == "sig"
            and key.get("alg", algorithm) == algorithm
            and (not kid or key.get("kid") == kid)
        ]
        # Without a key id only an issuer with one key says clearly which one it was.
        return found[0] if len(found) == 1 else None

    async def _read(self) -> None:
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_once())
        # A caller that goes away must not end the read that others wait for.
        await asyncio.shield(self._reading)

    async def _read_once(self) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                # Read together: where the keys lie may move as well.
                known = await self._get(self._url.rstrip("/") + "/.well-known/openid-configuration")
                if known.get("issuer") != self._url:
                    raise IssuerAway("its discovery document names another issuer")
                where = known.get("jwks_uri")
                if not isinstance(where, str) or not _safe(where):
                    raise IssuerAway("its discovery document names no https address of keys")
                listed = (await self._get(where)).get("keys")
            if not isinstance(listed, list) or not listed or len(listed) > _MOST_KEYS:
                raise IssuerAway("it gives no list of keys, or too many")
            self._keys = [key for key in listed if isinstance(key, dict)]
            self._read_at = self._clock()
        except (IssuerAway, TimeoutError) as error:
            self._failed_at = self._clock()
            log.warning("the keys of the OIDC issuer cannot be read: %s", error or "no answer in time")
        finally:
            self._reading = None


class SignIns:
    """Verifies ID tokens of the configured issuer."""

    def __init__(self, issuer: Issuer, keys: IssuerKeys | None = None) -> None:
        self.issuer = issuer
        self._keys = keys or IssuerKeys(issuer.url, get_json)

    async def verify(self, token: str) -> SignIn:
        """What the token proves. Raises Refusal CREDENTIAL_INVALID, CREDENTIAL_EXPIRED or DEPENDENCY_UNAVAILABLE."""
        if not self.issuer.url:
            raise identity.bad_id_token()
        kid, algorithm, issuer = identity.id_token_header(token, self.issuer.algorithms)
        # A token that names another issuer costs the configured one no request.
        if issuer != self.issuer.url:
            raise identity.bad_id_token()
        key = await self._keys.find(kid, algorithm)
        claims = identity.verify_id_token(
            token, key, algorithm, self.issuer.url, self.issuer.audience, LEEWAY_SECONDS
        )
        principal, groups = read_claims(self.issuer, claims)
        # Without the signature: of some algorithms a second good one can be made from the first.
        signed = token.rpartition(".")[0]
        ends = min(float(claims["exp"]), time.time() + _LONGEST_SECONDS) + LEEWAY_SECONDS
        return SignIn(principal, groups, ends, hashlib.sha256(signed.encode()).digest())


async def get_json(url: str, transport: httpx2.AsyncBaseTransport | None = None) -> Mapping[str, Any]:
    """The JSON object at `url`, which must be short; no redirect is followed. Raises IssuerAway."""
    try:
        async with (
            httpx2.AsyncClient(timeout=_TIMEOUT_SECONDS, transport=transport) as client,
            # Uncompressed, so that what is counted is what arrives.
            client.stream(
                "GET", url, headers={"Accept": "application/json", "Accept-Encoding": "identity"}
            ) as answer,
        ):
            if answer.status_code != 200:
                raise IssuerAway(f"it answers with status {answer.status_code}")
            if answer.headers.get("content-encoding", "identity") != "identity":
                raise IssuerAway("its answer is compressed")
            body = bytearray()
            async for chunk in answer.aiter_raw():
                body += chunk
                if len(body) > _LARGEST_ANSWER:
                    raise IssuerAway("its answer is too long")
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError) as error:
        raise IssuerAway(type(error).__name__) from error
    try:
        read = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise IssuerAway("its answer is no JSON") from error
    if not isinstance(read, dict):
        raise IssuerAway("its answer is no JSON object")
    return read


def _away() -> Refusal:
    return Refusal("DEPENDENCY_UNAVAILABLE", "the keys of the OIDC issuer cannot be had now", retry_after=5)


def _safe(url: str) -> bool:
    """Whether an address is https, or http on loopback, and holds no user."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        return False
    if not host or parts.username is not None or parts.password is not None:
        return False
    if parts.scheme == "https":
        return True
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    return parts.scheme == "http" and loopback
