"""Makes an admin token where nobody has a working one: `python -m services.auth.bootstrap [--out FILE]`."""

import argparse
import asyncio
import contextlib
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from kit import audit
from kit.access import PERMISSIONS, Grant
from kit.config import DATABASE_URL, load_or_exit, principal, setting
from kit.database import Database, why
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
    parser.add_argument("--principal", type=principal, default="user:admin", help="who it is, such as user:olga")
    parser.add_argument(
        "--out", type=_file, help="file to write the token to (mode 0600) instead of standard output"
    )
    arguments = parser.parse_args()
    config = load_or_exit(Config)
    try:
        # Before anything is made: a token that cannot be written down is lost, and then nobody can make another.
        out = _opened(arguments.out) if arguments.out else 1
    except OSError as error:
        sys.exit(f"no admin was made: {arguments.out} cannot be written: {error.strerror}")
    try:
        secret = asyncio.run(bootstrap(config.database_url, arguments.principal))
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        sys.exit(f"no admin was made: {why(error)}")
    if secret is None:
        print("an admin with a working token exists already; create further tokens with CreateToken", file=sys.stderr)
        sys.exit(3)
    with os.fdopen(out, "w") as file:
        if arguments.out and stat.S_ISREG(os.fstat(out).st_mode):
            file.truncate(0)
        file.write(secret + "\n")


def _file(raw: str) -> Path:
    if not raw:  # a variable that was not set: the token would stand in a log
        raise argparse.ArgumentTypeError("the name of a file")
    return Path(raw)


def _opened(path: Path) -> int:
    """The file, open for writing and for its owner alone; as it is where it belongs to somebody else."""
    out = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    with contextlib.suppress(PermissionError):
        os.fchmod(out, 0o600)
    return out


if __name__ == "__main__":
    main()
