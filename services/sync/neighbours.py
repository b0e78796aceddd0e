"""What sync asks of others: the index for near-duplicates, and Postgres to wake the feed after a commit."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence

import asyncpg
import grpc
from teamlore.index.v1 import index_pb2, index_pb2_grpc

from kit.dialing import bearer, dial
from services.sync.records import Draft

log = logging.getLogger("teamlore.sync")
CHANNEL = "teamlore_heads"
_TIMEOUT = 10.0


class IndexClient:
    """Asks the index service, in one call a push."""

    def __init__(self, target: str, token: str) -> None:
        self._channel = dial(target) if target else None
        self._metadata = bearer(token)

    async def close(self) -> None:
        """Closes the channel."""
        if self._channel is not None:
            await self._channel.close()

    async def find(self, bank: str, drafts: Sequence[Draft], threshold: float) -> Mapping[str, str] | None:
        """Which draft nearly repeats which memory; None when the index cannot be asked, so that a push still stores."""
        if self._channel is None:
            return None
        request = index_pb2.FindNearDuplicatesRequest(
            bank=bank,
            candidates=[index_pb2.Candidate(id=draft.id, text=draft.text) for draft in drafts],
            threshold=threshold,
        )
        try:
            stub = index_pb2_grpc.IndexServiceStub(self._channel)
            answer = await stub.FindNearDuplicates(request, timeout=_TIMEOUT, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            log.warning("near-duplicate check skipped: %s", error.code().name)
            return None
        return {item.id: item.duplicate_of for item in answer.results if item.duplicate_of}


class Hints:
    """Tells the feed which heads moved, after commit, on a connection of its own; many commits make one hint.

    A hint may be lost: the feed polls as well.
    """

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
                await connection.execute(
                    f"select pg_notify('{CHANNEL}', b) from unnest($1::text[]) b", list(banks), timeout=5
                )
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                with contextlib.suppress(Exception):
                    if connection is not None:
                        connection.terminate()
                connection = None
            await asyncio.sleep(0.002)
