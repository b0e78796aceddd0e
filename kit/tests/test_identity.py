"""A JWT is verified once and believed no longer than a fresh look would believe it."""

import asyncio
import base64
import time
from collections.abc import Mapping
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from kit import identity
from kit.access import Caller
from kit.errors import Refusal
from kit.identity import Authenticator, mint
from kit.key_cache import KeyCache

KEY, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()


OPAQUE = "tlk_" + "x" * 43


class Access:
    audience = "teamlore:here"
    version = 1

    def __init__(self) -> None:
        self.revoked = False

    def require_fresh(self) -> None: ...

    async def of(self, token_id: str) -> Caller:
        if self.revoked:
            raise Refusal("CREDENTIAL_REVOKED", "revoked")
        return Caller("user:alice", "agent", token_id)


class Bench:
    def __init__(self) -> None:
        self.keys: Mapping[str, Ed25519PublicKey] = {"k": KEY.public_key()}
        self.access = Access()
        self.cache = KeyCache(self._read)
        self.authenticator = Authenticator(self.cache, self.access, self._exchange)  # type: ignore[arg-type]
        self.exchanged: list[str] = []
        self.decoded = 0

    async def _read(self) -> Mapping[str, Ed25519PublicKey]:
        return self.keys

    async def _exchange(self, opaque: str) -> tuple[str, float]:
        self.exchanged.append(opaque)
        return token(), time.time() + identity.JWT_SECONDS

    async def caller(self, token: str) -> str:
        try:
            metadata = [("authorization", f"Bearer {token}")]
            return (await self.authenticator.authenticate(metadata)).principal
        except Refusal as refusal:
            return refusal.reason


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made, decode = Bench(), jwt.decode

    def counting(*args: Any, **more: Any) -> Any:
        made.decoded += 1
        return decode(*args, **more)

    monkeypatch.setattr(identity.jwt, "decode", counting)
    return made


def token(key: Ed25519PrivateKey = KEY) -> str:
    return mint(key, "k", Access.audience, "user:alice", "agent", "t")[0]


async def test_a_jwt_is_verified_once(bench: Bench) -> None:
    good = token()
    assert [await bench.caller(good) for _ in range(3)] == ["user:alice"] * 3
    assert bench.decoded == 1


async def test_a_forged_jwt_is_refused_each_time_also_beside_a_good_one(bench: Bench) -> None:
    good, forged = token(), token(OTHER)
    head, _, signature = good.split(".")
    claims = base64.urlsafe_b64encode(b'{"sub":"user:mallory"}').decode().rstrip("=")
    for _ in range(2):
        assert await bench.caller(good) == "user:alice"
        assert await bench.caller(forged) == "CREDENTIAL_INVALID"
        assert await bench.caller(f"{head}.{claims}.{signature}") == "CREDENTIAL_INVALID"


async def test_a_verified_jwt_ends_when_it_says(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    good = token()
    assert await bench.caller(good) == "user:alice"
    ends = time.time() + identity.JWT_SECONDS + identity.JWT_LEEWAY

    class Later(jwt.api_jwt.datetime):  # type: ignore[name-defined,misc]
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(ends + 1, tz)

    monkeypatch.setattr(jwt.api_jwt, "datetime", Later)
    monkeypatch.setattr(identity.time, "time", lambda: ends + 1)
    assert await bench.caller(good) == "CREDENTIAL_EXPIRED"


async def test_a_verified_jwt_ends_with_its_key(bench: Bench) -> None:
    good = token()
    assert await bench.caller(good) == "user:alice"
    bench.keys = {"k": OTHER.public_key()}
    await bench.cache._read()
    assert await bench.caller(good) == "CREDENTIAL_INVALID"
    bench.keys = {}
    await bench.cache._read()
    assert await bench.caller(good) == "CREDENTIAL_INVALID"


async def test_a_verified_jwt_does_not_outlive_a_revoke(bench: Bench) -> None:
    good = token()
    assert await bench.caller(good) == "user:alice"
    bench.access.revoked = True
    assert await bench.caller(good) == "CREDENTIAL_REVOKED"


async def test_what_is_held_of_jwts_is_bounded(bench: Bench) -> None:
    good = token()
    await bench.caller(good)
    held = bench.authenticator._verified
    held.update({str(number): held[good] for number in range(20_000)})
    await bench.caller(mint(KEY, "k", Access.audience, "user:alice", "agent", "u")[0])
    assert len(held) == 1


async def test_what_is_no_opaque_token_is_never_sent_to_auth(bench: Bench) -> None:
    good = "tlk_" + "aB3_-" * 8 + "xyz"
    assert await bench.caller(good) == "user:alice" and bench.exchanged == [good]
    for wrong in ("tlk_", good[:-1], good + "x", good[:-1] + "é", good[:-1] + "=", "tlk_" + "a" * 5000):
        assert await bench.caller(wrong) == "CREDENTIAL_INVALID"
    assert bench.exchanged == [good]


class Exchanges:
    """Auth, which answers as told."""

    def __init__(self) -> None:
        self.asked = 0
        self.hangs = False
        self.refusal: Refusal | None = None
        self.life = 20

    async def __call__(self, token: str) -> tuple[str, float]:
        self.asked += 1
        if self.hangs:
            await asyncio.sleep(3600)
        if self.refusal is not None:
            raise self.refusal
        return mint(KEY, "k", Access.audience, "user:alice", "agent", "t", self.life)


@pytest.fixture
def auth(bench: Bench) -> Exchanges:
    made = Exchanges()
    bench.authenticator = Authenticator(bench.cache, bench.access, made)  # type: ignore[arg-type]
    return made


async def test_nobody_waits_for_auth_while_the_jwt_at_hand_is_good(bench: Bench, auth: Exchanges) -> None:
    """It ends soon and is renewed aside: where auth hangs or is away, calls go on until it has ended."""
    assert await bench.caller(OPAQUE) == "user:alice"
    auth.hangs = True
    for _ in range(20):
        async with asyncio.timeout(1):
            assert await bench.caller(OPAQUE) == "user:alice"
        await asyncio.sleep(0)
    assert auth.asked == 2


async def test_a_jwt_is_renewed_before_it_ends(bench: Bench, auth: Exchanges) -> None:
    await bench.caller(OPAQUE)
    auth.life = 300
    for _ in range(5):
        assert await bench.caller(OPAQUE) == "user:alice"
        await asyncio.sleep(0.01)
    assert auth.asked == 2


async def test_when_the_jwt_has_ended_the_caller_is_told_why_there_is_no_other(
    bench: Bench, auth: Exchanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.caller(OPAQUE)
    auth.refusal = Refusal("DEPENDENCY_UNAVAILABLE", "away", retry_after=1)
    assert await bench.caller(OPAQUE) == "user:alice"
    now = time.time() + auth.life + 1
    monkeypatch.setattr(identity.time, "time", lambda: now)
    assert await bench.caller(OPAQUE) == "DEPENDENCY_UNAVAILABLE"


async def test_an_unknown_key_is_no_bad_credential_while_auth_is_away_and_is_asked_for_once_a_second(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await bench.caller(token()) == "user:alice"
    next_ = mint(OTHER, "next", Access.audience, "user:alice", "agent", "t")[0]
    asked, keys, now = 0, bench.keys, time.monotonic() + 60
    monkeypatch.setattr(identity.time, "monotonic", lambda: now)

    async def away() -> Mapping[str, Ed25519PublicKey]:
        nonlocal asked
        asked += 1
        raise OSError

    bench.cache._fetch = away
    assert {await bench.caller(next_) for _ in range(5)} == {"DEPENDENCY_UNAVAILABLE"}
    assert await bench.caller(token()) == "user:alice"
    assert asked == 1
    bench.keys = {**keys, "next": OTHER.public_key()}
    bench.cache._fetch = bench._read
    now += 1
    assert await bench.caller(next_) == "user:alice"
    assert await bench.caller(mint(KEY, "nobody", Access.audience, "user:x", "agent", "t")[0]) == "CREDENTIAL_INVALID"
