"""Runs every service's migrations in order, under one advisory lock: `python -m kit.migrate`.

Files are `services/<name>/migrations/NNNN_{pre|post}_what.sql`; `pre` ones run before new code, `post` ones after the
old code is gone (`--phase post`). Each file is one transaction and is recorded with its SHA-256; a recorded file that
has changed since is refused.
"""

import argparse
import asyncio
import hashlib
import os
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from kit.config import DATABASE_URL
from kit.database import why

SERVICES = ("sync", "auth", "compliance", "index", "entries", "capture")
ROLES = tuple(f"teamlore_{name}" for name in ("auth", "sync", "feed", "compliance", "index"))
_LOCK = 7_214_531
_SCHEMA = re.compile(r"^create schema (?:if not exists )?([a-z_]+)", re.M)
_OURS = frozenset(("service", "name", "sha256"))
_NAME = re.compile(r"^(\d{4})_(pre|post)_[a-z0-9_]+\.sql$")


class MigrationError(Exception):
    """A migration cannot be run; the text says which and why."""


@dataclass(frozen=True)
class Migration:
    """One file: its service, name, phase (`pre` or `post`), text and hex SHA-256."""

    service: str
    name: str
    phase: str
    sql: str
    sha256: str


def find_migrations(root: Path) -> list[Migration]:
    """Lists the migrations below `root` (the folder that holds the services), in the order in which they run.

    Raises MigrationError for a file whose name does not follow the rule.
    """
    found: list[Migration] = []
    for service in SERVICES:
        for path in sorted((root / service / "migrations").glob("*.sql")):
            match = _NAME.match(path.name)
            if match is None:
                raise MigrationError(
                    f"{path.name}: a migration is named NNNN_pre_what.sql or NNNN_post_what.sql"
                )
            sql = path.read_text(encoding="utf-8")
            found.append(
                Migration(service, path.name, match[2], sql, hashlib.sha256(sql.encode()).hexdigest())
            )
    return found


async def migrate(
    dsn: str, migrations: list[Migration], phases: tuple[str, ...] = ("pre", "post")
) -> list[str]:
    """Applies what is missing; gives the names applied. Raises MigrationError for a changed or failing file."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("select pg_advisory_lock($1)", _LOCK)
        await _refuse_a_strangers(connection, {name for each in migrations for name in _SCHEMA.findall(each.sql)})
        await _ensure_roles(connection)
        await connection.execute(
            "create table if not exists public.schema_migrations (service text, name text, sha256 text not null,"
            " applied_at timestamptz not null default now(), primary key (service, name))"
        )
        rows = await connection.fetch("select service, name, sha256 from public.schema_migrations")
        applied = {(row["service"], row["name"]): row["sha256"] for row in rows}
        done = []
        for migration in migrations:
            label = f"{migration.service}/{migration.name}"
            known = applied.get((migration.service, migration.name))
            if known is not None and known != migration.sha256:
                raise MigrationError(
                    f"{label} was applied in another form; add a new migration instead of editing it"
                )
            if known is None and migration.phase in phases:
                await _apply(connection, migration, label)
                done.append(label)
        return done
    finally:
        await connection.close()


async def _refuse_a_strangers(
    connection: "asyncpg.Connection[asyncpg.Record]", schemas: Collection[str]
) -> None:
    """Raises MigrationError, before anything is changed, for a database that is neither empty nor ours."""
    columns = await connection.fetch(
        "select attname from pg_attribute where attrelid = to_regclass('public.schema_migrations') and attnum > 0"
    )
    if {row["attname"] for row in columns} >= _OURS:
        return
    # What an extension brought is nobody's data.
    found = await connection.fetch(
        "select n.nspname || '.' || c.relname as name from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = any($1::text[]) and c.relkind in ('r', 'p') and not exists (select from pg_depend d"
        " where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e') order by 1 limit 3",
        ["public", *schemas],
    )
    if found:
        database = await connection.fetchval("select current_database()")
        raise MigrationError(
            f"the database {database} holds what is not Teamlore's ({', '.join(row['name'] for row in found)});"
            " nothing was changed: set DATABASE_URL to a database of Teamlore's own, or unset it"
        )


async def _apply(connection: "asyncpg.Connection[asyncpg.Record]", migration: Migration, label: str) -> None:
    try:
        async with connection.transaction():
            await connection.execute(migration.sql)
            await connection.execute(
                "insert into public.schema_migrations (service, name, sha256) values ($1, $2, $3)",
                migration.service,
                migration.name,
                migration.sha256,
            )
    except asyncpg.PostgresError as error:
        raise MigrationError(f"{label}: {error}") from error


async def _ensure_roles(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Roles belong to the whole server, so another database of it may have made them already."""
    for role in ROLES:
        await connection.execute(
            f"do $$ begin create role {role} nologin; exception when duplicate_object or unique_violation then null; end $$"
        )
        await connection.execute(f"grant {role} to current_user")


def main() -> None:
    """The command. Exit code 0 when all is applied, 1 with one line on standard error otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m kit.migrate", description="Bring the database up to date."
    )
    parser.add_argument("--phase", choices=("pre", "post", "all"), default="all")
    phase = parser.parse_args().phase
    dsn = os.environ.get("DATABASE_URL", "")
    if not dsn:
        sys.exit("DATABASE_URL is not set: give the address of the database to migrate")
    if not DATABASE_URL.fits(dsn):
        sys.exit(f"DATABASE_URL must be {DATABASE_URL.words}")
    root = Path(__file__).resolve().parent.parent / "services"
    try:
        done = asyncio.run(
            migrate(dsn, find_migrations(root), ("pre", "post") if phase == "all" else (phase,))
        )
    except MigrationError as error:
        sys.exit(f"migration failed: {error}")
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        sys.exit(f"cannot migrate the database that DATABASE_URL names: {why(error)}")
    print(f"{len(done)} migrations applied" if done else "the database is up to date", file=sys.stderr)


if __name__ == "__main__":
    main()
