"""Rules of person sessions: what may start one, and how long it lasts."""

import os
from dataclasses import dataclass

from kit.errors import Refusal
from services.auth import tokens

SESSION_SECONDS = 900.0


@dataclass(frozen=True)
class NewSession:
    """A session as it is made: id and hash to keep, secret to show once."""

    token_id: str
    secret: str
    secret_hash: bytes


@dataclass(frozen=True)
class PersonToken:
    """A token presented to start a session; `opens` where it is a person's and no session itself."""

    token_id: str
    principal: str
    opens: bool
    personal: bool
    groups: tuple[str, ...]
    ends_at: float | None
    """Unix seconds; None where it does not end."""
    revoked: bool
    expired: bool


def new_session() -> NewSession:
    """A fresh session."""
    secret = tokens.new_secret()
    return NewSession(os.urandom(8).hex(), secret, tokens.hash_secret(secret))


def check(token: PersonToken | None) -> PersonToken:
    """The token. Raises Refusal CREDENTIAL_INVALID, _REVOKED or _EXPIRED where it starts no session."""
    if token is None or not token.opens:
        raise Refusal("CREDENTIAL_INVALID", "the token is not one that starts a session here")
    if token.revoked:
        raise Refusal("CREDENTIAL_REVOKED", "the token was revoked; ask an admin for a new one")
    if token.expired:
        raise Refusal("CREDENTIAL_EXPIRED", "the token has ended; ask an admin for a new one")
    return token
