"""What feed reads: the granted views of schema `memory`."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from kit.database import Database
from kit.sealing import KeyStore, Slot, key_alarm, open_rows
from services.feed.cursors import Cursor, History

QUERIES = Path(__file__).with_name("queries.sql")


@dataclass(frozen=True)
class Memory:
    """The current values of a live memory; `content` is an opened MemoryContent, as bytes."""

    author: str
    lane: str
    derivation: str
    fact_type: str
    status: str
    version: int
    occurred_at: datetime | None
    retained_at: datetime
    content: bytes
    trust: str = "extracted"
    may_be_stale: bool = False
    superseded_by: str = ""
    last_verified: datetime | None = None


@dataclass(frozen=True)
class Step:
    """One change; `memory` is None for a tombstone."""

    seq: int
    memory_id: str
    changed_at: datetime
    memory: Memory | None


@dataclass(frozen=True)
class Page:
    """Steps in order, without superseded ones; `through` is where the page ends, `more` whether the head is beyond."""

    steps: tuple[Step, ...]
    through: int
    nonce: int
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

    async def history(self, bank: str, seq: int) -> History:
        """What a cursor at `seq` is judged by."""
        row = await self._database.row("resume", bank, seq)
        if row is None:
            return History(0, 0, await self._database.value("epoch"), None)
        return History(row["head"], row["horizon"], row["epoch"], row["nonce"])

    async def page(self, bank: str, after: Cursor, limit: int, max_bytes: int) -> Page:
        """Up to `limit` seqs after a cursor, cut after `max_bytes` of sealed content."""
        rows = await self._database.fetch("page", bank, after.seq, limit)
        if not rows:
            return Page((), after.seq, after.nonce, False)
        kept, steps = await self._open(bank, _within(rows, max_bytes))
        last = kept[-1]
        return Page(steps, last["seq"], last["nonce"], last["seq"] < last["head"])

    async def live(
        self, bank: str, after_id: str, limit: int, max_bytes: int
    ) -> tuple[tuple[Step, ...], str]:
        """One page of live memories by id, cut after `max_bytes`, and the id to go on from (empty at the end)."""
        rows = await self._database.fetch("live", bank, after_id, limit)
        kept, steps = await self._open(bank, _within(rows, max_bytes))
        more = len(rows) == limit or len(kept) < len(rows)
        return steps, kept[-1]["memory_id"] if more else ""

    async def _open(self, bank: str, rows: Sequence[Any]) -> tuple[Sequence[Any], tuple[Step, ...]]:
        """The rows before the first live one without a key, and their steps. Raises KEY_MISSING where none comes before.

        So a reader gets all there is up to that memory, and goes no further until an operator has acted.
        """
        sealed = [row for row in rows if row["sealed"] is not None]
        opened = open_rows(
            self._keys,
            bank,
            [(r["memory_id"], Slot(r["key_page"], r["key_slot"]), r["sealed"]) for r in sealed],
        )
        content = {row["seq"]: plain for row, plain in zip(sealed, opened, strict=True)}
        missing = [row for row in sealed if content[row["seq"]] is None]
        if missing:
            lost = await self._alarm_if_live(bank, rows[0]["seq"], missing)
            rows = list(itertools.takewhile(lambda row: row["seq"] not in lost, rows))
        steps = []
        for row in rows:
            plain = content.get(row["seq"])
            if plain is not None:
                steps.append(Step(row["seq"], row["memory_id"], row["changed_at"], _memory(row, plain)))
            elif row["kind"] in ("forget", "erase"):
                steps.append(Step(row["seq"], row["memory_id"], row["changed_at"], None))
        return rows, tuple(steps)

    async def _alarm_if_live(self, bank: str, first: int, rows: Sequence[Any]) -> set[int]:
        """A row without a key was erased meanwhile, and its tombstone is still to come; if not, that is an alarm.

        The seqs of the latter. Raises KEY_MISSING where `first`, with which the page begins, is one.
        """
        still = await self._database.fetch(
            "still_live", bank, [row["memory_id"] for row in rows], [row["seq"] for row in rows]
        )
        live = {row["id"] for row in still}
        lost = [row for row in rows if row["memory_id"] in live]
        if lost:
            slots = [(row["memory_id"], Slot(row["key_page"], row["key_slot"])) for row in lost]
            refusal = key_alarm("a live memory has no key", bank, slots)
            if lost[0]["seq"] == first:
                raise refusal
        return {row["seq"] for row in lost}

    async def heads_of(self, banks: Sequence[str]) -> dict[str, int]:
        """The heads of banks."""
        return {row["bank"]: row["head"] for row in await self._database.fetch("heads_of", list(banks))}

    async def register_device(self, bank: str, device_id: str, principal: str) -> bool:
        """Makes a device known; False where it belongs to another principal."""
        async with self._database.transaction() as tx:
            if not await tx.value("register_device", bank, device_id, principal):
                return False
            tx.changed(bank, 1)
            return True

    async def ack_erasures(self, bank: str, device_id: str, principal: str, through: int) -> bool:
        """Records what a device has purged; False where this principal has no such device."""
        async with self._database.transaction() as tx:
            if not await tx.value("ack_erasure", bank, device_id, principal, through):
                return False
            tx.changed(bank, 1)
            return True


def _within(rows: Sequence[Any], max_bytes: int) -> Sequence[Any]:
    """The first rows whose sealed content stays within a budget; always at least one."""
    size = 0
    for count, row in enumerate(rows):
        size += len(row["sealed"] or b"")
        if count and size > max_bytes:
            return rows[:count]
    return rows


def _memory(row: Any, content: bytes) -> Memory:
    return Memory(
        row["author"], row["lane"], row["derivation"], row["fact_type"], row["status"], row["version"],
        row["occurred_at"], row["retained_at"], content, row["trust"], row["may_be_stale"], row["superseded_by"],
        row["last_verified"],
    )  # fmt: skip
