"""The erasure ledger: what was erased, kept beside the keys and so outside the database's backups.

A database restored from an older backup has forgotten it; from here it is told again, before anyone is served. It holds
ids, banks, places of keys, epochs and times: no text and nothing made of one.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import apsw

from kit.errors import Refusal
from kit.sealing import Slot

_SCHEMA = """
create table if not exists erased (number integer primary key, erasure_id text not null, bank text not null,
                                   id text not null, page integer not null, slot integer not null,
                                   epoch integer not null, erased_at real not null, unique (erasure_id, id));
create table if not exists epoch (single integer primary key check (single = 1), epoch integer not null);
"""


@dataclass(frozen=True)
class Entry:
    """One erasure: its memories by id, each with where its key stood."""

    erasure_id: str
    bank: str
    slots: Mapping[str, Slot]


class Ledger:
    """The ledger in the file of an open key store. For one thread at a time; raises Refusal KEYSTORE_UNAVAILABLE."""

    def __init__(self, path: Path) -> None:
        """Opens it; the file is there."""
        try:
            self._db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
            self._db.set_busy_timeout(5000)
            self._db.execute("pragma synchronous=full").fetchall()
            with self._db:
                self._db.execute(_SCHEMA)
        except apsw.Error as error:
            raise _unusable() from error

    def close(self) -> None:
        """Closes it."""
        self._db.close()

    def record(self, erasure_id: str, bank: str, slots: Mapping[str, Slot], epoch: int) -> None:
        """Writes down durably that these memories are erased; to call again changes nothing."""
        now = time.time()
        rows = [(erasure_id, bank, i, slot.page, slot.index, epoch, now) for i, slot in slots.items()]
        try:
            with self._db:
                self._db.executemany(
                    "insert or ignore into erased (erasure_id, bank, id, page, slot, epoch, erased_at)"
                    " values (?, ?, ?, ?, ?, ?, ?)",
                    rows,
                )
        except apsw.Error as error:
            raise _unusable() from error

    def newest(self) -> str:
        """The erasure that was written down last; empty where none was."""
        rows = self._rows("select erasure_id from erased order by number desc limit 1")
        return str(rows[0][0]) if rows else ""

    def entries(self) -> Iterator[Entry]:
        """All erasures in the order in which they were written down."""
        order = "select erasure_id, bank from erased group by erasure_id order by min(number)"
        for erasure_id, bank in self._rows(order):
            rows = self._rows("select id, page, slot from erased where erasure_id = ?", str(erasure_id))
            slots = {str(row[0]): Slot(int(str(row[1])), int(str(row[2]))) for row in rows}
            yield Entry(str(erasure_id), str(bank), slots)

    def epoch(self) -> int:
        """The highest epoch that a restore of this deployment has begun; 0 where there was none."""
        rows = self._rows("select epoch from epoch")
        return int(str(rows[0][0])) if rows else 0

    def raise_epoch(self, epoch: int) -> None:
        """Writes an epoch down before the database begins it."""
        try:
            self._db.execute(
                "insert into epoch values (1, ?) on conflict (single) do update"
                " set epoch = max(epoch, excluded.epoch)",
                (epoch,),
            )
        except apsw.Error as error:
            raise _unusable() from error

    def _rows(self, sql: str, *bindings: str) -> list[tuple[object, ...]]:
        try:
            return list(self._db.execute(sql, bindings).fetchall())
        except apsw.Error as error:
            raise _unusable() from error


def _unusable() -> Refusal:
    return Refusal(
        "KEYSTORE_UNAVAILABLE", "the erasure ledger in the key store cannot be used", retry_after=1
    )
