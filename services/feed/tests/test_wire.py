"""The bytes written by hand are those of the message that the generated classes would build, whatever the values."""

import struct
from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import example, given
from hypothesis import strategies as st
from teamlore.feed.v1 import feed_pb2
from teamlore.sync.v1 import sync_pb2

from services.feed import wire

CHANGE, CONTENT = feed_pb2.Change.DESCRIPTOR, sync_pb2.MemoryContent.DESCRIPTOR
TEXT = st.text(st.characters(codec="utf-8"), max_size=300)
# Microseconds since 2000, from the first to the last that a Timestamp may hold, and those next to a whole second.
YEAR_1, YEAR_9999 = -63_082_281_600_000_000, 252_455_615_999_999_999
MOMENT = (
    st.integers(YEAR_1, YEAR_9999)
    | st.integers(-(10**6), 10**6)
    | st.integers(-5, 5).map(lambda n: n * 10**6)
)
VALUE = st.one_of(
    TEXT.map(lambda v: {"string_value": v}),
    st.booleans().map(lambda v: {"bool_value": v}),
    st.floats(allow_nan=False).map(lambda v: {"number_value": v}),
)
# A strategy for each field of a change: a field that is missing here fails the test below.
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "id": TEXT.filter(bool),
    "text": TEXT,
    "tags": st.lists(TEXT, max_size=4),
    "metadata": st.dictionaries(TEXT, VALUE, max_size=3),
    "citations": st.lists(st.fixed_dictionaries({"uri": TEXT, "excerpt": TEXT}), max_size=3),
    "occurred_at": st.none() | MOMENT,
    "fact_type": TEXT,
    "seq": st.integers(1, 2**63 - 1) | st.integers(1, 1 << 31) | st.integers(1, 20).map(lambda n: 1 << n),
    "changed_at": MOMENT,
    "retained_at": MOMENT,
    "derivation": TEXT,
    "author": TEXT,
    "lane": TEXT,
    "status": TEXT,
    "version": st.integers(0, 2**31 - 1),
    "trust": TEXT,
    "may_be_stale": st.booleans(),
    "superseded_by": TEXT,
    "last_verified": st.none() | MOMENT,
}

# Lengths beyond those whose bytes are kept ready.
LONG = dict.fromkeys(FIELDS, "") | {
    "id": "x" * 200, "text": "y" * 20_000, "seq": 1 << 40, "changed_at": 1, "retained_at": -1, "occurred_at": 0,
    "last_verified": None, "version": 1, "may_be_stale": False, "tags": [], "metadata": {}, "citations": [],
}  # fmt: skip


def stamp(moment: int) -> Timestamp:
    made = Timestamp()
    made.FromMicroseconds(moment + 946_684_800_000_000)
    return made


def moments(*values: int) -> bytes:
    """Times as Postgres sends them."""
    return struct.pack(f">{len(values)}q", *values)


def binary_row(values: Sequence[str | int | bool | None]) -> bytes:
    """A row as Postgres sends it."""
    parts = [struct.pack(">i", len(values))]
    for value in values:
        match value:
            case None:
                kind, piece = 25, b""
            case bool():
                kind, piece = 16, struct.pack(">?", value)
            case int():
                kind, piece = 23, struct.pack(">i", value)
            case str():
                kind, piece = 25, value.encode()
        parts += (struct.pack(">Ii", kind, -1 if value is None else len(piece)), piece)
    return b"".join(parts)


async def test_a_row_comes_as_these_tests_say(database_url: str) -> None:
    sql = await asyncpg.connect(database_url)
    row = ["décision", "fact", None, "synced", "", -5, "human", True, "x" * 300]
    columns = "$1::text, $2::text, $3::text, $4::text, $5::text, $6::int, $7::text, $8::boolean, $9::text"
    assert await sql.fetchval(f"select record_send(row({columns}))", *row) == binary_row(row)
    assert await sql.fetchval("select timestamptz_send('2000-01-01T00:00:01Z')") == moments(10**6)
    await sql.close()
    expected = feed_pb2.Change(**{k: v for k, v in zip(wire.SHARED, row, strict=True) if v is not None})  # type: ignore[arg-type]
    assert wire.shared_fields(binary_row(row)) == expected.SerializeToString()
    with pytest.raises(ValueError):
        wire.shared_fields(binary_row(row[:-1]))


def test_every_field_of_a_change_is_written_here() -> None:
    assert {field.name for field in CHANGE.fields} == FIELDS.keys() | {"deleted"}
    of_content = {field.name for field in CONTENT.fields}
    by_hand = {"id", "deleted", "seq", "changed_at", "retained_at", "occurred_at", "last_verified"}
    assert of_content | by_hand | set(wire.SHARED) == {field.name for field in CHANGE.fields}


def test_what_is_sealed_has_the_numbers_and_types_of_a_change() -> None:
    for field in CONTENT.fields:
        same = CHANGE.fields_by_name[field.name]
        assert (same.number, same.type, same.is_repeated) == (field.number, field.type, field.is_repeated)
        of_content = field.message_type
        assert of_content is None or of_content.GetOptions().map_entry or of_content is same.message_type
    for message in ("ChangeBatch", "ListChangesResponse", "ListLiveResponse"):
        entries = feed_pb2.DESCRIPTOR.message_types_by_name[message].fields_by_number[1]
        assert entries.message_type is CHANGE and entries.is_repeated
    batch = feed_pb2.WatchChangesResponse.DESCRIPTOR.fields_by_number[1]
    assert batch.message_type.name == "ChangeBatch" and not batch.is_repeated


@given(
    st.lists(
        st.fixed_dictionaries(FIELDS)
        | st.fixed_dictionaries({n: FIELDS[n] for n in ("id", "seq", "changed_at")}),
        max_size=4,
    )
)
@example([LONG])
@example([{"id": "x", "seq": 1, "changed_at": -946_684_800_000_000}])
def test_the_bytes_are_those_of_the_message(rows: list[dict[str, Any]]) -> None:
    body, expected = b"", feed_pb2.ListChangesResponse()
    for row in rows:
        change = expected.changes.add(id=row["id"], seq=row["seq"], changed_at=stamp(row["changed_at"]))
        if "text" not in row:
            change.deleted = True
            body += wire.tombstone(row["id"].encode(), row["seq"], moments(row["changed_at"], 0))
            continue
        content = sync_pb2.MemoryContent(text=row["text"], tags=row["tags"])
        for citation in row["citations"]:
            content.citations.add(**citation)
            change.citations.add(**citation)
        for key, value in row["metadata"].items():
            for kind, scalar in value.items():
                setattr(content.metadata[key], kind, scalar)
                setattr(change.metadata[key], kind, scalar)
        change.text = row["text"]
        change.tags.extend(row["tags"])
        change.retained_at.CopyFrom(stamp(row["retained_at"]))
        if row["occurred_at"] is not None:
            change.occurred_at.CopyFrom(stamp(row["occurred_at"]))
        if row["last_verified"] is not None:
            change.last_verified.CopyFrom(stamp(row["last_verified"]))
        for name in wire.SHARED:
            setattr(change, name, row[name])
        shared = wire.shared_fields(binary_row([row[name] for name in wire.SHARED]))
        at = moments(row["changed_at"], row["retained_at"])
        occurred, verified = (
            None if row[name] is None else moments(row[name]) for name in ("occurred_at", "last_verified")
        )
        body += b"".join(
            wire.upsert(row["id"].encode(), row["seq"], shared, content.SerializeToString(), at, occurred, verified)
        )
    parsed = feed_pb2.ListChangesResponse.FromString(body)
    assert parsed == expected
    # The generated classes write the same number of bytes, so nothing is doubled or left over.
    assert len(body) == expected.ByteSize()
    batch = feed_pb2.WatchChangesResponse.FromString(wire.within(body))
    assert list(batch.batch.changes) == list(expected.changes) and batch.WhichOneof("event") == "batch"


@given(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 1 << 31))
def test_numbers_are_written_as_protobuf_does(number: int) -> None:
    written = feed_pb2.Change(seq=number).SerializeToString()
    assert written == (b"\x40" + wire.varint(number) if number else b"")
