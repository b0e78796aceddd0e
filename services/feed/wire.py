"""Changes as bytes of the wire: a memory's opened content is passed on as it is, with a small header of our own around it.

The field numbers of MemoryContent are those of Change, so no text, tag or key is read on the way. A test holds every
byte against what the generated classes make of the same values, and fails for a field of Change that is not written here.
"""

import struct
from collections.abc import Iterator, Mapping

from google.protobuf.descriptor import FieldDescriptor
from teamlore.feed.v1 import feed_pb2

# The columns of which a bank has few combinations: the generated class writes each combination once. They come as one
# value, Postgres' binary form of a row, since each column costs a fetch as much as it costs to read it.
SHARED = (
    "fact_type", "derivation", "author", "lane", "status", "version", "trust", "may_be_stale", "superseded_by",
)  # fmt: skip
# Times come as Postgres sends them, microseconds since 2000: to make datetimes of them costs more than to open a row.
_MOMENT = struct.Struct(">q")
_MOMENTS = struct.Struct(">qq")
_EPOCH_2000 = 946_684_800
_CACHED = 50_000
_FIELDS = feed_pb2.Change.DESCRIPTOR.fields_by_name
# Of a row in binary form: how many values; of each its type, and its length or -1 for null.
_ROW, _VALUE = struct.Struct(">i"), struct.Struct(">Ii")


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    result = bytearray()
    while number > 0x7F:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    result.append(number)
    return bytes(result)


# Pieces of numbers: up to 16 bits alone, and the lower 14 bits of a longer one.
_SMALL = [_varint(n) for n in range(1 << 16)]
_LOW = [bytes((n & 0x7F | 0x80, n >> 7 | 0x80)) for n in range(1 << 14)]


def varint(number: int) -> bytes:
    """A number as protobuf writes it; a negative one in ten bytes."""
    if 0 <= number < 1 << 16:
        return _SMALL[number]
    if 0 <= number < 1 << 30:
        return _LOW[number & 0x3FFF] + _SMALL[number >> 14]
    return _varint(number)


def _tag(field: str, wire_type: int) -> bytes:
    return _varint(_FIELDS[field].number << 3 | wire_type)


_ID, _OCCURRED, _CHANGED, _RETAINED, _VERIFIED = (
    _tag(name, 2) for name in ("id", "occurred_at", "changed_at", "retained_at", "last_verified")
)
_SEQ, _DELETED = _tag("seq", 0), _tag("deleted", 0) + b"\x01"
_ENTRY = b"\x0a"  # field 1 of each message that carries changes
# What stands before a change, and before its id, by length.
_ENTRIES = [_ENTRY + length for length in _SMALL[: 1 << 14]]
_NAMED = [_ID + length for length in _SMALL[:128]]
_shared: dict[bytes, bytes] = {}
# By second: all of a Timestamp that stands before its nanoseconds, by how many bytes those take beyond the lower two.
_seconds: dict[int, tuple[bytes, ...]] = {}
# What one push brought has one time: its fields, by the column of the query. Most of a page is of few pushes.
_times: dict[bytes, bytes] = {}


def _stamp(moment: int) -> bytes:
    """A Timestamp with its length before it."""
    second, micros = divmod(moment, 1_000_000)
    nanos = micros * 1000
    if nanos < 1 << 14:
        stamp = _whole(second) + (b"\x10" + _SMALL[nanos] if nanos else b"")
        return _SMALL[len(stamp)] + stamp
    known = _seconds.get(second)
    if known is None:
        if len(_seconds) > _CACHED:
            _seconds.clear()
        whole = _whole(second)
        known = _seconds[second] = tuple(_SMALL[len(whole) + 3 + more] + whole + b"\x10" for more in range(4))
    more = _SMALL[nanos >> 14]
    return known[len(more)] + _LOW[nanos & 0x3FFF] + more


def _whole(second: int) -> bytes:
    seconds = second + _EPOCH_2000
    return b"\x08" + varint(seconds) if seconds else b""


def _changed_and_retained(moments: bytes) -> bytes:
    """Both fields, from the column of the query."""
    found = _times.get(moments)
    if found is None:
        if len(_times) > _CACHED:
            _times.clear()
        changed, retained = _MOMENTS.unpack(moments)
        stamp = _stamp(changed)
        found = _CHANGED + stamp + _RETAINED + (stamp if retained == changed else _stamp(retained))
        _times[moments] = found
    return found


def _values(row: bytes) -> Iterator[tuple[str, str | int | bool]]:
    """The columns named by SHARED, of a row in binary form; null is as good as nothing."""
    (count,) = _ROW.unpack_from(row)
    if count != len(SHARED):
        raise ValueError(f"{count} columns are not those of SHARED")
    at = _ROW.size
    for name in SHARED:
        _, length = _VALUE.unpack_from(row, at)
        at += _VALUE.size
        value = row[at : at + max(length, 0)]
        at += len(value)
        kind = _FIELDS[name].type
        if kind == FieldDescriptor.TYPE_STRING:
            yield name, value.decode()
        else:
            number = int.from_bytes(value, "big", signed=True)
            yield name, bool(number) if kind == FieldDescriptor.TYPE_BOOL else number


def shared_fields(row: bytes) -> bytes:
    """The fields named by SHARED, from the row of their columns in binary form."""
    found = _shared.get(row)
    if found is None:
        if len(_shared) > _CACHED:
            _shared.clear()
        fields: Mapping[str, object] = dict(_values(row))
        found = _shared[row] = feed_pb2.Change(**fields).SerializeToString()  # type: ignore[arg-type]
    return found


def tombstone(memory_id: bytes, seq: int, moments: bytes) -> bytes:
    """A Change that says a memory is gone, as an entry of the message that carries it."""
    changed, _ = _MOMENTS.unpack(moments)
    named = _ID + varint(len(memory_id)) + memory_id
    change = named + _DELETED + _SEQ + varint(seq) + _CHANGED + _stamp(changed)
    return _ENTRY + varint(len(change)) + change


def upsert(
    memory_id: bytes,
    seq: int,
    shared: bytes,
    content: bytes,
    moments: bytes,
    occurred: bytes | None,
    verified: bytes | None,
) -> tuple[bytes, bytes, bytes]:
    """A Change with a memory's values, as an entry of the message that carries it, in parts to be joined.

    `moments` and the two times are columns of the query, `shared` is what `shared_fields` gave.
    """
    rest = _SEQ + varint(seq) + _changed_and_retained(moments) + shared
    if occurred is not None:
        rest += _OCCURRED + _stamp(_MOMENT.unpack(occurred)[0])
    if verified is not None:
        rest += _VERIFIED + _stamp(_MOMENT.unpack(verified)[0])
    length = len(memory_id)
    named = _NAMED[length] if length < len(_NAMED) else _ID + varint(length)
    size = len(named) + length + len(content) + len(rest)
    entry = _ENTRIES[size] if size < len(_ENTRIES) else _ENTRY + varint(size)
    return entry + named + memory_id, content, rest


def within(body: bytes) -> bytes:
    """A message as field 1 of another."""
    return _ENTRY + varint(len(body)) + body
