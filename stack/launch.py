"""Bring a whole stack up: ports and secrets, Postgres, migrations, vector engine, services."""

from __future__ import annotations

import asyncio
import fcntl
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg

from kit.config import DATABASE_URL
from stack import topology
from stack.credentials import service_tokens
from stack.environment import needed
from stack.errors import StackError, disk_errors
from stack.logtail import last_line, log_size, open_log, text_since
from stack.placement import relocation_folder
from stack.ports import LOOPBACK, is_free, kept_ports
from stack.postgres import Postgres
from stack.supervisor import Supervisor
from stack.topology import Facts, Settings


@dataclass(frozen=True)
class Stack:
    """A stack that runs."""

    supervisor: Supervisor
    """Wait on it; it stops with the block that launched the stack."""
    facts: Facts
    """Database URL, ports and service tokens."""
    relocated: Path | None
    """Where Postgres lies when its user cannot reach the data folder."""


@asynccontextmanager
async def launch(settings: Settings, say: Callable[[str], None] = print) -> AsyncIterator[Stack | None]:
    """Run a stack for the length of the block; None when a signal asked for its end before it was up.

    Raises StackError, one line, for whatever keeps it from coming up. Needs the main thread's event loop.
    """
    with _claimed(settings.data):
        ports = kept_ports(settings.data / "stack.json", topology.PORTS)
        tokens = service_tokens(settings.data / "secrets.json", topology.TOKEN_HOLDERS)
        with disk_errors(settings.data):
            (settings.data / "keys").mkdir(mode=0o700, exist_ok=True)
            (settings.data / "vectors").mkdir(mode=0o700, exist_ok=True)
        async with Supervisor(say) as supervisor:
            supervisor.handle_signals()
            yield await _bring_up(settings, supervisor, ports, tokens, say)


async def migrate(settings: Settings, database_url: str) -> None:
    """Bring the database up to date; StackError with the last thing the command said when it cannot."""
    log = topology.log_path(settings, "migrate")
    begin = log_size(log)
    env = needed() | topology.python_env(settings) | {"DATABASE_URL": database_url}
    with open_log(log) as output:
        process = await asyncio.create_subprocess_exec(
            *topology.migrate_command(settings),
            stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, env=env, cwd=settings.root,
        )  # fmt: skip
    try:
        code = await process.wait()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise
    if code != 0:
        said = last_line(text_since(log, begin)) or f"exit {code}"
        raise StackError(f"the database could not be migrated: {said} (log: {log})")


async def _bring_up(
    settings: Settings,
    supervisor: Supervisor,
    ports: dict[str, int],
    tokens: dict[str, str],
    say: Callable[[str], None],
) -> Stack | None:
    database_url, relocated = settings.database_url, None
    if database_url is not None:
        if not DATABASE_URL.fits(database_url):
            raise StackError(f"DATABASE_URL must be {DATABASE_URL.words}")
        say(f"database: {_place(database_url)}, as DATABASE_URL says")
    else:
        say(f"database: an own Postgres in {settings.data / 'postgres'}, as DATABASE_URL is not set")
        postgres = Postgres(
            data=settings.data / "postgres",
            port=ports[topology.POSTGRES],
            log_path=topology.log_path(settings, topology.POSTGRES),
            may_make=not topology.keystore(settings).exists(),
        )
        try:
            child = await asyncio.to_thread(postgres.as_child, topology.POSTGRES)
        except StackError as error:
            if postgres.may_make or postgres.made():
                raise
            raise StackError(
                f"{error}, but the keys of its memories are kept in {topology.keystore(settings)}: put the cluster"
                f" back, or set DATABASE_URL to the database of these keys, or remove {settings.data} to begin anew"
            ) from error
        if not await supervisor.start(child):
            return None
        database_url, relocated = postgres.dsn, postgres.relocated
    facts = Facts(database_url=database_url, ports=ports, tokens=tokens)
    await migrate(settings, database_url)
    await _refuse_lost_keys(settings, database_url)
    engine, services = topology.engine(settings, facts), topology.services(settings, facts)
    _refuse_taken_ports(settings, {child.name: ports[child.name] for child in (*engine, *services)})
    if not (await supervisor.start(*engine) and await supervisor.start(*services)):
        return None
    return Stack(supervisor=supervisor, facts=facts, relocated=relocated)


def _place(database_url: str) -> str:
    """Where a database is: host, port and name; never the user or the password."""
    parts = urlsplit(database_url)
    hosts = parts.netloc.rpartition("@")[2] or "this machine"
    return f"{hosts}{'' if ':' in hosts else ':5432'}{parts.path}"


async def _refuse_lost_keys(settings: Settings, database_url: str) -> None:
    """StackError where the database's key store is gone: each service would refuse it, again and again."""
    place = topology.keystore(settings)
    if place.exists():
        return
    connection = await asyncpg.connect(database_url)
    try:
        if await connection.fetchval("select to_regclass('memory.key_store')") is None:
            return
        if await connection.fetchval("select count(*) from memory.key_store") == 0:
            return
    finally:
        await connection.close()
    anew = "name an empty database" if settings.database_url else "run `python -m stack clean"
    if not settings.database_url:
        anew += f" --data {settings.data}`"
    raise StackError(
        f"there is no key store in {place}, and the database was sealed with one: put it back, or {anew} to begin anew"
    )


def clean(settings: Settings) -> None:
    """Remove all that a stack has written, in the data folder and beside it; StackError while one runs on it."""
    if settings.data.exists():
        with _claimed(settings.data):
            _remove(relocation_folder(settings.data / "postgres"))
            _remove(settings.data)
    else:
        _remove(relocation_folder(settings.data / "postgres"))


def _remove(folder: Path) -> None:
    with disk_errors(folder):
        if folder.exists():
            shutil.rmtree(folder)


def _refuse_taken_ports(settings: Settings, ports: dict[str, int]) -> None:
    for name, port in ports.items():
        if not is_free(port):
            raise StackError(
                f"port {port} on {LOOPBACK}, kept for {name}, is taken: "
                f"free it or delete it in {settings.data / 'stack.json'}"
            )


@contextmanager
def _claimed(data: Path) -> Iterator[None]:
    """Hold the data folder for one stack; StackError when another has it."""
    with disk_errors(data):
        data.mkdir(parents=True, exist_ok=True)
        file = (data / "stack.lock").open("a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StackError(f"a stack already runs on {data}: stop that one first") from None
        yield
