"""Rules of tokens: how they are made, hashed, named, renewed and shown."""

import base64
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from kit.access import Caller, Grant, within
from kit.errors import Refusal, Violation, field_invalid

PREFIX = "tlk_"
SERVICE_NAMES = frozenset({"auth", "sync", "feed", "compliance", "index", "entries", "capture"})
PERSONAL_DAYS, MOST_PERSONAL_DAYS = 90, 366


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
    groups: tuple[str, ...] = ()
    note: str = ""
    personal: bool = False
    session: bool = False


@dataclass(frozen=True)
class StoredToken:
    """What is known of a presented token."""

    token_id: str
    principal: str
    kind: str
    expires_at: datetime | None
    revoked: bool


@dataclass(frozen=True)
class Token:
    """A token as it is listed: all but its secret."""

    token_id: str
    principal: str
    kind: str
    grants: tuple[Grant, ...]
    groups: tuple[str, ...]
    note: str
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    personal: bool
    session: bool

    def works(self, now: datetime) -> bool:
        """Whether it can still be exchanged."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


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


def check_new(who: Caller, principal: str, kind: str, grants: Sequence[Grant], groups: Sequence[str]) -> None:
    """Raises Refusal where `who` may not make such a token, or nobody may."""
    # A principal brings its PRIVATE bank and its name on what it writes, a group what others were granted, and a
    # person token a person's presence: only who administers all may hand these out.
    reserved = principal != who.principal or groups or not grants
    if not who.covers("*") and (reserved or (kind == "person" and not who.person_present)):
        raise Refusal(
            "PERMISSION_DENIED",
            "you may make agent tokens with grants for yourself alone",
            metadata={"permission": "admin"},
        )
    require_person(who, kind)
    if kind == "service" and not principal.startswith("service:"):
        # A service calls on behalf of others, which no person and no agent may.
        raise field_invalid("kind", "a service token is for a principal that begins with service:")
    if principal.startswith("service:") and principal.partition(":")[2] in SERVICE_NAMES:
        raise field_invalid("principal", "names a service of this deployment")
    if kind == "person" and not principal.startswith("user:"):
        raise field_invalid("kind", "a person token is for a principal that begins with user:")
    check_patterns(grants)
    check_comply(who, grants)


def check_minter(who: Caller, key: bool) -> None:
    """Raises Refusal PERMISSION_DENIED where `who` may see no new token's secret; `key` says that it is a personal key."""
    _check_lasting(who, key, "make no tokens")


def check_giver(who: Caller, key: bool) -> None:
    """Raises Refusal PERMISSION_DENIED where `who` may change nobody's lasting rights; `key` as in `check_minter`."""
    _check_lasting(who, key, "change no lasting rights")


def _check_lasting(who: Caller, key: bool, rule: str) -> None:
    # What is made would be free of what narrows its maker, and would go on after that has ended.
    if key or who.ceiling is not None or who.through is not None:
        raise Refusal(
            "PERMISSION_DENIED",
            f"a personal key, a narrowed session and a service on behalf of another {rule}: sign in with "
            "`teamlore login` and call from that session",
            metadata={"permission": "admin"},
        )


def require_person(who: Caller, kind: str) -> None:
    """Raises Refusal PERSON_REQUIRED where nobody is present who may see a person token, with which one signs in."""
    # Its kind does not make a stored token a person: whoever finds it in a file must not mint others that outlive it.
    if kind == "person" and not who.person_present:
        raise Refusal(
            "PERSON_REQUIRED",
            "a person token is made by a person who is present: sign in with `teamlore login` and call again",
        )


def check_comply(who: Caller, grants: Iterable[Grant]) -> None:
    """Raises Refusal PERMISSION_DENIED where the grants hand out comply that `who` does not hold."""
    for grant in grants:
        if "comply" in grant.permissions:
            require_comply(who, grant.pattern)


def check_patterns(grants: Sequence[Grant]) -> None:
    """Raises Refusal FIELD_INVALID where a pattern stands twice."""
    patterns = [grant.pattern for grant in grants]
    if len(set(patterns)) != len(patterns):
        raise field_invalid("grants.pattern", "each pattern may stand once")


def require_comply(who: Caller, pattern: str) -> None:
    """Raises Refusal PERMISSION_DENIED where `who` lacks comply on the pattern: admin does not imply it."""
    if not who.covers(pattern, "comply"):
        raise Refusal(
            "PERMISSION_DENIED", "you lack the permission comply", metadata={"permission": "comply"}
        )


def narrowed(who: Caller, asked: Sequence[Grant]) -> tuple[Grant, ...]:
    """What a personal key is narrowed to: what is asked, within what the session itself is narrowed to.

    Raises Refusal FIELD_INVALID where a pattern stands twice or reaches beyond.
    """
    check_patterns(asked)
    if who.ceiling is None:
        return tuple(asked)
    for grant in asked:
        if not all(within(grant.pattern, word, who.ceiling) for word in grant.permissions):
            raise field_invalid("grants.pattern", "reaches beyond what this session is narrowed to")
    return tuple(asked) or who.ceiling


def end_of_key(asked: datetime | None, now: datetime) -> datetime:
    """When a personal key ends. Raises Refusal FIELD_INVALID for more than a year."""
    if asked is not None and asked > now + timedelta(days=MOST_PERSONAL_DAYS):
        raise field_invalid("expires_at", f"must be {MOST_PERSONAL_DAYS} days from now at most")
    return asked or now + timedelta(days=PERSONAL_DAYS)


def successor(old: Token | None, now: datetime) -> NewToken:
    """The token that takes the place of `old`: the same rights, and as long a life as that was made with.

    Raises Refusal NOT_FOUND where there is none that works, FIELD_INVALID for a session.
    """
    if old is None or not old.works(now):
        raise unknown_token()
    if old.session:
        raise field_invalid("token_id", "is a session, which is begun anew and not rotated")
    ends = None if old.expires_at is None else now + (old.expires_at - old.created_at)
    fresh = make_token(old.principal, old.kind, old.grants, ends)
    return replace(fresh, groups=old.groups, note=old.note, personal=old.personal)


def may_end(who: Caller, token_id: str, principal: str, started_from: str | None) -> bool:
    """Whether `who` may revoke this token of a principal, made with `started_from` where it was made with another."""
    if who.ceiling is not None:
        return token_id == who.token_id
    if who.covers("*"):
        return True
    # Whoever finds an agent's token in a file must not end what its person works with.
    if who.kind != "person":
        return who.token_id in (token_id, started_from)
    return principal == who.principal


def listed_principal(who: Caller, asked: str) -> str:
    """Whose tokens to list; empty for all. Raises Refusal PERMISSION_DENIED for another's."""
    if who.covers("*") and who.ceiling is None:
        return asked
    if asked not in ("", who.principal):
        raise Refusal(
            "PERMISSION_DENIED", "you may list your own tokens alone", metadata={"permission": "admin"}
        )
    return who.principal


def unknown_token() -> Refusal:
    """The refusal for a token that is unknown, another's or at its end: they are not told apart."""
    rule = "there is no such token in use"
    return Refusal("NOT_FOUND", f"token_id: {rule}", violations=[Violation("token_id", rule)])


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
