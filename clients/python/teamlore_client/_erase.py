"""Erasing from disk: delete by overwriting, then empty the write-ahead log, and remember what is owed."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import apsw

from teamlore_client._sqlite import BUSY_MS, fetched, reading, writing

_ATTEMPT_MS = 50
_PAUSE_SECONDS = 0.02
_IDS_A_TRANSACTION = 200


@dataclass(frozen=True)
class PendingErasure:
    """A memory that is deleted while its bytes may still stand in the write-ahead log."""

    bank: str
    id: str
    seq: int
    """The seq of the tombstone that asked for it; 0 for an erasure asked for on this machine."""


@dataclass(frozen=True)
class Erasure:
    """What one erase did."""

    erased: tuple[str, ...]
    """The ids that were here, in the order given."""
    gone: bool
    """True when no file holds their bytes any more; else a later opener finishes it."""


def delete_rows(
    connection: apsw.Connection, ids: Iterable[str], seqs: Mapping[str, int], bank: str | None = None
) -> tuple[str, ...]:
    """Delete memories with their words and vectors, of one bank or of any; the same commit enters them as pending."""
    wanted = list(dict.fromkeys(ids))
    deleted: list[str] = []
    for start in range(0, len(wanted), _IDS_A_TRANSACTION):
        with writing(connection):
            for id_ in wanted[start : start + _IDS_A_TRANSACTION]:
                rows = connection.execute(
                    "DELETE FROM memories WHERE id = ?1 AND (?2 IS NULL OR bank = ?2) RETURNING bank",
                    (id_, bank),
                ).fetchall()
                for (of_bank,) in rows:
                    connection.execute(
                        "INSERT INTO unacknowledged_erasures (bank, id, seq) VALUES (?1, ?2, ?3)"
                        " ON CONFLICT (bank, id) DO UPDATE SET seq = max(seq, excluded.seq)",
                        (of_bank, id_, seqs.get(id_, 0)),
                    )
                    deleted.append(id_)
            if deleted and _keeps_a_dead_word(connection):
                connection.execute("INSERT INTO words (words) VALUES ('rebuild')")
    return tuple(deleted)


def _keeps_a_dead_word(connection: apsw.Connection) -> bool:
    """Return whether the word index still holds the beginning of a word that no memory has any more.

    FTS5's secure-delete cleans the leaf pages; the keys between them (`words_idx`), each long enough to tell
    two neighbouring words apart and so at times a whole word, stay until the index is written anew.
    """
    keys = fetched(connection, "SELECT DISTINCT CAST(term AS BLOB) FROM words_idx WHERE length(term) > 1")
    first_from = (
        "SELECT CAST(term AS BLOB) FROM live_words WHERE term >= CAST(? AS TEXT) ORDER BY term LIMIT 1"
    )
    for (key,) in keys:
        beginning = bytes(key)[1:]  # after the byte that names the main index
        found = fetched(connection, first_from, (beginning,))
        if not found or not bytes(found[0][0]).startswith(beginning):
            return True
    return False


def pending(connection: apsw.Connection, bank: str | None = None) -> tuple[PendingErasure, ...]:
    """Return the erasures whose bytes are not known to be gone, of one bank or of all."""
    sql = "SELECT bank, id, seq FROM unacknowledged_erasures WHERE ?1 IS NULL OR bank = ?1 ORDER BY bank, id"
    return tuple(PendingErasure(*row) for row in reading(connection, sql, (bank,)))


def settle(connection: apsw.Connection, wait: float) -> bool:
    """Empty the write-ahead log, trying for `wait` seconds but at least once; True when nothing is pending.

    Fails only while another connection reads or writes. Each attempt is short, because it holds writers off.
    """
    end = time.monotonic() + wait
    while owed := pending(connection):  # listed before the checkpoint: it covers what was committed by then
        if _emptied(connection):
            with writing(connection):
                connection.executemany(
                    "DELETE FROM unacknowledged_erasures WHERE bank = ? AND id = ? AND seq = ?",
                    [(each.bank, each.id, each.seq) for each in owed],
                )
            continue
        if time.monotonic() >= end:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True


def _emptied(connection: apsw.Connection) -> bool:
    connection.set_busy_timeout(_ATTEMPT_MS)
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except (apsw.BusyError, apsw.LockedError):
        return False
    finally:
        connection.set_busy_timeout(BUSY_MS)
    return True
