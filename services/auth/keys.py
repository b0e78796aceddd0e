"""The signing key of this deployment: made once, its private half sealed."""

from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from kit import sealing

SEAL_NAME = "auth.signing"


@dataclass(frozen=True)
class SealedKey:
    """A signing key as it is kept: id, raw public half (32 bytes), sealed private half."""

    kid: str
    public: bytes
    sealed_private: bytes


@dataclass(frozen=True)
class KeyRing:
    """The key that signs, and all public keys that verify."""

    kid: str
    private: Ed25519PrivateKey
    public: Mapping[str, Ed25519PublicKey]


def make_key(secret: bytes, kid: str) -> SealedKey:
    """A fresh key, its private half sealed under `secret` (32 bytes)."""
    private = Ed25519PrivateKey.generate()
    return SealedKey(
        kid,
        private.public_key().public_bytes_raw(),
        sealing.seal(secret, SEAL_NAME, kid, private.private_bytes_raw()),
    )


def open_ring(secret: bytes, stored: list[SealedKey]) -> KeyRing:
    """Opens the newest key. Raises KeyMissing where `secret` is not the one it was sealed with."""
    newest = stored[-1]
    private = Ed25519PrivateKey.from_private_bytes(
        sealing.unseal(secret, SEAL_NAME, newest.kid, newest.sealed_private)
    )
    return KeyRing(
        newest.kid, private, {key.kid: Ed25519PublicKey.from_public_bytes(key.public) for key in stored}
    )
