"""One Postgres for the whole session; each test that asks gets a migrated database of its own, copied in 0.1 s."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import hypothesis
import pytest

from kit.migrate import find_migrations, migrate
from stack.postgres import Postgres

# Speed is measured in bench/, never as a deadline in a test.
hypothesis.settings.register_profile("teamlore", deadline=None)
hypothesis.settings.load_profile("teamlore")
ROOT = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real server on a free loopback port, with a migrated template."""
    folder = Path(tempfile.mkdtemp(prefix="teamlore-test-"))
    os.chmod(folder, 0o755)  # the server runs as another user when we are root
    server = Postgres(folder / "postgres", options={"max_connections": "300"})
    server.start()
    try:
        asyncio.run(_make_template(server))
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


async def _make_template(server: Postgres) -> None:
    connection = await asyncpg.connect(server.dsn)
    await connection.execute("create database teamlore_template")
    await connection.close()
    await migrate(server.url("teamlore_template"), find_migrations(ROOT / "services"))


@pytest.fixture
def database_url(postgres: Postgres, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a fresh, migrated database, as superuser."""
    name = f"t_{abs(hash(request.node.nodeid)) % 10**12}"

    async def run(sql: str) -> None:
        connection = await asyncpg.connect(postgres.dsn)
        await connection.execute(sql)
        await connection.close()

    asyncio.run(run(f"create database {name} template teamlore_template"))
    yield postgres.url(name)
    asyncio.run(run(f"drop database {name} with (force)"))
