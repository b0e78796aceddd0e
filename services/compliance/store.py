"""Compliance's rows: holds and erasures in schema `memory`, written only through its functions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from kit.database import Database
from kit.sealing import Slot
from services.compliance.erasures import Erasure, Mirror, Open
from services.compliance.receipts import Receipt

QUERIES = Path(__file__).with_name("queries.sql")


@dataclass(frozen=True)
class Hold:
    """A legal hold; it binds while `lifted_at` is None."""

    hold_id: str
    bank: str
    matter: str
    placed_by: str
    placed_at: datetime
    review_at: datetime | None
    lifted_at: datetime | None


@dataclass(frozen=True)
class Placed:
    """A hold as it was placed, with the erasures under way that it stops and those that it comes too late for."""

    hold: Hold
    stopped: tuple[str, ...]
    unstoppable: tuple[str, ...]


class Store:
    """Reads and writes holds and erasures. `committed` is told the bank after each commit that moved its head."""

    def __init__(self, database: Database, committed: Callable[[str], None]) -> None:
        self._database = database
        self._committed = committed

    async def place_hold(
        self,
        bank: str,
        hold_id: str,
        matter: str,
        officer: str,
        review_at: datetime | None,
        make_bank: bool = False,
    ) -> Placed | None:
        """Places a hold; None for an absent bank, unless that is to be made.

        Raises Refusal INVALID_SCOPE through the driver for a bank to be made whose id has no layer.
        """
        async with self._database.transaction() as tx:
            if not (make_bank or await tx.value("bank_exists", bank)):
                return None
            placed_at = await tx.value("place_hold", bank, hold_id, matter, officer, review_at)
            # Under the head lock still, so that no destruction can begin between this answer and the commit.
            rows = await tx.fetch("under_way", bank)
            tx.changed(bank, 1)
        hold = Hold(hold_id, bank, matter, officer, placed_at, review_at, None)
        stopped = tuple(row["erasure_id"] for row in rows if not row["begun"])
        return Placed(hold, stopped, tuple(row["erasure_id"] for row in rows if row["begun"]))

    async def lift_hold(self, bank: str, hold_id: str, officer: str) -> bool:
        """Lifts a hold; false where the bank has no such hold that binds."""
        async with self._database.transaction() as tx:
            lifted = bool(await tx.value("lift_hold", bank, hold_id, officer))
            tx.changed(bank, int(lifted))
        return lifted

    async def holds(self, bank: str) -> list[Hold]:
        """The holds of a bank, the newest first."""
        return [Hold(**row) for row in await self._database.fetch("holds", bank)]

    async def erase(self, bank: str, ids: Sequence[str], officer: str, erasure_id: str) -> int:
        """Buries memories in one commit; counts them. Raises Refusal BANK_HELD through the driver."""
        async with self._database.transaction() as tx:
            row = await tx.row("erase", bank, list(ids), officer, erasure_id, False)
            assert row is not None
            tx.changed(bank, row["erased"] + row["buried"])
        if row["erased"] or row["buried"]:
            self._committed(bank)
        return int(row["erased"])

    async def open_erasures(self) -> list[Open]:
        """Erasures that are not done, those whose keys still stand first; at most 1000."""
        return [Open(**row) for row in await self._database.fetch("open_erasures")]

    async def bank_of(self, erasure_id: str) -> str | None:
        """The bank an erasure belongs to; None for an unknown one."""
        bank = await self._database.value("bank_of", erasure_id)
        return None if bank is None else str(bank)

    async def memory_ids(self, erasure_id: str) -> list[str]:
        """The ids an erasure destroys."""
        return [row["id"] for row in await self._database.fetch("memory_ids", erasure_id)]

    async def erasure(self, erasure_id: str) -> Erasure | None:
        """One erasure in one snapshot; None for an unknown one."""
        row = await self._database.row("erasure", erasure_id)
        if row is None:
            return None
        receipt = None
        if row["statement"] is not None:
            receipt = Receipt(row["statement"], row["signature"], row["public_key"])
        return Erasure(
            row["erasure_id"], row["bank"], row["state"], tuple(row["memory_ids"]), row["requested_at"],
            row["hidden_at"], row["keys_destroyed_at"], row["index_purged_at"], row["server_done_at"], row["through_seq"],
            tuple(Mirror(*each) for each in zip(row["devices"], row["acked"], row["retired"], strict=True)), receipt,
            row["read_at"],
            row["stopped"], tuple(row["keys_not_found"]),
        )  # fmt: skip

    async def begin(self, pending: Open) -> bool:
        """Passes the point of no return; false where that was passed. Raises Refusal BANK_HELD through the driver."""
        async with self._database.transaction() as tx:
            begun = bool(await tx.value("begin_key_destruction", pending.erasure_id))
            tx.changed(pending.bank, int(begun))
        return begun

    async def receipt_key(self) -> bytes | None:
        """The raw public key of the receipts there are; None while there are none."""
        key = await self._database.value("receipt_key")
        return None if key is None else bytes(key)

    async def live(self, bank: str, after: str) -> list[tuple[str, Slot, bytes]]:
        """One page of a bank's live memories after an id: id, slot and sealed content."""
        rows = await self._database.fetch("live", bank, after)
        return [(row["id"], Slot(row["key_page"], row["key_slot"]), row["sealed"]) for row in rows]

    async def open_keys(self, bank: str, after: str) -> list[tuple[str, Slot]]:
        """One page of the keys of a bank that are still to be destroyed, after an id."""
        rows = await self._database.fetch("open_keys", bank, after)
        return [(row["id"], Slot(row["key_page"], row["key_slot"])) for row in rows]

    async def bury(self, bank: str, ids: Sequence[str], officer: str, erasure_id: str) -> int:
        """Erases memories whose keys cannot be found, in one commit; counts them. Raises Refusal BANK_HELD as `erase`."""
        async with self._database.transaction() as tx:
            row = await tx.row("erase", bank, list(ids), officer, erasure_id, True)
            assert row is not None
            if row["erased"]:
                await tx.value("write_off_keys", bank, list(ids))
            tx.changed(bank, row["erased"])
        if row["erased"]:
            self._committed(bank)
        return int(row["erased"])

    async def write_off(self, bank: str, ids: Sequence[str]) -> int:
        """Gives up keys of erased memories; counts them. Raises Refusal BANK_HELD through the driver."""
        async with self._database.transaction() as tx:
            count = int(await tx.value("write_off_keys", bank, list(ids)))
            tx.changed(bank, count)
        return count

    async def advance(self, pending: Open, to_state: str) -> bool:
        """Moves an erasure on from the state in `pending`; false where it has left that or keys still stand."""
        async with self._database.transaction() as tx:
            moved = bool(await tx.value("advance_erasure", pending.erasure_id, pending.state, to_state))
            tx.changed(pending.bank, int(moved))
        return moved

    async def finish(self, pending: Open, done_at: datetime, receipt: Receipt) -> bool:
        """Keeps the receipt and ends the erasure; false where that was done."""
        async with self._database.transaction() as tx:
            done = bool(
                await tx.value(
                    "finish_erasure",
                    pending.erasure_id,
                    done_at,
                    receipt.statement,
                    receipt.signature,
                    receipt.public_key,
                )
            )
            tx.changed(pending.bank, int(done))
        return done

    async def slots(self, erasure_id: str, memory_ids: Sequence[str]) -> Mapping[str, Slot]:
        """Where the keys of an erasure's memories stand or stood, by memory id."""
        rows = await self._database.fetch("slots", erasure_id, list(memory_ids))
        return {row["id"]: Slot(row["key_page"], row["key_slot"]) for row in rows}

    async def epoch(self) -> int:
        """The epoch of this history."""
        return int(await self._database.value("epoch"))

    async def begin_epoch(self, epoch: int) -> bool:
        """Lets the history begin anew; false where its epoch is as high already."""
        async with self._database.transaction() as tx:
            begun = bool(await tx.value("begin_epoch", epoch))
            tx.changed("", int(begun))
        return begun

    async def erase_again(self, erasure_id: str, bank: str, slots: Mapping[str, Slot], officer: str) -> int:
        """Applies an erasure of before to a restored database in one commit; counts its ids, 0 where it is known."""
        places = list(slots.values())
        pages, indices = [slot.page for slot in places], [slot.index for slot in places]
        async with self._database.transaction() as tx:
            count = int(
                await tx.value("erase_again", erasure_id, bank, list(slots), pages, indices, officer) or 0
            )
            tx.changed(bank, count)
        return count

    async def key_pages(self, pages: Sequence[int]) -> Mapping[int, bool]:
        """Those of these key pages that the database names, and whether anything still needs them."""
        return {row["page"]: row["used"] for row in await self._database.fetch("key_pages", pages)}
