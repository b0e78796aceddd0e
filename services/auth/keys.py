"""Rules of signing keys: published before use, kept until their last token is gone, private halves sealed."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from kit import sealing
from kit.errors import Refusal
from kit.identity import JWT_LEEWAY, JWT_SECONDS

SEAL_NAME = "auth.signing"
MARGIN_SECONDS = 60.0
RING_SECONDS = MARGIN_SECONDS / 2
"""A ring older than this signs nothing: its key may have been retired meanwhile."""


@dataclass(frozen=True)
class SealedKey:
    """A signing key as it is kept: id, raw public half (32 bytes), sealed private half, when it begins to sign."""

    kid: str
    public: bytes
    sealed_private: bytes
    active_from: datetime


@dataclass(frozen=True)
class Schedule:
    """How keys follow each other, in seconds: `rotation` from one to the next, `lead` from publishing to first use."""

    rotation: float
    lead: float
    jwt: float = JWT_SECONDS
    """How long a JWT lasts."""

    @staticmethod
    def checked(rotation: float, lead: float, refresh: float, jwt: float = JWT_SECONDS) -> "Schedule":
        """Raises RuntimeError where a service that reads keys every `refresh` seconds could meet an unknown one."""
        if refresh <= 0 or lead < 2 * refresh:
            raise RuntimeError(
                "TEAMLORE_KEY_LEAD_SECONDS must be at least twice TEAMLORE_KEY_REFRESH_SECONDS: "
                "a key has to be known everywhere before it signs"
            )
        if rotation < 2 * lead:
            raise RuntimeError(
                "TEAMLORE_KEY_ROTATION_SECONDS must be at least twice TEAMLORE_KEY_LEAD_SECONDS"
            )
        return Schedule(rotation, lead, jwt)

    def next_start(self, keys: Sequence[SealedKey], now: datetime) -> datetime | None:
        """When a key that has to be made now begins to sign; None while none is due. `keys` are the unretired ones."""
        if not keys:
            return now
        newest = max(key.active_from for key in keys)
        due = newest + timedelta(seconds=self.rotation - self.lead)
        return None if now < due else now + timedelta(seconds=self.lead)

    def gone(self, keys: Sequence[SealedKey], now: datetime) -> list[str]:
        """Ids of the keys whose last token has ended: a successor has signed for as long as a token can live."""
        kept_for = timedelta(seconds=self.jwt + JWT_LEEWAY + MARGIN_SECONDS)
        starts = sorted(key.active_from for key in keys)
        return [
            key.kid
            for key in keys
            if any(key.active_from < start and start + kept_for <= now for start in starts)
        ]


@dataclass(frozen=True)
class KeyRing:
    """The unretired keys as the database had them at `read_at`, its own time."""

    read_at: datetime
    private: tuple[tuple[datetime, str, Ed25519PrivateKey], ...]
    """When each begins to sign, id, key; in that order."""
    public: Mapping[str, Ed25519PublicKey]
    _read: float = field(default_factory=time.monotonic)

    def signer(self) -> tuple[str, Ed25519PrivateKey]:
        """The newest key that signs by now, by the database's clock. Raises Refusal when the ring is too old."""
        age = time.monotonic() - self._read
        if age > RING_SECONDS:
            raise Refusal("DEPENDENCY_UNAVAILABLE", "the signing keys cannot be read now", retry_after=1)
        now = self.read_at + timedelta(seconds=age)
        for start, kid, key in reversed(self.private):
            if start <= now:
                return kid, key
        raise Refusal("DEPENDENCY_UNAVAILABLE", "no signing key is in use now", retry_after=1)


def make_key(secret: bytes, active_from: datetime) -> SealedKey:
    """A fresh key, its private half sealed under `secret` (32 bytes)."""
    kid, private = os.urandom(8).hex(), Ed25519PrivateKey.generate()
    return SealedKey(
        kid,
        private.public_key().public_bytes_raw(),
        sealing.seal(secret, SEAL_NAME, kid, private.private_bytes_raw()),
        active_from,
    )


def open_ring(secret: bytes, stored: Sequence[SealedKey], read_at: datetime) -> KeyRing:
    """Opens keys. Raises KeyMissing where `secret` is not the one they were sealed with."""
    opened = (
        (
            key.active_from,
            key.kid,
            Ed25519PrivateKey.from_private_bytes(
                sealing.unseal(secret, SEAL_NAME, key.kid, key.sealed_private)
            ),
        )
        for key in stored
    )
    return KeyRing(
        read_at,
        tuple(sorted(opened, key=lambda one: one[:2])),
        {key.kid: Ed25519PublicKey.from_public_bytes(key.public) for key in stored},
    )
