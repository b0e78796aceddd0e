"""Compacts the change log: `python -m services.sync.trim --older-than DAYS [--bank BANK]`.

Raises each bank's horizon over what is older than that, what the index has followed and what every device in use has
confirmed, but of no bank under a legal hold; then takes away the steps below it that later ones superseded, and those of
old tombstones. Nothing that is live or forgotten leaves, and what was erased stays known for ever. Mirrors that stand
below a horizon reconcile. It needs DATABASE_URL alone, may be stopped and run again at any time, and takes at most half
of one connection's time.

Exit codes: 0 done; 1 the database cannot be used or a bank is not there; 2 an argument or a setting is wrong.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kit import audit
from kit.config import DATABASE_URL, bank, load_or_exit, principal, setting
from kit.database import Database, why
from kit.errors import from_driver
from services.sync.store import QUERIES

# Changes of one transaction.
WINDOW = 1000
LONGEST_DAYS = 36_500.0


@dataclass(frozen=True)
class Config:
    """What the command is told besides its arguments."""

    database_url: str = setting("DATABASE_URL", form=DATABASE_URL)


@dataclass
class Done:
    """What was done, over all banks."""

    banks: int = 0
    raised: int = 0
    """Banks whose horizon moved."""
    waiting: int = 0
    """Banks whose horizon is lower than their age allows: for the index, a device or a legal hold."""
    removed: int = 0
    """Changes that left."""


@dataclass(frozen=True)
class Terms:
    """How old a change must be to be passed over, and within what time a device counts as one in use."""

    older_than: timedelta
    seen_within: timedelta


class NoBank(Exception):
    """There is no such bank."""


async def raise_horizon(database: Database, bank: str, terms: Terms, done: Done) -> None:
    """Moves one bank's horizon as far as it may, with its audit row. Raises NoBank."""
    async with database.transaction() as tx:
        row = await tx.row("raise_horizon", bank, terms.older_than, terms.seen_within)
        if row is None or row["was"] is None:
            raise NoBank
        tx.changed(bank, row["now_at"] - row["was"])
    done.banks += 1
    done.raised += int(row["now_at"] > row["was"])
    done.waiting += int(row["waits_for"] != "")


async def compact(database: Database, bank: str, done: Done) -> None:
    """Takes away what lies dead below one bank's horizon, resting as long as it works."""
    through = 0
    while True:
        began = time.monotonic()
        row = await database.row("trim", bank, through, WINDOW)
        if row is None or row["through"] is None:
            return
        through = row["through"]
        done.removed += row["removed"]
        await asyncio.sleep(time.monotonic() - began)


async def every_bank(database: Database) -> AsyncIterator[str]:
    """All banks that have changes."""
    after = ""
    while rows := await database.fetch("banks_to_trim", after):
        for row in rows:
            yield str(row["bank"])
        after = rows[-1]["bank"]


async def trim(database: Database, terms: Terms, bank: str | None = None, who: str = "service:sync") -> Done:
    """Trims one bank, or all where none is named. Raises NoBank."""
    done = Done()

    async def one(each: str) -> None:
        with audit.calling(audit.CallContext("bank.horizon_raised", who, "operator")):
            await raise_horizon(database, each, terms, done)
        await compact(database, each, done)

    if bank is not None:
        await one(bank)
    else:
        async for each in every_bank(database):
            await one(each)
    return done


async def _run(dsn: str, terms: Terms, bank: str | None, who: str) -> Done:
    database = await Database.connect(dsn, "sync", QUERIES, size=1)
    try:
        return await trim(database, terms, bank, who)
    finally:
        await database.close()


def _days(raw: str) -> timedelta:
    days = float(raw)
    if not 0 <= days <= LONGEST_DAYS:
        raise argparse.ArgumentTypeError(f"a number of days from 0 to {LONGEST_DAYS:,.0f}")
    return timedelta(days=days)


def arguments(given: list[str] | None = None) -> Any:
    """The command's arguments. Exits with code 2 where one is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m services.sync.trim",
        description="Compact the change log; mirrors that were away for longer compare all they have.",
    )
    parser.add_argument(
        "--older-than", type=_days, required=True, metavar="DAYS", help="leave what is younger"
    )
    parser.add_argument(
        "--devices-seen-within",
        type=_days,
        default=timedelta(days=90),
        metavar="DAYS",
        help="wait until devices seen within that time have confirmed what was erased (90)",
    )
    parser.add_argument("--bank", type=bank, help="this bank alone")
    parser.add_argument(
        "--principal", type=principal, default="service:sync", help="who decides it, named by the audit rows"
    )
    return parser.parse_args(given)


def main() -> None:
    """The command; exit codes as the module says."""
    asked = arguments()
    config = load_or_exit(Config)
    try:
        done = asyncio.run(
            _run(
                config.database_url,
                Terms(asked.older_than, asked.devices_seen_within),
                asked.bank,
                asked.principal,
            )
        )
    except NoBank:
        sys.exit("there is no such bank")
    except Exception as error:
        refusal = from_driver(error)
        if refusal is None and type(error).__module__.split(".")[0] != "asyncpg":
            raise
        said = refusal.message if refusal is not None else why(error)
        sys.exit(f"stopped before the end, run it again once it is mended: {said}")
    print(
        f"{done.banks} banks: {done.removed} changes left, {done.raised} horizons rose,"
        f" {done.waiting} wait for the index, a device or a hold"
    )


if __name__ == "__main__":
    main()
