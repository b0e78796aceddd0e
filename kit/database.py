"""One way to the database: named queries, and transactions that cannot change state without an audit row."""

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg

from kit import audit
from kit.errors import LOST

Record = asyncpg.Record
PATIENCE, STATEMENT_SECONDS = 10.0, 60
_EPOCH, _TICK = datetime(2000, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_FIRST_TICK, _LAST_TICK = (_FIRST - _EPOCH) // _TICK, (_LAST - _EPOCH) // _TICK
_RECORD = "select compliance.record_call($1, $2, $3, $4, $5, $6)"


def load_queries(path: Path) -> Mapping[str, str]:
    """Reads a file of statements, each headed by `-- name: word` and a line that says its purpose."""
    queries: dict[str, str] = {}
    for part in re.split(r"^-- name: ", path.read_text(encoding="utf-8"), flags=re.M)[1:]:
        name, _, sql = part.partition("\n")
        queries[name.strip()] = sql.strip()
    return queries


class Unusable(OSError):
    """A database that no service can work with, in words of ours, which quote nothing of the driver's."""


def why(error: BaseException) -> str:
    """What may be said of a database that cannot be used. A driver's own words quote the address, and its password."""
    if isinstance(error, Unusable):
        return str(error)
    if isinstance(error, asyncpg.PostgresError):
        return f"{type(error).__name__} ({error.sqlstate})"
    if isinstance(error, OSError) and (error.errno or 0) > 0:
        return f"[Errno {error.errno}] {os.strerror(error.errno or 0)}"
    return "the host's name is not known" if isinstance(error, socket.gaierror) else type(error).__name__


class UnauditedChange(Exception):
    """A defect: code tried to commit a change of state outside of an audited call."""


@dataclass
class Transaction:
    """One open transaction. Call `changed` for what it changes; without that it is rolled back."""

    connection: "asyncpg.pool.PoolConnectionProxy[Record]"
    queries: Mapping[str, str]
    bank: str = ""
    objects: int = 0

    async def fetch(self, query: str, *args: Any) -> list[Record]:
        """All rows of a named query."""
        return await self.connection.fetch(self.queries[query], *args)

    async def row(self, query: str, *args: Any) -> Record | None:
        """The first row of a named query, or None."""
        return await self.connection.fetchrow(self.queries[query], *args)

    async def value(self, query: str, *args: Any) -> Any:
        """The first column of the first row of a named query, or None."""
        return await self.connection.fetchval(self.queries[query], *args)

    def changed(self, bank: str, objects: int) -> None:
        """Declares that this transaction changed `objects` things of `bank` (empty: of the deployment)."""
        self.bank = bank
        self.objects += objects


class _Connection(asyncpg.Connection):
    """Needs no round trip to be given back: who sets up a session takes it back, and what is open is rolled back."""

    def get_reset_query(self) -> str:
        return ""


def _ticks(moment: datetime) -> tuple[int]:
    return ((moment.astimezone(UTC) - _EPOCH) // _TICK,)


def _moment(ticks: tuple[int]) -> datetime:
    return _EPOCH + min(max(ticks[0], _FIRST_TICK), _LAST_TICK) * _TICK


async def _keep_times_finite(connection: "asyncpg.Connection[Record]") -> None:
    """The driver makes infinities of the first and the last moment of the calendar, which no Timestamp can hold.

    So times go as what they are on the wire, microseconds since 2000. An infinity that is there reads as the border.
    """
    await connection.set_type_codec(
        "timestamptz", schema="pg_catalog", format="tuple", encoder=_ticks, decoder=_moment
    )


class Database:
    """A service's connections, all in the service's own role."""

    def __init__(self, pool: "asyncpg.Pool[Record]", queries: Mapping[str, str]) -> None:
        self._pool = pool
        self._queries = queries

    @classmethod
    async def connect(
        cls, dsn: str, service: str, queries: Path, size: int = 10, patience: float = PATIENCE
    ) -> "Database":
        """Opens a pool as role `teamlore_<service>`. Raises Unusable or asyncpg errors when it cannot.

        A transaction that does nothing for `patience` seconds is ended by the server, and with it all that others wait
        for; so is a statement that waits as long for a lock.
        """
        try:
            pool = await asyncpg.create_pool(
                dsn,
                min_size=1,
                max_size=size,
                timeout=10,
                command_timeout=STATEMENT_SECONDS,
                connection_class=_Connection,
                init=_keep_times_finite,
                server_settings={
                    "role": f"teamlore_{service}",
                    "application_name": f"teamlore-{service}",
                    # By the server, which also ends what a stopped process or a lost machine has left open.
                    "idle_in_transaction_session_timeout": f"{int(patience * 1000)}",
                    "lock_timeout": f"{int(patience * 1000)}",
                    "statement_timeout": f"{STATEMENT_SECONDS * 1000}",
                },
            )
        except (OSError, ValueError, asyncpg.InterfaceError) as error:
            raise Unusable(f"the database that DATABASE_URL names cannot be reached: {why(error)}") from error
        if await pool.fetchval("show synchronous_commit") == "off":
            await pool.close()
            raise Unusable("synchronous_commit is off: acknowledged writes could be lost; turn it on")
        return cls(pool, load_queries(queries))

    async def close(self) -> None:
        """Closes the pool; connections that hang are ended after 5 s."""
        try:
            async with asyncio.timeout(5):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()

    async def fetch(self, query: str, *args: Any) -> list[Record]:
        """All rows of a named query, in a snapshot of its own."""
        return await self._pool.fetch(self._queries[query], *args)

    async def row(self, query: str, *args: Any) -> Record | None:
        """The first row of a named query, or None."""
        return await self._pool.fetchrow(self._queries[query], *args)

    async def value(self, query: str, *args: Any) -> Any:
        """The first column of the first row of a named query, or None."""
        return await self._pool.fetchval(self._queries[query], *args)

    async def audited_value(self, query: str, *args: Any) -> Any:
        """The first column of a statement that changes state and writes the call's audit row by itself.

        Its last four parameters are call, name, principal and token. Raises UnauditedChange where nobody is calling.
        """
        call = audit.current()
        if call is None:
            raise UnauditedChange("a change of state outside of an audited call")
        return await self._pool.fetchval(
            self._queries[query], *args, call.call_id, call.name, call.principal, call.token_id
        )

    async def execute_raw(self, sql: str, *args: Any) -> Any:
        """One statement that the kit itself needs, such as the poll of the access state."""
        return await self._pool.fetchrow(sql, *args)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """A transaction that commits only together with its audit row.

        What was not declared with `changed` is rolled back. Raises UnauditedChange where nobody is calling.
        """
        async with self._pool.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            open_ = Transaction(connection, self._queries)
            try:
                yield open_
                if open_.objects == 0:
                    await transaction.rollback()
                    return
                call = audit.current()
                if call is None:
                    raise UnauditedChange("a change of state outside of an audited call")
                await connection.execute(
                    _RECORD, call.call_id, call.name, call.principal, call.token_id, open_.bank, open_.objects
                )
            except BaseException:
                with contextlib.suppress(*LOST):
                    await transaction.rollback()
                raise
            await transaction.commit()

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator["asyncpg.pool.PoolConnectionProxy[Record]"]:
        """A bare connection, for reads that need one snapshot over several statements."""
        async with self._pool.acquire() as connection:
            yield connection

    def sql(self, query: str) -> str:
        """The text of a named query."""
        return self._queries[query]
