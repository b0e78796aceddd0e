"""Auth's rows."""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from kit import identity
from kit.access import Caller
from kit.access_state import caller_of
from kit.database import Database, Record, Transaction
from kit.errors import Refusal
from services.auth.keys import SealedKey
from services.auth.oidc import SignIn
from services.auth.sessions import SESSION_SECONDS, NewSession, PersonToken
from services.auth.tokens import NewToken, StoredToken

QUERIES = Path(__file__).with_name("queries.sql")


class Store:
    """Reads and writes schema `auth`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def token_by_hash(self, secret_hash: bytes) -> StoredToken | None:
        """The token with this hash of its secret."""
        row = await self._database.row("token_by_hash", secret_hash)
        if row is None:
            return None
        return StoredToken(
            row["token_id"], row["principal"], row["kind"], row["expires_at"], row["revoked_at"] is not None
        )

    async def add_token(self, token: NewToken, created_by: str, session: str = "") -> datetime | None:
        """Keeps a token, tells every service and gives its end; made in `session`, it ends with what that comes from.

        Raises Refusal CREDENTIAL_REVOKED or ACCESS_REVOKED where the session or its principal has just been shut out.
        """
        async with self._database.transaction() as tx:
            # Whoever revokes has this lock too: it comes before and is seen here, or after and finds the new token.
            await tx.fetch("lock_access")
            if session:
                await _require_let_in(tx, token.principal, session)
            return await insert_token(tx, token, created_by, session)

    async def add_first_admin(self, token: NewToken) -> bool:
        """Keeps a token with admin on everything; False while somebody with a working token administers all."""
        async with self._database.transaction() as tx:
            await tx.fetch("lock_start")
            await tx.fetch("lock_access")
            if await has_admin(tx, lasting=False):
                return False
            await insert_token(tx, token, token.principal)
            return True

    async def signing_keys(self) -> tuple[list[SealedKey], datetime]:
        """The unretired signing keys in the order in which they begin to sign, and the database's time."""
        return _keys(await self._database.fetch("signing_keys"))

    async def make_signing_key(
        self,
        start: Callable[[Sequence[SealedKey], datetime], datetime | None],
        make: Callable[[datetime], SealedKey],
        bump: bool = False,
    ) -> SealedKey | None:
        """Keeps a key that begins when `start` says, given the unretired keys and the time; None where it says None."""
        async with self._database.transaction() as tx:
            await tx.fetch("lock_start")
            begins = start(*_keys(await tx.fetch("signing_keys")))
            if begins is None:
                return None
            key = make(begins)
            await tx.fetch("insert_signing_key", key.kid, key.public, key.sealed_private, key.active_from)
            if bump:
                await tx.fetch("bump_access")
            tx.changed("", 1)
            return key

    async def retire_signing_keys(
        self, choose: Callable[[Sequence[SealedKey], datetime], Sequence[str]], bump: bool = False
    ) -> int:
        """Retires the keys that `choose` names and wipes their private halves; counts them."""
        async with self._database.transaction() as tx:
            await tx.fetch("lock_start")
            kids = choose(*_keys(await tx.fetch("signing_keys")))
            done = len(await tx.fetch("retire_signing_keys", list(kids)))
            if done and bump:
                await tx.fetch("bump_access")
            tx.changed("", done)
            return done

    async def person_token(self, secret_hash: bytes) -> PersonToken | None:
        """The token with this hash of its secret, as one that may start a session."""
        row = await self._database.row("person_token", secret_hash)
        if row is None:
            return None
        ends = row["expires_at"].timestamp() if row["expires_at"] else None
        opens = row["kind"] == "person" and not row["session"] and row["principal"].startswith("user:")
        return PersonToken(
            row["token_id"],
            row["principal"],
            opens,
            row["personal"],
            tuple(row["groups"]),
            ends,
            row["revoked"],
            row["expired"],
        )

    async def start_session(self, session: NewSession, origin: SignIn | PersonToken) -> datetime:
        """Keeps a session and gives its end. Raises Refusal ACCESS_REVOKED, CREDENTIAL_REVOKED or CREDENTIAL_INVALID.

        An ID token is used up, and its groups take the place of those that the issuer named before.
        """
        async with self._database.transaction() as tx:
            # As in add_token: an off-boarding comes before and is seen here, or after and finds the session.
            await tx.fetch("lock_access")
            groups: tuple[str, ...] = ()
            started_from = None
            if isinstance(origin, PersonToken):
                groups, started_from = origin.groups, origin.token_id
            await _require_let_in(tx, origin.principal, started_from)
            if isinstance(origin, SignIn):
                await self._use(tx, origin)
            ends = await tx.value(
                "insert_session",
                session.token_id,
                session.secret_hash,
                origin.principal,
                list(groups),
                started_from,
                SESSION_SECONDS,
                origin.ends_at,
            )
            if isinstance(origin, PersonToken) and origin.personal:
                await tx.fetch("copy_ceiling", session.token_id, origin.token_id)
            tx.changed("", 1)
            assert isinstance(ends, datetime)
            return ends

    async def _use(self, tx: Transaction, sign_in: SignIn) -> None:
        if await tx.row("use_id_token", sign_in.token_hash, sign_in.ends_at) is None:
            raise identity.bad_id_token()
        await tx.fetch("sweep_id_tokens")
        await tx.fetch("lock_sign_in", sign_in.principal)
        groups = list(sign_in.groups)
        dropped = await tx.fetch("drop_issuer_groups", sign_in.principal, groups)
        await tx.fetch("renew_issuer_groups", sign_in.principal)
        added = await tx.fetch("add_issuer_groups", sign_in.principal, groups)
        # A new session is known to nobody yet; only changed groups concern what services hold.
        if dropped or added:
            await tx.fetch("bump_access")

    async def end_issuer_groups(self, seconds: float) -> int:
        """Takes principals out of groups that the issuer has not named for so long, and tells every service."""
        async with self._database.transaction() as tx:
            await tx.fetch("lock_access")
            ended = len(await tx.fetch("end_issuer_groups", seconds))
            if ended:
                await tx.fetch("bump_access")
            tx.changed("", ended)
            return ended

    async def sweep(self, days: int, most: int) -> int:
        """Deletes of tokens, decisions and counts at most `most` rows each that ended so many days ago.

        Counts the kind with the most: fewer than `most` means that no more are left.
        """
        async with self._database.transaction() as tx:
            swept = [
                len(await tx.fetch("sweep_tokens", days, most)),
                int(await tx.value("sweep_decisions", days, most)),
                int(await tx.value("sweep_quota_use", days, most)),
            ]
            tx.changed("", sum(swept))
            return max(swept)

    async def touch_tokens(self, token_ids: Sequence[str]) -> None:
        """Says that tokens were just used, at most once a minute each."""
        await self._database.fetch("touch_tokens", list(token_ids))


async def _require_let_in(tx: Transaction, principal: str, token_id: str | None) -> None:
    """Raises Refusal ACCESS_REVOKED for a suspended principal, CREDENTIAL_REVOKED for a token that has ended."""
    if await tx.value("suspended", principal):
        raise Refusal("ACCESS_REVOKED", "the principal is suspended; ask an admin")
    if token_id is not None and await tx.row("hold_live_token", token_id) is None:
        raise Refusal("CREDENTIAL_REVOKED", "the token was revoked; ask an admin for a new one")


def _keys(rows: Sequence[Record]) -> tuple[list[SealedKey], datetime]:
    found = [
        SealedKey(row["kid"], row["public_key"], row["sealed_private_key"], row["active_from"])
        for row in rows
        if row["kid"] is not None
    ]
    return found, rows[0]["now"]


async def access_of(
    tx: Transaction, token_id: str | None, principal: str | None = None
) -> tuple[Caller, str]:
    """What a token, or a principal without one, may do as the transaction has it, and why it is refused."""
    read = json.loads(await tx.value("caller_access", token_id, principal))
    return caller_of(read, token_id or "")


async def administers(tx: Transaction, token_id: str | None, principal: str | None = None) -> bool:
    """Whether a token, or a principal by what it is granted, administers the deployment."""
    caller, refused = await access_of(tx, token_id, principal)
    return not refused and caller.covers("*")


async def has_admin(tx: Transaction, lasting: bool) -> bool:
    """Whether somebody administers the deployment: now, or `lasting`, by a token without an end or by signing in."""
    for row in await tx.fetch("likely_admins", lasting):
        if await administers(tx, row["token_id"]):
            return True
    for row in await tx.fetch("signed_in") if lasting else ():
        if await administers(tx, None, row["principal"]):
            return True
    return False


async def insert_token(
    tx: Transaction, token: NewToken, created_by: str, session: str = ""
) -> datetime | None:
    """Keeps a token, tells every service, declares the change, and gives the token's end."""
    ends: datetime | None = await tx.value(
        "insert_token", token.token_id, token.secret_hash, token.principal, token.kind, created_by, token.expires_at,
        list(token.groups), token.note, token.personal, token.session, session,
    )  # fmt: skip
    await tx.fetch(
        "insert_grants",
        token.token_id,
        [grant.pattern for grant in token.grants],
        [",".join(sorted(grant.permissions)) for grant in token.grants],
    )
    await tx.fetch("bump_access")
    tx.changed("", 1)
    return ends
