"""Auth's rows."""

from pathlib import Path

from kit.database import Database, Transaction
from services.auth.keys import SealedKey
from services.auth.tokens import NewToken, StoredToken

QUERIES = Path(__file__).with_name("queries.sql")


class Store:
    """Reads and writes schema `auth`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def token_by_hash(self, secret_hash: bytes) -> StoredToken | None:
        """The token with this hash of its secret; notes its use."""
        row = await self._database.row("token_by_hash", secret_hash)
        if row is None:
            return None
        if row["unused"]:
            await self._database.fetch("touch_token", row["token_id"])
        return StoredToken(
            row["token_id"], row["principal"], row["kind"], row["expires_at"], row["revoked_at"] is not None
        )

    async def add_token(self, token: NewToken, created_by: str) -> None:
        """Keeps a token and tells every service."""
        async with self._database.transaction() as tx:
            await insert_token(tx, token, created_by)

    async def add_first_admin(self, token: NewToken) -> bool:
        """Keeps the first token with admin on everything; False when one exists already."""
        async with self._database.transaction() as tx:
            await tx.fetch("lock_start")
            if await tx.value("any_admin"):
                return False
            await insert_token(tx, token, token.principal)
            return True

    async def signing_keys(self, first: SealedKey) -> list[SealedKey]:
        """All signing keys, the newest last; keeps `first` where there is none."""
        async with self._database.transaction() as tx:
            await tx.fetch("lock_start")
            rows = await tx.fetch("signing_keys")
            if not rows:
                await tx.fetch("insert_signing_key", first.kid, first.public, first.sealed_private)
                tx.changed("", 1)
                return [first]
            return [SealedKey(row["kid"], row["public_key"], row["sealed_private_key"]) for row in rows]


async def insert_token(tx: Transaction, token: NewToken, created_by: str) -> None:
    """Keeps a token, tells every service, and declares the change."""
    await tx.fetch(
        "insert_token", token.token_id, token.secret_hash, token.principal, token.kind, created_by, token.expires_at,
        list(token.groups), token.note, token.personal, token.session,
    )  # fmt: skip
    await tx.fetch(
        "insert_grants",
        token.token_id,
        [grant.pattern for grant in token.grants],
        [",".join(sorted(grant.permissions)) for grant in token.grants],
    )
    await tx.fetch("bump_access")
    tx.changed("", 1)
