"""Hints that a bank's head moved: sent after commit, heard by whoever follows banks. One may be lost; all poll as well."""

import asyncio
import contextlib
from collections.abc import Callable

import asyncpg

from kit.errors import LOST

CHANNEL = "teamlore_heads"


class Sender:
    """Tells on a connection of its own, never inside the write transaction; many commits make one hint."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._banks: set[str] = set()
        self._wake = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    def committed(self, bank: str) -> None:
        """Notes that a bank's head moved."""
        self._banks.add(bank)
        self._wake.set()

    async def stop(self) -> None:
        """Ends the connection."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        connection = None
        while True:
            await self._wake.wait()
            self._wake.clear()
            banks, self._banks = self._banks, set()
            try:
                if connection is None or connection.is_closed():
                    connection = await asyncpg.connect(self._dsn, timeout=5)
                sql = f"select pg_notify('{CHANNEL}', b) from unnest($1::text[]) b"
                await connection.execute(sql, list(banks), timeout=5)
            except LOST:
                if connection is not None:
                    connection.terminate()
                connection = None
            await asyncio.sleep(0.002)


async def listen(dsn: str, heard: Callable[[str], None]) -> None:
    """Calls `heard` with each bank hinted at, for ever; while it cannot connect it tries again twice a second."""
    while True:
        lost = asyncio.Event()
        with contextlib.suppress(*LOST):
            connection = await asyncpg.connect(dsn, timeout=5)
            try:
                connection.add_termination_listener(lambda *_, gone=lost: gone.set())
                await connection.add_listener(CHANNEL, lambda *call: heard(str(call[3])))
                await lost.wait()
            finally:
                connection.terminate()
        await asyncio.sleep(0.5)
