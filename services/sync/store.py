"""Sync's rows: schema `memory`, written only through its functions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kit.database import Database
from kit.sealing import Slot
from services.sync.pushing import Known, Policy, SealedDraft, StoredRow

QUERIES = Path(__file__).with_name("queries.sql")


@dataclass(frozen=True)
class Erased:
    """What an erase did: memories that left recall, memories buried, and the operation (empty for none)."""

    deleted: int
    erased: int
    erasure_id: str


class Store:
    """Reads and writes schema `memory`. `committed` is told the bank after each commit.

    `quota` counts what each principal stores; without it no row is written for that.
    """

    def __init__(self, database: Database, committed: Callable[[str], None], quota: bool = False) -> None:
        self._database = database
        self._committed = committed
        self._quota = quota

    async def policy(self, bank: str) -> Policy | None:
        """The bank's policy; None for a bank nobody has written to."""
        row = await self._database.row("bank_policy", bank)
        if row is None:
            return None
        return Policy(
            row["near_duplicates"],
            row["near_duplicate_threshold"],
            row["barrier"] or "",
            row["archived"],
            row["pii"],
        )

    async def stored_today(self, principal: str) -> tuple[int, float]:
        """Records that a principal stored on this day (UTC), and the seconds that are left of it."""
        row = await self._database.row("stored_today", principal)
        assert row is not None
        return row["records"], float(row["rest_of_day"])

    async def lookup(self, ids: Sequence[str]) -> Mapping[str, Known]:
        """What each known id is now."""
        result = {}
        for row in await self._database.fetch("lookup_ids", list(ids)):
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
        async with self._database.transaction() as tx:
            if make_bank:
                await tx.fetch("open_bank", bank, author)
            rows = await tx.fetch(
                "put",
                bank,
                author,
                [item.draft.id for item in drafts],
                [item.draft.fact_type for item in drafts],
                [item.draft.occurred_at for item in drafts],
                [item.slot.page for item in drafts],
                [item.slot.index for item in drafts],
                [item.sealed for item in drafts],
            )
            won = {row["stored_id"]: row["stored_seq"] for row in rows}
            if won:
                await tx.fetch("add_to_digest", bank, list(won), list(won.values()))
                if self._quota:
                    # After the head, as everywhere: who waits here holds nothing that its holder needs.
                    await tx.fetch("count_records", author, len(won))
                tx.changed(bank, len(won))
        if won:
            self._committed(bank)
        return set(won)

    async def forget(self, bank: str, ids: Sequence[str]) -> int:
        """Hides memories; counts them. Raises Refusal BANK_HELD through the driver."""
        async with self._database.transaction() as tx:
            count = int(await tx.value("forget", bank, list(ids)))
            tx.changed(bank, count)
        self._committed(bank)
        return count

    async def erase(self, bank: str, ids: Sequence[str], principal: str, erasure_id: str) -> Erased:
        """Buries memories in one commit. Raises Refusal BANK_HELD through the driver."""
        async with self._database.transaction() as tx:
            row = await tx.row("erase", bank, list(ids), principal, erasure_id)
            assert row is not None
            tx.changed(bank, row["erased"])
        self._committed(bank)
        return Erased(row["deleted"], row["erased"], erasure_id if row["erased"] else "")

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
