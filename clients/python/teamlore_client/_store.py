"""The local store: one SQLite file with the memories, their words and their vectors."""

import heapq
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NewType, Self

import apsw

from teamlore_client import _erase
from teamlore_client._erase import Erasure, PendingErasure
from teamlore_client._memory import (
    DIMENSION,
    HIDDEN,
    PRIVATE,
    AmbiguousId,
    FieldInvalid,
    Memory,
    Scalar,
    UnknownId,
    check,
    may_start_id,
    packed,
    tagged,
)
from teamlore_client._rows import FIELDS, memory_of, micros, row_of, standing_row
from teamlore_client._schema import STEPS, VERSION, load_vectors
from teamlore_client._sqlite import Row, apply_schema, connect, fetched, reading, writing

Ids = list[str]
Rows = NewType("Rows", str)
"""Which rows of the file, as a JSON array."""

_REASON = (
    f"bank = ?1 AND author IS NULL AND status NOT IN {HIDDEN} AND id NOT IN (SELECT value FROM json_each(?2))"
    " AND (tags = '[]' OR NOT tagged_private(tags))"
)
"""An own memory that stands for a teammate's that says the same: what the user alone sees, or nobody, stands for none."""
_RANK_CONSTANT = 60  # of reciprocal rank fusion, as its authors set it
_LIST_LIMIT = 1_000
_SEARCH_LIMIT = 100
_QUERY_WORDS = 64
_CANDIDATES_SHOWN = 5
_NEIGHBOURS = 20
_NONE = Rows("[]")


class EmbedderMismatch(Exception):
    """The vectors in the file were made by another embedder, so distances to new ones would mean nothing."""

    def __init__(self, recorded: str, given: str) -> None:
        super().__init__(
            f"the store's vectors were made by {recorded}, not by {given}: embed it anew or go back"
        )
        self.recorded = recorded
        self.given = given


class IdTaken(Exception):
    """The id already names a memory; a memory is never overwritten."""


@dataclass(frozen=True)
class EmbedderIdentity:
    """Which model makes the vectors; recorded with the first of them and compared ever after."""

    model: str
    revision: str
    dimension: int

    def __str__(self) -> str:
        return f"{self.model}@{self.revision} ({self.dimension})"


@dataclass(frozen=True)
class Hit:
    """One memory that a search found."""

    memory: Memory
    cosine: float
    """Cosine similarity of its vector to the query's, -1 to 1."""
    score: float
    """Reciprocal rank fusion of both rankings; comparable within one search only."""


@dataclass(frozen=True)
class Mirrored:
    """What `put_mirrored` did with each memory, by id."""

    stored: tuple[str, ...]
    unchanged: tuple[str, ...]
    """Already here with the same bank and text; nothing else of it is applied."""
    refused: tuple[str, ...]
    """The id names another text or bank here, or was just erased and its bytes are not gone yet."""


@dataclass(frozen=True)
class Mark:
    """The page of a bank's feed that the file took last."""

    state: str
    """The id of the sync state that it was taken for."""
    before: str
    """The place that the page begins after."""
    through: str
    """The place that it ends at; everything up to there is in the file."""


class Store:
    """One open memory store. Use it from one thread at a time; any number of processes may have their own."""

    def __init__(self, path: Path, embedder: EmbedderIdentity | None = None) -> None:
        """Open or create the file, and finish the erasures that an earlier process could not.

        Without an embedder everything works that needs no vector. Raises EmbedderMismatch, StoreTooNew.
        """
        self._connection = connect(path, _prepare)
        self._embedder = embedder
        try:
            apply_schema(self._connection, path, VERSION, STEPS)
            if embedder is not None:
                self._record_embedder(embedder)
            _erase.settle(self._connection, wait=0)
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

    def add(self, memory: Memory, vector: Iterable[float]) -> None:
        """Store one memory with its vector of 384 numbers. Raises FieldInvalid, or IdTaken."""
        row, embedding = self._prepared(memory, vector)
        with writing(self._connection):
            if not self._insert(row, embedding):
                raise IdTaken(f"{memory.id} already names a memory")

    def put_mirrored(self, memories: Sequence[tuple[Memory, Iterable[float]]]) -> Mirrored:
        """Store what the team has in one transaction; what is here stays as it is, so a replay is safe.

        Raises FieldInvalid, and then stores none of them.
        """
        prepared = [(memory, *self._prepared(memory, vector)) for memory, vector in memories]
        stored: Ids = []
        unchanged: Ids = []
        refused: Ids = []
        with writing(self._connection):
            for memory, row, embedding in prepared:
                if self._being_erased(memory.id):
                    refused.append(memory.id)
                elif self._insert(row, embedding):
                    stored.append(memory.id)
                else:
                    (unchanged if self._same(memory) else refused).append(memory.id)
        return Mirrored(tuple(stored), tuple(unchanged), tuple(refused))

    def put_standing(self, memories: Sequence[Memory]) -> None:
        """Take over what the team holds of memories that are here, own ones too; others are passed over."""
        with writing(self._connection):
            for memory in memories:
                self._connection.execute(
                    "UPDATE memories SET version = ?, status = ?, trust = ?, may_be_stale = ?, superseded_by = ?,"
                    " last_verified = ? WHERE id = ? AND bank = ? AND version <> ?",
                    (*standing_row(memory.standing), memory.id, memory.bank, memory.standing.version),
                )

    def mark(self, bank: str, mark: Mark | None) -> None:
        """Note which page of the bank's feed the file took last; None takes the note away."""
        with writing(self._connection):
            self._connection.execute("DELETE FROM marks WHERE bank = ?", (bank,))
            if mark is not None:
                sql = "INSERT INTO marks (bank, state, before, through) VALUES (?, ?, ?, ?)"
                self._connection.execute(sql, (bank, mark.state, mark.before, mark.through))

    def marked(self, bank: str) -> Mark | None:
        """Return what `mark` noted; None where nothing was, as in a new file."""
        rows = self._read("SELECT state, before, through FROM marks WHERE bank = ?", (bank,))
        return Mark(*rows[0]) if rows else None

    def get(self, given: str) -> Memory:
        """Return the memory with this id, or the one whose id starts so. Raises UnknownId or AmbiguousId."""
        exact = self._read(f"SELECT {FIELDS} FROM memories WHERE id = ?", (given,))
        if exact:
            return memory_of(exact[0])
        # A range, not LIKE: it uses the index, keeps the case, and "~" sorts after all that an id may hold.
        sql = f"SELECT {FIELDS} FROM memories WHERE id >= ?1 AND id < ?1 || '~' ORDER BY id LIMIT ?2"
        found = self._read(sql, (given, _CANDIDATES_SHOWN)) if may_start_id(given) else []
        if not found:
            raise UnknownId(given)
        if len(found) > 1:
            raise AmbiguousId(given, tuple(row[0] for row in found))
        return memory_of(found[0])

    def known(self, ids: Iterable[str]) -> frozenset[str]:
        """Return those of the ids that name a memory here, in any bank."""
        sql = "SELECT id FROM memories WHERE id IN (SELECT value FROM json_each(?))"
        return frozenset(row[0] for row in self._read(sql, (json.dumps(list(ids)),)))

    def list(
        self,
        bank: str,
        limit: int = 50,
        *,
        oldest_first: bool = False,
        after: Memory | None = None,
        tag: str | None = None,
        derivation: str | None = None,
        metadata: Mapping[str, Scalar] | None = None,
    ) -> tuple[Memory, ...]:
        """Return a page of a bank's memories by created_at and id, newest first, at most 1,000.

        `after` is the last memory of the page before. `tag`, `derivation` and `metadata` narrow the page to
        memories that carry the tag, the derivation, and every one of the metadata pairs.
        """
        way, beyond = ("ASC", ">") if oldest_first else ("DESC", "<")
        where, bindings = ["bank = ?"], [bank]
        values: list[object] = [*bindings]
        if after is not None:
            where.append(f"(created_at, id) {beyond} (?, ?)")
            values += [micros(after.created_at), after.id]
        if tag is not None:
            where.append("EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)")
            values.append(tag)
        if derivation is not None:
            where.append("derivation = ?")
            values.append(derivation)
        for key, value in (metadata or {}).items():
            where.append("EXISTS (SELECT 1 FROM json_each(metadata) WHERE key = ? AND value = ?)")
            values += [key, value]
        sql = (
            f"SELECT {FIELDS} FROM memories WHERE {' AND '.join(where)}"
            f" ORDER BY created_at {way}, id {way} LIMIT ?"
        )
        values.append(min(max(limit, 0), _LIST_LIMIT))
        return tuple(memory_of(row) for row in self._read(sql, tuple(values)))

    def mirrored(self, bank: str) -> frozenset[str]:
        """Return the ids of a bank's memories that teammates saved, however they came here."""
        sql = "SELECT id FROM memories WHERE bank = ? AND author IS NOT NULL"
        return frozenset(row[0] for row in self._read(sql, (bank,)))

    def count(self, bank: str) -> int:
        """Return how many memories the bank has here."""
        return int(self._read("SELECT count(*) FROM memories WHERE bank = ?", (bank,))[0][0])

    def search(self, bank: str, vector: Iterable[float], text: str = "", limit: int = 10) -> tuple[Hit, ...]:
        """Return the memories nearest to the vector or sharing words with the text, best first, at most 100.

        Both rankings are joined by reciprocal rank fusion; each hit carries its cosine. No text can make it
        fail, and empty text leaves the vector alone. Each step is a read of its own, so a memory erased in
        between is left out.
        """
        embedding = self._packed(vector)
        limit = min(max(limit, 0), _SEARCH_LIMIT)
        depth = max(50, 4 * limit)
        near = self._read(
            "SELECT row, distance FROM vectors WHERE embedding MATCH ?1 AND k = ?2 AND bank = ?3",
            (embedding, depth, bank),
        )
        distances: dict[int, float] = dict(near)
        scores: dict[int, float] = {}
        for ranking in ([row for row, _ in near], self._with_words(bank, text, depth)):
            for rank, row in enumerate(ranking, start=1):
                scores[row] = scores.get(row, 0.0) + 1 / (_RANK_CONSTANT + rank)
        # What the team holds to be wrong or outdated is not recalled; a list and `get` still show it.
        hidden = (
            "SELECT row FROM memories WHERE row IN (SELECT value FROM json_each(?1)) AND status IN (?2, ?3)"
        )
        for (row,) in self._read(hidden, (json.dumps(list(scores)), *HIDDEN)):
            del scores[row]
        best = heapq.nlargest(limit, scores, key=lambda row: (scores[row], -distances.get(row, 2.0), row))
        hits = []
        for row in best:
            found = self._read(f"SELECT {FIELDS} FROM memories WHERE row = ? AND bank = ?", (row, bank))
            distance = distances.get(row)
            if found and distance is None:
                distance = self._distance(row, embedding)
            if found and distance is not None:
                hits.append(Hit(memory_of(found[0]), 1.0 - distance, scores[row]))
        return tuple(hits)

    def own(self, bank: str, withheld: Iterable[str] = ()) -> Rows:
        """Return which memories of the bank were saved here, are recalled and are not kept from the team, for `own_near`."""
        sql = f"SELECT json_group_array(row) FROM memories WHERE {_REASON}"
        return Rows(self._read(sql, (bank, json.dumps(list(withheld))))[0][0])

    def recalled(self, bank: str, ids: Iterable[str], withheld: Iterable[str] = ()) -> frozenset[str]:
        """Return those of the ids that `own` would name."""
        sql = f"SELECT id FROM memories WHERE {_REASON} AND id IN (SELECT value FROM json_each(?3))"
        found = self._read(sql, (bank, json.dumps(list(withheld)), json.dumps(list(ids))))
        return frozenset(row[0] for row in found)

    def own_near(
        self, bank: str, own: Rows, vector: Iterable[float], cosine: float
    ) -> tuple[tuple[str, str], ...]:
        """Return id and text of those of `own` that are at least as near to the vector, nearest first, at most 20.

        Teammates' memories take no part, however near and many they are.
        """
        if own == _NONE:
            return ()
        near = self._read(
            "SELECT row FROM vectors WHERE embedding MATCH ?1 AND k = ?2 AND bank = ?3"
            " AND row IN (SELECT value FROM json_each(?4)) AND distance <= ?5 ORDER BY distance",
            (self._packed(vector), _NEIGHBOURS, bank, own, 1.0 - cosine),
        )
        sql = "SELECT id, text FROM memories WHERE row = ? AND bank = ?"
        found = [self._read(sql, (row, bank)) for (row,) in near]
        return tuple((rows[0][0], rows[0][1]) for rows in found if rows)

    def erase(
        self,
        ids: Iterable[str],
        *,
        seqs: Mapping[str, int] | None = None,
        wait: float = 2.0,
        bank: str | None = None,
    ) -> Erasure:
        """Erase memories from disk; unknown ids are passed over, and those that are not of `bank` where it is given.

        `seqs` are the tombstones that asked for it.
        They are out of every answer at once. When another process reads for longer than `wait` seconds the
        answer's `gone` is False, and the next opener, or `settle`, finishes it.
        """
        erased = _erase.delete_rows(self._connection, ids, seqs or {}, bank)
        return Erasure(erased, self.settle(wait))

    def settle(self, wait: float = 2.0) -> bool:
        """Try to finish all pending erasures; True when none is left."""
        return _erase.settle(self._connection, wait)

    def unacknowledged(self, bank: str | None = None) -> tuple[PendingErasure, ...]:
        """Return the erasures whose bytes are not known to be gone, of one bank or of all."""
        return _erase.pending(self._connection, bank)

    def _read(self, sql: str, bindings: Row = ()) -> Sequence[Row]:
        return reading(self._connection, sql, bindings)

    def _packed(self, vector: Iterable[float]) -> bytes:
        if self._embedder is None:
            raise FieldInvalid(
                "vector", "the store was opened without saying which embedder makes its vectors"
            )
        return packed(vector)

    def _prepared(self, memory: Memory, vector: Iterable[float]) -> tuple[Row, bytes]:
        check(memory)
        return row_of(memory), self._packed(vector)

    def _insert(self, row: Row, embedding: bytes) -> bool:
        marks = ", ".join("?" * len(row))
        sql = f"INSERT INTO memories ({FIELDS}) VALUES ({marks}) ON CONFLICT (id) DO NOTHING"
        sql += " RETURNING row, bank"
        try:
            inserted = fetched(self._connection, sql, row)
        except apsw.ConstraintError as error:  # all else was checked before
            raise FieldInvalid("scope", "the layer and its owner do not go together") from error
        for number, bank in inserted:
            self._connection.execute(
                "INSERT INTO vectors (row, bank, embedding) VALUES (?, ?, ?)", (number, bank, embedding)
            )
        return bool(inserted)

    def _same(self, memory: Memory) -> bool:
        sql = "SELECT 1 FROM memories WHERE id = ? AND bank = ? AND text = ?"
        return bool(fetched(self._connection, sql, (memory.id, memory.bank, memory.text)))

    def _being_erased(self, id_: str) -> bool:
        return bool(fetched(self._connection, "SELECT 1 FROM unacknowledged_erasures WHERE id = ?", (id_,)))

    def _with_words(self, bank: str, text: str, depth: int) -> Sequence[int]:
        if not (query := words_query(text)):
            return []
        sql = (
            "SELECT memories.row FROM words JOIN memories ON memories.row = words.rowid"
            " WHERE words MATCH ?1 AND memories.bank = ?2 ORDER BY bm25(words), memories.row LIMIT ?3"
        )
        return [row[0] for row in self._read(sql, (query, bank, depth))]

    def _distance(self, row: int, embedding: bytes) -> float | None:
        sql = "SELECT vec_distance_cosine(embedding, ?1) FROM vectors WHERE row = ?2"
        found = self._read(sql, (embedding, row))
        return float(found[0][0]) if found else None

    def _record_embedder(self, given: EmbedderIdentity) -> None:
        wanted = {"model": given.model, "revision": given.revision, "dimension": str(given.dimension)}
        if given.dimension != DIMENSION:
            raise EmbedderMismatch(f"one of dimension {DIMENSION}", str(given))
        with writing(self._connection):
            sql = "SELECT key, value FROM meta WHERE key IN ('model', 'revision', 'dimension')"
            recorded: dict[str, str] = dict(fetched(self._connection, sql))
            if not recorded:
                self._connection.executemany(
                    "INSERT INTO meta (key, value) VALUES (?, ?)", list(wanted.items())
                )
            elif recorded != wanted:
                found = EmbedderIdentity(recorded["model"], recorded["revision"], int(recorded["dimension"]))
                raise EmbedderMismatch(str(found), str(given))


def words_query(text: str) -> str:
    """Return an FTS5 query for any of the text's words, quoted so that none is syntax; it may be empty."""
    words = dict.fromkeys(word.lower() for word in re.findall(r"[^\W_]+", text))
    return " OR ".join(f'"{word}"' for word in list(words)[:_QUERY_WORDS])


def _prepare(connection: apsw.Connection) -> None:
    load_vectors(connection)
    connection.create_scalar_function("tagged_private", _tagged_private, 1, deterministic=True)


def _tagged_private(*given: Any) -> bool:
    (tags,) = given
    return tagged(json.loads(tags), PRIVATE)
