"""What sync remembers of each bank: kept apart from the memories, so that an export of those stays clean."""

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from teamlore_client._sqlite import Row, apply_schema, connect, fetched, reading, writing
from teamlore_client._state_schema import OF_A_BANK, STEPS, VERSION

_ASKED_HERE = "asked here"
_MODULUS = 1 << 64
_KEPT_OF_LEDGER = (
    " AND answer <> 'duplicate' AND NOT (answer = 'forgotten' AND id IN"
    " (SELECT detail FROM ledger WHERE bank = ?1 AND answer = 'duplicate'))"
)


@dataclass(frozen=True)
class Pushed:
    """The server's answer to one pushed memory."""

    answer: str
    """`stored`, `unchanged`, `duplicate`, `rejected`, or `forgotten` once it was erased for the team."""
    detail: str = ""
    """The id that it duplicates, or the reason of the refusal."""

    def __str__(self) -> str:
        return f"{self.answer}:{self.detail}" if self.detail else self.answer


@dataclass(frozen=True)
class Digest:
    """Count and sum over what was received and is not gone; equal to the server's at the same seq."""

    count: int
    sum: int
    """Unsigned, modulo 2^64."""


@dataclass(frozen=True)
class Page:
    """One page of the feed as it was applied, to be recorded in one transaction."""

    cursor: str
    received: Mapping[str, int]
    """id → seq of every live change of the page, whether stored, skipped, suppressed or one's own."""
    pulled: frozenset[str] = frozenset()
    """Those of them that were stored here as a teammate's memory."""
    gone: Mapping[str, int] | None = None
    """id → seq of every tombstone of the page."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """id → the own id that was the reason, of each that was left out as nearly the same as one's own."""


@dataclass(frozen=True)
class BankStatus:
    """How the sync of one bank stands."""

    cursor: str | None
    last_sync: datetime | None
    last_error: str | None


class SyncState:
    """The open sync state of one laptop. Every method is one transaction; for one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open or create `sync.db`. Raises StoreTooNew."""
        self._connection = connect(path)
        try:
            apply_schema(self._connection, path, VERSION, STEPS)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def device_id(self) -> str:
        """Return this laptop's id, made at the first call: 32 random hex digits."""
        with writing(self._connection):
            if not fetched(self._connection, "SELECT id FROM device"):
                self._connection.execute("INSERT INTO device (id) VALUES (?)", (uuid.uuid4().hex,))
            return str(fetched(self._connection, "SELECT id FROM device")[0][0])

    def sending(self, bank: str, ids: Iterable[str]) -> frozenset[str]:
        """Note, before they are sent, that the server may have these from now on; return those not noted before."""
        with writing(self._connection):
            sql = "INSERT OR IGNORE INTO sent (bank, id) SELECT ?, value FROM json_each(?) RETURNING id"
            return frozenset(row[0] for row in fetched(self._connection, sql, (bank, json.dumps(list(ids)))))

    def not_sent(self, bank: str, ids: Iterable[str]) -> None:
        """Take back what `sending` noted: the server says itself that it took none of them."""
        with writing(self._connection):
            self._settle(bank, ids)

    def settled(self, bank: str) -> None:
        """Note that everything in the bank is known: what is neither here nor noted as sent is not on the server."""
        with writing(self._connection):
            self._ensure(bank)
            self._connection.execute("UPDATE banks SET settled = 1 WHERE bank = ? AND NOT settled", (bank,))

    def sent(self, bank: str, among: Iterable[str]) -> frozenset[str]:
        """Return those of these ids that were sent without an answer being heard."""
        return self._ids("SELECT id FROM sent WHERE bank = ?", bank, among)

    def perhaps_there(self, bank: str, id_: str) -> bool:
        """Return whether the server may have an own memory that the ledger does not call stored.

        It came back in the feed; or it was sent and no answer was heard; or nothing is known of it, before the first
        sync since joining has got to the end of the feed.
        """
        sql = (
            "SELECT EXISTS (SELECT 1 FROM received WHERE bank = ?1 AND id = ?2)"
            " OR EXISTS (SELECT 1 FROM sent WHERE bank = ?1 AND id = ?2)"
            " OR NOT EXISTS (SELECT 1 FROM ledger WHERE bank = ?1 AND id = ?2)"
            " AND NOT EXISTS (SELECT 1 FROM banks WHERE bank = ?1 AND settled)"
        )
        return bool(self._read(sql, (bank, id_))[0][0])

    def record_push(self, bank: str, answers: Mapping[str, Pushed]) -> None:
        """Keep the answers to one acknowledged batch. What is forgotten stays so, whatever comes late."""
        with writing(self._connection):
            self._settle(bank, answers)
            self._connection.executemany(
                "INSERT INTO ledger (bank, id, answer, detail) VALUES (?, ?, ?, ?) ON CONFLICT (bank, id)"
                " DO UPDATE SET answer = excluded.answer, detail = excluded.detail"
                " WHERE answer <> 'forgotten'",
                [(bank, id_, each.answer, each.detail) for id_, each in answers.items()],
            )
            # Another server may hold a third in place of both: what was a duplicate of the one is one of that.
            self._connection.executemany(
                "UPDATE ledger SET detail = ?1 WHERE bank = ?2 AND answer = 'duplicate' AND detail = ?3 AND id <> ?1",
                [(each.detail, bank, id_) for id_, each in answers.items() if each.answer == "duplicate"],
            )

    def ledger(self, bank: str, among: Iterable[str] | None = None) -> dict[str, Pushed]:
        """Return id → answer of everything that was ever pushed or forgotten, or of those of these ids."""
        rows = self._of("SELECT id, answer, detail FROM ledger WHERE bank = ?", bank, among)
        return {id_: Pushed(answer, detail) for id_, answer, detail in rows}

    def apply_page(self, bank: str, page: Page) -> None:
        """Record one applied page of the feed: what came, what went, the digest and the new cursor.

        A tombstone also marks the ledger `forgotten`, so that the id is never pushed again, and owes the
        server an acknowledgement. Applying a page twice changes nothing.
        """
        with writing(self._connection):
            self._ensure(bank)
            self._receive(bank, page.received)
            self._connection.executemany(
                "INSERT OR IGNORE INTO pulled (bank, id) VALUES (?, ?)", [(bank, id_) for id_ in page.pulled]
            )
            self._skip(bank, page.skipped, page.pulled)
            for id_, seq in (page.gone or {}).items():
                self._lose(bank, id_, seq)
            self._connection.execute("UPDATE banks SET cursor = ? WHERE bank = ?", (page.cursor, bank))

    def reconcile(
        self, bank: str, live: Mapping[str, int], cursor: str, requeue: Iterable[str] = ()
    ) -> frozenset[str]:
        """Take the server's full list of live ids (id → seq) for what was received, and a new cursor.

        `requeue` names own memories that the server has lost: they leave the ledger, so that they are pushed
        again. Returns the other received ids that are live no longer. The caller erases those first: it asks
        `missing`, erases, then calls this, so that a crash in between repeats the erasure.
        """
        with writing(self._connection):
            self._ensure(bank)
            again = frozenset(requeue)
            self._unanswer(bank, again)
            missing = self._missing(bank, live) - again
            for id_ in missing:
                self._lose(bank, id_, 0)
            # Seqs of another history may be lower than those known, so the list replaces, it does not raise.
            self._connection.execute("DELETE FROM received WHERE bank = ?", (bank,))
            self._connection.execute(
                "UPDATE banks SET cursor = ?, received_count = 0, received_sum = 0 WHERE bank = ?",
                (cursor, bank),
            )
            self._receive(bank, live)
            return missing

    def missing(self, bank: str, live: Iterable[str]) -> frozenset[str]:
        """Return the received ids that are not among the live ones."""
        return self._missing(bank, live)

    def received(self, bank: str, among: Iterable[str] | None = None) -> dict[str, int]:
        """Return id → last seq of all that was received and is not gone, or of those of these."""
        return dict(self._of("SELECT id, seq FROM received WHERE bank = ?", bank, among))

    def push_again(self, bank: str, ids: Iterable[str]) -> None:
        """Drop what was answered for these, so that they are pushed once more."""
        with writing(self._connection):
            self._unanswer(bank, ids)

    def held_instead(self, bank: str) -> dict[str, str]:
        """Return id → the id that the server holds in its place, of all it called duplicates; not of forgotten ones."""
        return self._duplicates(bank, "NOT EXISTS")

    def forgotten_instead(self, bank: str) -> dict[str, str]:
        """Return id → the id that was held in its place and that the team forgot: such a memory is here alone."""
        gone = self._duplicates(bank, "EXISTS")
        back = self.received(bank, gone.values())  # an older history has some of them again
        return {id_: held for id_, held in gone.items() if held not in back}

    def duplicates_of(self, bank: str, ids: Iterable[str]) -> dict[str, str]:
        """Return own id → id of the own memories that the server called duplicates of these."""
        sql = "SELECT id, detail FROM ledger WHERE bank = ? AND answer = 'duplicate'"
        return dict(self._read(f"{sql} AND detail IN (SELECT value FROM json_each(?))", (bank, json.dumps(list(ids)))))

    def pulled(self, bank: str, among: Iterable[str] | None = None) -> frozenset[str]:
        """Return the ids that are here as teammates' memories, or those of these."""
        return self._ids("SELECT id FROM pulled WHERE bank = ?", bank, among)

    def skipped(self, bank: str, among: Iterable[str] | None = None) -> dict[str, str]:
        """Return id → own id of what was left out as nearly the same as one's own, or of those of these."""
        return dict(self._of("SELECT id, own_id FROM skipped WHERE bank = ?", bank, among))

    def digest(self, bank: str) -> Digest:
        """Return the digest, kept up to date by every change, so that asking costs nothing."""
        rows = self._read("SELECT received_count, received_sum FROM banks WHERE bank = ?", (bank,))
        return Digest(rows[0][0], rows[0][1] % _MODULUS) if rows else Digest(0, 0)

    def forget(self, bank: str, ids: Iterable[str], *, asked_here: bool = False) -> None:
        """Mark ids as erased for the team: they are never pushed again. `asked_here` is kept: it was this user's wish."""
        with writing(self._connection):
            for id_ in ids:
                self._forget(bank, id_, _ASKED_HERE if asked_here else "")

    def erased_by_user(self, bank: str) -> frozenset[str]:
        """Return the ids that were erased for the team from this laptop."""
        sql = "SELECT id FROM ledger WHERE bank = ? AND answer = 'forgotten' AND detail = ?"
        return frozenset(row[0] for row in self._read(sql, (bank, _ASKED_HERE)))

    def suppress(self, bank: str, ids: Iterable[str]) -> None:
        """Keep ids off this machine, also when the feed is replayed from its start."""
        with writing(self._connection):
            for id_ in ids:
                self._connection.execute(
                    "INSERT OR IGNORE INTO suppressed (bank, id) VALUES (?, ?)", (bank, id_)
                )
                self._connection.execute("DELETE FROM pulled WHERE bank = ? AND id = ?", (bank, id_))
                self._connection.execute("DELETE FROM skipped WHERE bank = ? AND id = ?", (bank, id_))

    def suppressed(self, bank: str, among: Iterable[str] | None = None) -> frozenset[str]:
        """Return the ids that pull leaves out, or those of these."""
        return self._ids("SELECT id FROM suppressed WHERE bank = ?", bank, among)

    def gone(self, bank: str) -> frozenset[str]:
        """Return the ids that are to be nowhere here: hidden on this machine, or erased for the team and not live again.

        What its author withheld is theirs, unless they asked for its end themselves.
        """
        sql = (
            "SELECT id FROM suppressed WHERE bank = ?1 UNION SELECT id FROM ledger"
            " WHERE bank = ?1 AND answer = 'forgotten' AND (detail = ?2 OR"
            " NOT EXISTS (SELECT 1 FROM received WHERE received.bank = ?1 AND received.id = ledger.id) AND"
            " NOT EXISTS (SELECT 1 FROM overrides WHERE overrides.bank = ?1 AND overrides.id = ledger.id"
            " AND choice = 'withheld'))"
        )
        return frozenset(row[0] for row in self._read(sql, (bank, _ASKED_HERE)))

    def promote(self, bank: str, ids: Iterable[str]) -> None:
        """Share these whatever their tags say; takes back an earlier `withhold`."""
        self._override(bank, ids, "promoted")

    def withhold(self, bank: str, ids: Iterable[str]) -> None:
        """Never share these; takes back an earlier `promote`."""
        self._override(bank, ids, "withheld")

    def promoted(self, bank: str) -> frozenset[str]:
        """Return the ids shared by choice."""
        return self._ids("SELECT id FROM overrides WHERE bank = ? AND choice = 'promoted'", bank)

    def withheld(self, bank: str) -> frozenset[str]:
        """Return the ids kept back by choice; a tombstone for one of them erases nothing here."""
        return self._ids("SELECT id FROM overrides WHERE bank = ? AND choice = 'withheld'", bank)

    def owed_acks(self, bank: str) -> dict[str, int]:
        """Return id → seq of the tombstones whose erasure the server has not been told is done."""
        return dict(self._read("SELECT id, seq FROM owed_acks WHERE bank = ? ORDER BY seq", (bank,)))

    def acknowledged(self, bank: str, ids: Iterable[str]) -> None:
        """Drop what the server has now been told."""
        with writing(self._connection):
            for id_ in ids:
                self._connection.execute("DELETE FROM owed_acks WHERE bank = ? AND id = ?", (bank, id_))

    def succeeded(self, bank: str, at: datetime) -> None:
        """Note a finished sync and clear the last error."""
        with writing(self._connection):
            self._ensure(bank)
            self._connection.execute(
                "UPDATE banks SET last_sync = ?, last_error = NULL WHERE bank = ?",
                (at.astimezone(UTC).isoformat(), bank),
            )

    def failed(self, bank: str, error: str) -> None:
        """Keep the error of a failed sync for `team status`; the last success stays known."""
        with writing(self._connection):
            self._ensure(bank)
            self._connection.execute("UPDATE banks SET last_error = ? WHERE bank = ?", (error, bank))

    def status(self, bank: str) -> BankStatus:
        """Return how the bank's sync stands; a bank never synced has nothing set."""
        rows = self._read("SELECT cursor, last_sync, last_error FROM banks WHERE bank = ?", (bank,))
        if not rows:
            return BankStatus(None, None, None)
        cursor, at, error = rows[0]
        return BankStatus(cursor, None if at is None else datetime.fromisoformat(at), error)

    def leave(self, bank: str) -> None:
        """Drop what sync knows of the bank; what the user chose for single memories stays, and so does the device's id."""
        with writing(self._connection):
            for table in OF_A_BANK:
                kept = _KEPT_OF_LEDGER if table == "ledger" else ""
                self._connection.execute(f"DELETE FROM {table} WHERE bank = ?1{kept}", (bank,))

    def _read(self, sql: str, bindings: Row) -> list[Row]:
        return reading(self._connection, sql, bindings)

    def _ids(self, sql: str, bank: str, among: Iterable[str] | None = None) -> frozenset[str]:
        return frozenset(row[0] for row in self._of(sql, bank, among))

    def _of(self, sql: str, bank: str, among: Iterable[str] | None) -> Sequence[Row]:
        if among is None:
            return self._read(sql, (bank,))
        # A bank may have a hundred thousand of them, and a page asks for its own.
        return self._read(f"{sql} AND id IN (SELECT value FROM json_each(?))", (bank, json.dumps(list(among))))

    def _duplicates(self, bank: str, forgotten: str) -> dict[str, str]:
        sql = (
            f"SELECT id, detail FROM ledger WHERE bank = ?1 AND answer = 'duplicate' AND {forgotten}"
            " (SELECT 1 FROM ledger held WHERE held.bank = ?1 AND held.id = ledger.detail AND held.answer = 'forgotten')"
        )
        return dict(self._read(sql, (bank,)))

    def _unanswer(self, bank: str, ids: Iterable[str]) -> None:
        sql = "DELETE FROM ledger WHERE bank = ? AND id IN (SELECT value FROM json_each(?))"
        self._connection.execute(sql, (bank, json.dumps(list(ids))))

    def _missing(self, bank: str, live: Iterable[str]) -> frozenset[str]:
        rows = fetched(self._connection, "SELECT id FROM received WHERE bank = ?", (bank,))
        return frozenset(row[0] for row in rows) - frozenset(live)

    def _ensure(self, bank: str) -> None:
        self._connection.execute("INSERT OR IGNORE INTO banks (bank) VALUES (?)", (bank,))

    def _receive(self, bank: str, live: Mapping[str, int]) -> None:
        """Take over id → seq, where it is newer than what is known."""
        sql = "SELECT id, seq FROM received WHERE bank = ? AND id IN (SELECT value FROM json_each(?))"
        known: dict[str, int] = dict(fetched(self._connection, sql, (bank, json.dumps(list(live)))))
        newer = {id_: seq for id_, seq in live.items() if id_ not in known or known[id_] < seq}
        self._connection.executemany(
            "INSERT INTO received (bank, id, seq) VALUES (?, ?, ?)"
            " ON CONFLICT (bank, id) DO UPDATE SET seq = excluded.seq",
            [(bank, id_, seq) for id_, seq in newer.items()],
        )
        replaced = newer.keys() & known.keys()
        leaving = sum(term(id_, known[id_]) for id_ in replaced)
        arriving = sum(term(id_, seq) for id_, seq in newer.items())
        self._count(bank, len(newer) - len(replaced), arriving - leaving)

    def _skip(self, bank: str, skipped: Mapping[str, str], stored: Iterable[str]) -> None:
        """Keep why each was left out; what is stored is left out no longer."""
        sql = "DELETE FROM skipped WHERE bank = ? AND id IN (SELECT value FROM json_each(?))"
        self._connection.execute(sql, (bank, json.dumps(list(stored))))
        self._connection.executemany(
            "INSERT INTO skipped (bank, id, own_id) VALUES (?, ?, ?)"
            " ON CONFLICT (bank, id) DO UPDATE SET own_id = excluded.own_id",
            [(bank, id_, own) for id_, own in skipped.items()],
        )

    def _lose(self, bank: str, id_: str, seq: int) -> None:
        known = self._seq(bank, id_)
        if known is not None:
            self._connection.execute("DELETE FROM received WHERE bank = ? AND id = ?", (bank, id_))
            self._count(bank, -1, -term(id_, known))
        self._connection.execute("DELETE FROM pulled WHERE bank = ? AND id = ?", (bank, id_))
        self._connection.execute("DELETE FROM skipped WHERE bank = ? AND id = ?", (bank, id_))
        self._forget(bank, id_)
        self._connection.execute(
            "INSERT OR IGNORE INTO owed_acks (bank, id, seq) VALUES (?, ?, ?)", (bank, id_, seq)
        )

    def _forget(self, bank: str, id_: str, detail: str = "") -> None:
        self._connection.execute(
            "INSERT INTO ledger (bank, id, answer, detail) VALUES (?, ?, 'forgotten', ?)"
            " ON CONFLICT (bank, id) DO UPDATE SET answer = 'forgotten', detail = CASE"
            " WHEN answer = 'forgotten' AND detail <> '' THEN detail ELSE excluded.detail END",
            (bank, id_, detail),
        )
        self._settle(bank, [id_])

    def _settle(self, bank: str, ids: Iterable[str]) -> None:
        sql = "DELETE FROM sent WHERE bank = ? AND id IN (SELECT value FROM json_each(?))"
        self._connection.execute(sql, (bank, json.dumps(list(ids))))

    def _seq(self, bank: str, id_: str) -> int | None:
        rows = fetched(self._connection, "SELECT seq FROM received WHERE bank = ? AND id = ?", (bank, id_))
        return None if not rows else int(rows[0][0])

    def _count(self, bank: str, count: int, change: int) -> None:
        rows = fetched(self._connection, "SELECT received_sum FROM banks WHERE bank = ?", (bank,))
        total = (rows[0][0] + change) % _MODULUS
        signed = total - _MODULUS if total >= _MODULUS // 2 else total  # SQLite's integers are signed
        self._connection.execute(
            "UPDATE banks SET received_count = received_count + ?, received_sum = ? WHERE bank = ?",
            (count, signed, bank),
        )

    def _override(self, bank: str, ids: Iterable[str], choice: str) -> None:
        with writing(self._connection):
            for id_ in ids:
                self._connection.execute(
                    "INSERT INTO overrides (bank, id, choice) VALUES (?, ?, ?)"
                    " ON CONFLICT (bank, id) DO UPDATE SET choice = excluded.choice",
                    (bank, id_, choice),
                )


def term(id_: str, seq: int) -> int:
    """Return a memory's part of the digest: first 8 bytes, big-endian, of SHA-256(id ‖ 0 ‖ decimal seq)."""
    return int.from_bytes(hashlib.sha256(f"{id_}\0{seq}".encode()).digest()[:8], "big")
