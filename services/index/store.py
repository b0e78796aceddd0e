"""What index reads and keeps in Postgres: the granted views of `memory`, and its own cursors."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from teamlore.sync.v1 import sync_pb2

from kit.database import Database
from kit.errors import Refusal
from kit.sealing import KeyStore, Slot, key_alarm, open_rows
from services.index.following import LANES, Change

QUERIES = Path(__file__).with_name("queries.sql")


@dataclass(frozen=True)
class Memory:
    """What a hit shows of a memory."""

    id: str
    author: str
    lane: str
    text: str
    tags: tuple[str, ...]


TERMS, VECTORS = "terms", "vectors"
"""What is followed, each with a cursor of its own a bank; the vectors follow the terms."""
# The model takes a second for what is followed at once, and on a machine that is starved some twenty.
TURN_SECONDS = 120


class Turn:
    """One bank, whose terms or vectors this process alone follows. It holds up no erasure, however long the model takes."""

    def __init__(self, store: "Store", kind: str, connection: Any, bank: str, seq: int, head: int) -> None:
        self._store = store
        self._kind = kind
        self._connection = connection
        self._bank = bank
        self._seq = seq
        self._head = head

    async def page(self, limit: int) -> tuple[tuple[Change, ...], int, bool]:
        """The changes after the cursor, the seq they end at, and whether there are more.

        Raises Refusal KEY_MISSING.
        """
        page = self._store.database.sql("page")
        rows = await self._connection.fetch(page, self._bank, self._seq, self._head, limit)
        if not rows:  # compacted away
            return (), self._head, False
        through = rows[-1]["seq"]
        return await self._store.changes(self._bank, rows), through, through < self._head

    @contextlib.asynccontextmanager
    async def claim(self, through: int) -> AsyncIterator[bool]:
        """Lets erasures wait while points are written, then moves the cursor; false where it was moved meanwhile.

        Each statement within sees what is committed by then, so a memory can be looked at again. The server ends a claim
        that does nothing for some seconds: nothing that takes long belongs in here.
        """
        sql = self._store.database.sql
        async with self._connection.transaction(isolation="read_committed"):
            claimed = await self._connection.fetchrow(sql(f"{self._kind}_claim"), self._bank, self._seq)
            yield claimed is not None
            if claimed is not None:
                await self._connection.execute(sql(f"{self._kind}_save"), self._bank, through)


class Store:
    """Reads changes and memories, and opens what is sealed in them."""

    def __init__(self, database: Database, keys: KeyStore) -> None:
        self.database = database
        self._keys = keys

    async def check_model(self, collection: str, model: str, revision: str, dimension: int) -> None:
        """Records the model of a collection's vectors. Raises Refusal MODEL_MISMATCH where another one made them."""
        await self.database.fetch("record_model", collection, model, revision, dimension)
        row = await self.database.row("model", collection)
        assert row is not None
        if (row["model"], row["revision"], row["dimension"]) != (model, revision, dimension):
            raise Refusal(
                "MODEL_MISMATCH",
                f"the vectors were made by {row['model']} (revision {row['revision'][:12]}, {row['dimension']} dimensions),"
                f" but EMBED_MODEL gives {model} (revision {revision[:12]}, {dimension} dimensions)",
            )

    async def start_over(self, kind: str) -> None:
        """Follows the terms or the vectors of every bank from its beginning again."""
        await self.database.fetch(f"{kind}_start_over")

    async def behind(self, kind: str) -> list[str]:
        """Banks with changes whose terms, or whose vectors, were not followed yet."""
        return [row["bank"] for row in await self.database.fetch(f"{kind}_behind")]

    async def covered(self, bank: str) -> bool:
        """Whether all that has a vector in this bank can be found by its terms."""
        return bool(await self.database.value("covered", bank))

    @contextlib.asynccontextmanager
    async def turn(self, kind: str, bank: str) -> AsyncIterator[Turn | None]:
        """The bank for this process alone, or None where it is not behind or another process has it.

        A lock of the session keeps the others away, outside of any transaction. The server ends a session that says
        nothing for TURN_SECONDS, so that a process that stopped with a turn leaves it to the others.
        """
        await self.database.fetch(f"{kind}_make_cursor", bank)
        async with self.database.connection() as connection:
            sql, name = self.database.sql, f"index {kind} {bank}"
            if not await connection.fetchval(sql("take_turn"), name, f"{TURN_SECONDS}s"):
                yield None
                return
            try:
                row = await connection.fetchrow(sql(f"{kind}_turn"), bank)
                yield None if row is None else Turn(self, kind, connection, bank, row["seq"], row["head"])
            finally:
                try:
                    await connection.execute(sql("end_turn"), name)
                except BaseException:
                    connection.terminate()  # or the turn would stay taken for as long as the pool has the connection
                    raise

    async def settled(self, bank: str) -> None:
        """Returns when every process that claimed this bank before has written what it claimed it for."""
        for kind in (TERMS, VECTORS):
            await self.database.fetch(f"{kind}_settled", bank)

    async def purged(self, erasure_id: str, bank: str, ids: Sequence[str]) -> int:
        """Notes what was destroyed; counts those ids of which this erasure had not been purged before.

        The call's audit row is written when there are any.
        """
        async with self.database.transaction() as tx:
            fresh = await tx.fetch("note_purged", erasure_id, sorted(ids))
            tx.changed(bank, len(fresh))
        return len(fresh)

    async def live(self, bank: str, ids: Sequence[str]) -> set[str]:
        """Which of these memories are live now."""
        if not ids:
            return set()
        return {row["id"] for row in await self.database.fetch("live", bank, list(ids))}

    async def recalled(self, bank: str, ids: Sequence[str]) -> set[str]:
        """Which of these memories are recalled now, of any lane: live, and `current` or `suspect`."""
        if not ids:
            return set()
        return {row["id"] for row in await self.database.fetch("recalled", bank, list(ids))}

    async def texts(self, bank: str, ids: Sequence[str]) -> dict[str, str]:
        """The texts of those of these memories that are recalled now, of any lane. Raises Refusal KEY_MISSING."""
        if not ids:
            return {}
        rows = [(row["id"], row) for row in await self.database.fetch("texts", bank, list(ids))]
        opened = await self._open(bank, rows)
        return {
            memory_id: content.text
            for (memory_id, _), content in zip(rows, opened, strict=True)
            if content is not None
        }

    async def min_lane(self, bank: str) -> str:
        """The least lane that the bank serves."""
        return str(await self.database.value("min_lane", bank) or LANES[0])

    async def memories(self, bank: str, ids: Sequence[str], limit: int) -> list[Memory]:
        """The first `limit` of these memories that are recalled, of a lane that the bank serves, in the order given.

        Raises Refusal KEY_MISSING.
        """
        rows = {row["id"]: row for row in await self.database.fetch("memories", bank, list(ids))}
        kept = [rows[memory_id] for memory_id in ids if memory_id in rows][:limit]
        found = []
        for row, content in zip(
            kept, await self._open(bank, [(row["id"], row) for row in kept]), strict=True
        ):
            if content is not None:
                found.append(Memory(row["id"], row["author"], row["lane"], content.text, tuple(content.tags)))
        return found

    async def changes(self, bank: str, rows: Sequence[Any]) -> tuple[Change, ...]:
        """Rows of a page as changes. Raises Refusal KEY_MISSING."""
        sealed = [(row["memory_id"], row) for row in rows if row["sealed"] is not None]
        opened = await self._open(bank, sealed)
        content = {row["seq"]: one for (_, row), one in zip(sealed, opened, strict=True)}
        changes = []
        for row in rows:
            plain = content.get(row["seq"])
            text = None if plain is None else plain.text
            changes.append(
                Change(
                    row["seq"],
                    row["memory_id"],
                    row["kind"],
                    row["lane"] or "",
                    row["derivation"] or "",
                    text,
                )
            )
        return tuple(changes)

    async def _open(self, bank: str, rows: Sequence[tuple[str, Any]]) -> list[Any]:
        """The contents; None for a memory that was erased meanwhile. A live one without a key is an alarm."""
        opened = open_rows(
            self._keys,
            bank,
            [(memory_id, Slot(r["key_page"], r["key_slot"]), r["sealed"]) for memory_id, r in rows],
        )
        missing = [memory_id for (memory_id, _), plain in zip(rows, opened, strict=True) if plain is None]
        still = await self.live(bank, missing)
        if still:
            slots = [
                (memory_id, Slot(r["key_page"], r["key_slot"])) for memory_id, r in rows if memory_id in still
            ]
            raise key_alarm("a live memory has no key", bank, slots)
        return [None if plain is None else sync_pb2.MemoryContent.FromString(plain) for plain in opened]
