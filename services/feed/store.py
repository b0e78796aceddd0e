"""What feed reads: the granted views of schema `memory`."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from kit.database import Database
from kit.sealing import KeyStore, Slot, key_alarm, open_many
from services.feed import wire
from services.feed.cursors import Cursor, History, judge, judge_as_of

QUERIES = Path(__file__).with_name("queries.sql")
# Devices that one principal may have in one bank; every receipt of the bank names them.
DEVICES = 50
# What a change takes beside its content: a longest id, author and fact type, and the rest.
HEADER_BYTES = 600
# Columns of the queries `page` and `live`, by place: to ask a record by name costs more than to open what it holds.
SEQ, KIND, NONCE, ID, KEY_PAGE, KEY_SLOT, SEALED, MOMENTS, OCCURRED, VERIFIED, SHARED = range(11)
TO_OPEN, TIMES = slice(ID, SEALED + 1), slice(MOMENTS, VERIFIED + 1)
HEAD, HORIZON, EPOCH, AT = range(SHARED + 1, SHARED + 5)


@dataclass(frozen=True)
class Page:
    """Changes in order, without superseded ones, from one place of the history to another.

    `changes` is ready for the wire, as field 1 of the message that carries them; `more` says whether the head is beyond.
    """

    changes: bytes
    start: Cursor
    end: Cursor
    more: bool


@dataclass(frozen=True)
class Head:
    """Where a bank stands; all zero for an absent one, but for the epoch."""

    head: int
    horizon: int
    epoch: int
    nonce: int
    live: int
    digest: int


@dataclass(frozen=True)
class Device:
    """One mirror of a bank; `retired_at` is None for one in use."""

    device_id: str
    principal: str
    registered_at: datetime
    last_seen_at: datetime
    acked_seq: int
    retired_at: datetime | None


class ReadAhead:
    """The rows of a stream's next page, fetched while the ones before are opened and sent. At most one page waits.

    Rows wait sealed, so that what is erased meanwhile is not told any more.
    """

    def __init__(self, fetch: Callable[[Cursor], Awaitable[Sequence[Any]]]) -> None:
        self._fetch = fetch
        self._after: Cursor | None = None
        self._task: asyncio.Task[Sequence[Any]] | None = None
        self._ended = False

    async def begin(self, after: Cursor) -> None:
        """Asks for the rows after a place, and goes on once the question has left."""
        if not self._ended:
            self._after, self._task = after, asyncio.ensure_future(self._fetch(after))
            await asyncio.sleep(0)

    async def take(self, after: Cursor | None) -> Sequence[Any] | None:
        """The rows after that place; None where they are not here, or where more may be there by now.

        Who reaches the head waits for the bell then, and it may have rung for what these rows are too old to hold.
        """
        if self._after != after:
            self.drop()
        task, self._task = self._task, None
        if task is None:
            return None
        rows = await task
        return rows if rows and rows[-1][SEQ] is not None and rows[-1][SEQ] < rows[0][HEAD] else None

    def drop(self) -> None:
        """Lets go of what waits."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def end(self) -> None:
        """Nothing is asked for any more: another watcher's read may still be under way with this."""
        self._ended = True
        self.drop()


class Store:
    """Reads changes and opens what is sealed in them."""

    def __init__(self, database: Database, keys: KeyStore) -> None:
        self._database = database
        self._keys = keys

    async def head(self, bank: str) -> Head:
        """Where the bank stands now."""
        row = await self._database.row("head", bank)
        if row is None:
            return Head(0, 0, await self._database.value("epoch"), 0, 0, 0)
        return Head(
            row["head"], row["horizon"], row["epoch"], row["nonce"] or 0, row["live"], int(row["digest"])
        )

    @contextlib.asynccontextmanager
    async def reading_ahead(self, bank: str, limit: int) -> AsyncIterator[ReadAhead]:
        """For a stream that will read a bank's pages one after the other."""
        ahead = ReadAhead(lambda after: self._database.fetch("page", bank, after.seq, limit))
        try:
            yield ahead
        finally:
            ahead.end()

    async def page(
        self, bank: str, after: Cursor | None, limit: int, max_bytes: int, ahead: ReadAhead | None = None
    ) -> Page:
        """Up to `limit` seqs after a cursor (None: from the beginning), cut before `max_bytes`, at least one.

        Raises Refusal CURSOR_DIVERGED or CURSOR_BEFORE_HORIZON where the history does not go on from the cursor: it is
        judged by the same snapshot that the page is read from.
        """
        rows = await ahead.take(after) if ahead is not None else None
        if rows is None:
            rows = await self._database.fetch("page", bank, after.seq if after else 0, limit)
        if rows:
            history = History(rows[0][HEAD], rows[0][HORIZON], rows[0][EPOCH], rows[0][AT])
        else:
            history = History(0, 0, await self._database.value("epoch"), None)
        start = after or Cursor(history.epoch, 0, 0)
        judge(start, history)
        if not rows or rows[0][SEQ] is None:
            return Page(b"", start, start, False)
        fitting = _within(rows, max_bytes)
        if ahead is not None and len(fitting) == limit and fitting[-1][SEQ] < history.head:
            await ahead.begin(Cursor(start.epoch, fitting[-1][SEQ], fitting[-1][NONCE]))
        kept, changes = await self._open(bank, fitting)
        end = Cursor(start.epoch, kept[-1][SEQ], kept[-1][NONCE])
        return Page(changes, start, end, end.seq < history.head)

    async def live(
        self, bank: str, after_id: str, limit: int, max_bytes: int, as_of: int = 0
    ) -> tuple[bytes, str]:
        """One page of live memories by id, cut before `max_bytes`, and the id to go on from (empty at the end).

        With `as_of` those that were live at that seq. Raises Refusal as `judge_as_of` does, by the page's own snapshot.
        """
        if as_of:
            rows = await self._database.fetch("live_as_of", bank, after_id, as_of, limit)
            judge_as_of(as_of, *(rows[0][HEAD:] if rows else (0, 0)))
            rows = [row for row in rows if row[SEQ] is not None]
        else:
            rows = await self._database.fetch("live", bank, after_id, limit)
        kept, memories = await self._open(bank, _within(rows, max_bytes))
        more = len(rows) == limit or len(kept) < len(rows)
        return memories, kept[-1][ID] if more else ""

    async def _open(self, bank: str, rows: Sequence[Any]) -> tuple[Sequence[Any], bytes]:
        """The rows before the first live one without a key, and their changes. Raises KEY_MISSING where none comes before.

        So a reader gets all there is up to that memory, and goes no further until an operator has acted.
        """
        opened = open_many(self._keys, bank, [row[TO_OPEN] for row in rows])
        pairs = list(zip(rows, opened, strict=True))
        missing = [row for row, plain in pairs if plain is None and row[SEALED] is not None]
        if missing:
            lost = await self._alarm_if_there(bank, rows[0][SEQ], missing)
            pairs = list(itertools.takewhile(lambda pair: pair[0][SEQ] not in lost, pairs))
        parts: list[bytes] = []
        for row, plain in pairs:
            if plain is not None:
                shared = wire.shared_fields(row[SHARED])
                parts += wire.upsert(row[ID].encode(), row[SEQ], shared, plain, *row[TIMES])
            elif row[SEALED] is None and row[KIND] in ("forget", "erase"):
                parts.append(wire.tombstone(row[ID].encode(), row[SEQ], row[MOMENTS]))
            # Else superseded; or erased while it was read, and its tombstone is still to come.
        return rows[: len(pairs)], b"".join(parts)

    async def _alarm_if_there(self, bank: str, first: int, rows: Sequence[Any]) -> set[int]:
        """A row without a key was erased meanwhile, and its tombstone is still to come; if not, that is an alarm.

        The seqs of the latter. Raises KEY_MISSING where `first`, with which the page begins, is one.
        """
        still = await self._database.fetch(
            "still_there", bank, [row[ID] for row in rows], [row[SEQ] for row in rows]
        )
        there = {row["id"] for row in still}
        lost = [row for row in rows if row[ID] in there]
        if lost:
            refusal = key_alarm(
                "a live memory has no key", bank, [(r[ID], Slot(r[KEY_PAGE], r[KEY_SLOT])) for r in lost]
            )
            if lost[0][SEQ] == first:
                raise refusal
        return {row[SEQ] for row in lost}

    async def heads_of(self, banks: Sequence[str]) -> dict[str, int]:
        """The heads of banks."""
        return {row["bank"]: row["head"] for row in await self._database.fetch("heads_of", list(banks))}

    async def register_device(self, bank: str, device_id: str, principal: str) -> str:
        """Makes a device known: `new` or `known`; `foreign` for another principal's, `full` at DEVICES of them."""
        async with self._database.transaction() as tx:
            answer = str(await tx.value("admit_device", bank, device_id, principal, DEVICES))
            tx.changed(bank, int(answer in ("new", "known")))
        return answer

    async def retire_device(self, bank: str, device_id: str, principal: str | None) -> bool:
        """Retires a device (None: of anybody); False where there is no such device. To call again changes nothing."""
        async with self._database.transaction() as tx:
            retired = bool(await tx.value("retire_device", bank, device_id, principal))
            tx.changed(bank, int(retired))
        return retired or bool(await self._database.value("device_is_known", bank, device_id, principal))

    async def devices(self, bank: str, principal: str | None, after: str, limit: int) -> tuple[Device, ...]:
        """One page of a bank's devices by id (None: of everybody)."""
        return tuple(
            Device(**row) for row in await self._database.fetch("devices", bank, principal, after, limit)
        )

    async def ack_erasures(self, bank: str, device_id: str, principal: str, through: int) -> bool:
        """Records what a device has purged; False where this principal has no such device."""
        async with self._database.transaction() as tx:
            if not await tx.value("ack_erasure", bank, device_id, principal, through):
                return False
            tx.changed(bank, 1)
            return True


def _within(rows: Sequence[Any], max_bytes: int) -> Sequence[Any]:
    """The first rows whose changes stay within a budget; always at least one."""
    size = 0
    for count, row in enumerate(rows):
        size += HEADER_BYTES + len(row[SEALED] or b"")
        if count and size > max_bytes:
            return rows[:count]
    return rows
