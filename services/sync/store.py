"""Sync's rows: schema `memory`, written only through its functions."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from kit.database import Database
from kit.sealing import Slot
from services.sync.pushing import Known, Policy, SealedDraft, StoredRow

QUERIES = Path(__file__).with_name("queries.sql")
CONNECTIONS = 20
# Writers of one bank wait for each other at its head, each on a connection. Where somebody holds the head for long, they
# must not take all connections from the other banks.
WRITERS_A_BANK = 8


@dataclass(frozen=True)
class Erased:
    """What an erase did: memories that left recall, memories buried, and the operation (empty for none)."""

    deleted: int
    erased: int
    erasure_id: str


@dataclass(frozen=True)
class StatusChange:
    """What to change of a memory's standing; None leaves what stands."""

    status: str | None = None
    trust: str | None = None
    may_be_stale: bool | None = None
    superseded_by: str | None = None
    last_verified: datetime | None = None
    by_person: bool = False
    """Whether a person was present; by whom else a change is made, `human` falls to `agent_verified`."""


@dataclass(frozen=True)
class Standing:
    """Where a memory stands: `done`, `same`, `conflict` or `no successor`, its version and its newest seq."""

    outcome: str
    version: int
    seq: int


class Store:
    """Reads and writes schema `memory`. `committed` is told the bank after each commit.

    `quota` counts what each principal stores; without it no row is written for that.
    """

    def __init__(self, database: Database, committed: Callable[[str], None], quota: bool = False) -> None:
        self._database = database
        self._committed = committed
        self._quota = quota
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def _turn(self, bank: str) -> asyncio.Semaphore:
        """A turn to write into a bank; who waits for one holds no connection."""
        turn = self._turns.get(bank)
        if turn is None:
            turn = self._turns[bank] = asyncio.Semaphore(WRITERS_A_BANK)
        return turn

    async def policy(self, bank: str) -> Policy | None:
        """The bank's policy; None for a bank nobody has written to."""
        return (await self.ground(bank, ()))[0]

    async def ground(self, bank: str, ids: Sequence[str]) -> tuple[Policy | None, set[str]]:
        """The bank's policy as `policy`, and those of the ids that are known anywhere."""
        row = await self._database.row("ground", bank, list(ids))
        assert row is not None
        if row["bank"] is None:
            return None, set(row["known"])
        barrier = row["barrier"] or ""
        policy = Policy(
            row["near_duplicates"], row["near_duplicate_threshold"], barrier, row["archived"], row["pii"]
        )
        return policy, set(row["known"])

    async def stored_today(self, principal: str) -> tuple[int, float]:
        """Records that a principal stored on this day (UTC), and the seconds that are left of it."""
        row = await self._database.row("stored_today", principal)
        assert row is not None
        return row["records"], float(row["rest_of_day"])

    async def lookup(self, bank: str, ids: Sequence[str]) -> Mapping[str, Known]:
        """What each known id is now, to a push into `bank`."""
        result = {}
        for row in await self._database.fetch("lookup_ids", bank, list(ids)):
            live = None
            if row["live"]:
                slot = Slot(row["key_page"], row["key_slot"])
                live = StoredRow(slot, row["sealed"], row["fact_type"], row["occurred_at"])
            result[row["id"]] = Known(row["id"], row["bank"], live)
        return result

    async def put(self, bank: str, author: str, drafts: Sequence[SealedDraft], make_bank: bool) -> set[str]:
        """Stores drafts in one commit, with the author's bank where it is missing; gives the ids that were won.

        Raises Refusal INVALID_SCOPE through the driver for a bank id without a layer.
        """
        columns = (
            [item.draft.id for item in drafts],
            [item.draft.fact_type for item in drafts],
            [item.draft.occurred_at for item in drafts],
            [item.slot.page for item in drafts],
            [item.slot.index for item in drafts],
            [item.sealed for item in drafts],
            [item.retain_tag for item in drafts],
        )
        async with self._turn(bank):
            if make_bank:
                won = await self._put_into_new(bank, author, columns)
            else:
                # The bank stands, so one statement does it all: each round trip is one that others on the head wait for.
                won = set(await self._database.audited_value("push", bank, author, *columns, self._quota))
        if won:
            self._committed(bank)
        return won

    async def _put_into_new(self, bank: str, author: str, columns: Sequence[Any]) -> set[str]:
        async with self._database.transaction() as tx:
            await tx.fetch("open_bank", bank, author)
            rows = await tx.fetch("put", bank, author, *columns)
            won = {row["stored_id"] for row in rows if row["stored_seq"] is not None}
            if won and self._quota:
                await tx.fetch("count_records", author, len(won))
            tx.changed(bank, len(rows))
        return won

    async def forget(self, bank: str, ids: Sequence[str]) -> int:
        """Hides memories, and buries ids never seen; counts the former. Raises Refusal BANK_HELD through the driver."""
        async with self._turn(bank), self._database.transaction() as tx:
            row = await tx.row("forget", bank, list(ids))
            assert row is not None
            tx.changed(bank, row["deleted"] + row["buried"])
        self._committed(bank)
        return int(row["deleted"])

    async def erase(self, bank: str, ids: Sequence[str], principal: str, erasure_id: str) -> Erased:
        """Buries memories in one commit, and ids never seen. Raises as `forget`."""
        async with self._turn(bank), self._database.transaction() as tx:
            row = await tx.row("erase", bank, list(ids), principal, erasure_id)
            assert row is not None
            tx.changed(bank, row["erased"] + row["buried"])
        self._committed(bank)
        return Erased(row["deleted"], row["erased"], erasure_id if row["erased"] else "")

    async def status(self, bank: str, memory_id: str, seen: int, change: StatusChange) -> Standing | None:
        """Changes a memory's standing where `seen` is its version; None for one that is not live in the bank."""
        async with self._turn(bank), self._database.transaction() as tx:
            row = await tx.row("status", bank, memory_id, seen, *astuple(change))
            if row is None:
                return None
            tx.changed(bank, int(row["outcome"] == "done"))
        if row["outcome"] == "done":
            self._committed(bank)
        return Standing(row["outcome"], row["now_version"], row["now_seq"])

    async def live(self, bank: str, ids: Sequence[str]) -> list[Any]:
        """The rows of those of the ids that are live in the bank, by id."""
        return await self._database.fetch("live_by_id", bank, list(ids))

    async def recalled_ids(self, bank: str, ids: Collection[str]) -> set[str]:
        """Those of the ids that are recalled in the bank now: live, and `current` or `suspect`."""
        return {row["id"] for row in await self._database.fetch("recalled_ids", bank, list(ids))}

    async def together(self, bank: str, ids: Sequence[str]) -> list[str]:
        """The live ones of the ids, then what a forget of them takes along; at most 1000."""
        return [row["id"] for row in await self._database.fetch("together", bank, list(ids))]

    async def keys_to_destroy(self, erasure_id: str, bank: str, ids: Sequence[str]) -> dict[str, Slot]:
        """The slots of an erasure that are still open, by memory id."""
        rows = await self._database.fetch("keys_to_destroy", erasure_id, bank, list(ids))
        return {row["id"]: Slot(row["key_page"], row["key_slot"]) for row in rows}

    async def finish_key_destruction(self, bank: str, erasure_id: str, ids: Sequence[str]) -> int:
        """Marks keys as destroyed; counts those that were open."""
        async with self._database.transaction() as tx:
            count = int(await tx.value("finish_key_destruction", erasure_id, list(ids)))
            tx.changed(bank, count)
        return count
