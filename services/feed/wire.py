"""Changes as bytes of the wire: a memory's opened content is passed on as it is, with a small header of our own around it.

The field numbers of MemoryContent are those of Change, so no text, tag or key is read on the way. A test holds every
byte against what the generated classes make of the same values, and fails for a field of Change that is not written here.
"""

import struct
from collections.abc import Mapping

from teamlore.feed.v1 import feed_pb2

# The columns of which a bank has few combinations: the generated class writes each combination once.
SHARED = (
    "fact_type", "derivation", "author", "lane", "status", "version", "trust", "may_be_stale", "superseded_by",
)  # fmt: skip
# Times come as Postgres sends them, microseconds since 2000: to make datetimes of them costs more than to open a row.
MOMENT = struct.Struct(">q")
MOMENTS = struct.Struct(">qq")
_EPOCH_2000 = 946_684_800
_CACHED = 50_000
_FIELDS = feed_pb2.Change.DESCRIPTOR.fields_by_name


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
# By second: the seconds of a Timestamp, and all that stands before nanoseconds of five bytes, which most are.
_seconds: dict[int, tuple[bytes, bytes]] = {}
_shared: dict[tuple[object, ...], bytes] = {}


def _stamp(moment: int) -> bytes:
    """A Timestamp with its length before it."""
    second, micros = divmod(moment, 1_000_000)
    known = _seconds.get(second)
    if known is None:
        if len(_seconds) > _CACHED:
            _seconds.clear()
        whole = second + _EPOCH_2000
        alone = b"\x08" + varint(whole) if whole else b""
        known = _seconds[second] = (alone, _SMALL[len(alone) + 6] + alone + b"\x10")
    nanos = micros * 1000
    if nanos >= 1 << 28:
        return known[1] + _LOW[nanos & 0x3FFF] + _SMALL[nanos >> 14]
    stamp = known[0] + b"\x10" + varint(nanos) if nanos else known[0]
    return _SMALL[len(stamp)] + stamp


def shared_fields(values: tuple[object, ...]) -> bytes:
    """The fields named by SHARED."""
    found = _shared.get(values)
    if found is None:
        if len(_shared) > _CACHED:
            _shared.clear()
        fields: Mapping[str, object] = dict(zip(SHARED, values, strict=True))
        found = _shared[values] = feed_pb2.Change(**fields).SerializeToString()  # type: ignore[arg-type]
    return found


def tombstone(memory_id: bytes, seq: int, changed_at: int) -> bytes:
    """A Change that says a memory is gone, as an entry of the message that carries it."""
    named = _ID + varint(len(memory_id)) + memory_id
    change = named + _DELETED + _SEQ + varint(seq) + _CHANGED + _stamp(changed_at)
    return _ENTRY + varint(len(change)) + change


def upsert(
    memory_id: bytes,
    seq: int,
    changed_at: int,
    retained_at: int,
    occurred_at: int | None,
    last_verified: int | None,
    shared: bytes,
    content: bytes,
) -> tuple[bytes, bytes, bytes]:
    """A Change with a memory's values, as an entry of the message that carries it, in parts to be joined."""
    named = _ID + varint(len(memory_id)) + memory_id
    rest = b"".join((_SEQ, varint(seq), _CHANGED, _stamp(changed_at), _RETAINED, _stamp(retained_at), shared))
    if occurred_at is not None:
        rest += _OCCURRED + _stamp(occurred_at)
    if last_verified is not None:
        rest += _VERIFIED + _stamp(last_verified)
    return _ENTRY + varint(len(named) + len(content) + len(rest)) + named, content, rest


def within(body: bytes) -> bytes:
    """A message as field 1 of another."""
    return _ENTRY + varint(len(body)) + body
