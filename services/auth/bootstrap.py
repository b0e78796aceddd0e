"""Makes an admin token where nobody has a working one: `python -m services.auth.bootstrap [--out FILE]`."""

import argparse
import asyncio
import os
import sys
from dataclasses import dataclass

import asyncpg

from kit import audit
from kit.access import PERMISSIONS, Grant
from kit.config import DATABASE_URL, load_or_exit, setting
from kit.database import Database
from services.auth.store import QUERIES, Store
from services.auth.tokens import make_token


@dataclass(frozen=True)
class Config:
    """Settings of the bootstrap."""

    database_url: str = setting("DATABASE_URL", form=DATABASE_URL)


async def bootstrap(dsn: str, principal: str) -> str | None:
    """Gives the secret of the first admin, or None where there is one already."""
    database = await Database.connect(dsn, "auth", QUERIES, size=1)
    try:
        token = make_token(principal, "person", (Grant("*", frozenset(PERMISSIONS)),), None)
        with audit.calling(audit.CallContext("access.bootstrap", principal, token.token_id)):
            return token.secret if await Store(database).add_first_admin(token) else None
    finally:
        await database.close()


def main() -> None:
    """The command. Exit code 0 with the token on standard output or in FILE; 3 when an admin exists; 1 otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m services.auth.bootstrap", description="Make the first admin token."
    )
    parser.add_argument("--principal", default="user:admin")
    parser.add_argument(
        "--out", default="", help="file to write the token to (mode 0600) instead of standard output"
    )
    arguments = parser.parse_args()
    config = load_or_exit(Config)
    try:
        secret = asyncio.run(bootstrap(config.database_url, arguments.principal))
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        sys.exit(f"no admin was made: {error}")
    if secret is None:
        print("an admin with a working token exists already; create further tokens with CreateToken", file=sys.stderr)
        sys.exit(3)
    if arguments.out:
        with os.fdopen(os.open(arguments.out, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
            file.write(secret + "\n")
    else:
        print(secret)


if __name__ == "__main__":
    main()
