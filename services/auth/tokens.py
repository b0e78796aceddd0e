"""Rules of tokens: how they are made, hashed and named."""

import base64
import hashlib
import os
import re
from dataclasses import dataclass
from datetime import datetime

from kit.access import Grant

PREFIX = "tlk_"
SERVICE_NAMES = frozenset({"auth", "sync", "feed", "compliance", "index", "entries", "capture"})


@dataclass(frozen=True)
class NewToken:
    """A token as it is made: id and hash to keep, secret to show once."""

    token_id: str
    secret: str
    secret_hash: bytes
    principal: str
    kind: str
    grants: tuple[Grant, ...]
    expires_at: datetime | None


@dataclass(frozen=True)
class StoredToken:
    """What is known of a presented token."""

    token_id: str
    principal: str
    kind: str
    expires_at: datetime | None
    revoked: bool


def new_secret() -> str:
    """`tlk_` and 256 random bits in URL-safe base64."""
    return PREFIX + base64.urlsafe_b64encode(os.urandom(32)).decode().rstrip("=")


def hash_secret(secret: str) -> bytes:
    """SHA-256 of a secret. The secret has 256 random bits, so a plain hash cannot be searched."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def make_token(principal: str, kind: str, grants: tuple[Grant, ...], expires_at: datetime | None) -> NewToken:
    """A fresh token for a principal."""
    secret = new_secret()
    return NewToken(os.urandom(8).hex(), secret, hash_secret(secret), principal, kind, grants, expires_at)


def parse_service_hashes(text: str) -> dict[bytes, str]:
    """Reads `sync=<sha256 hex>,feed=…`, each service once, into hash → service name. Raises RuntimeError for other text."""
    result: dict[bytes, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, separator, digest = part.partition("=")
        if not separator or re.fullmatch("[0-9a-f]{64}", digest) is None:
            raise RuntimeError(
                "TEAMLORE_SERVICE_TOKEN_HASHES must be name=<64 hex digits>, separated by commas"
            )
        if name not in SERVICE_NAMES:
            raise RuntimeError(f"TEAMLORE_SERVICE_TOKEN_HASHES names {name}, which is no service")
        if name in result.values() or bytes.fromhex(digest) in result:
            raise RuntimeError(f"TEAMLORE_SERVICE_TOKEN_HASHES has the name or the hash of {name} twice")
        result[bytes.fromhex(digest)] = name
    return result
