"""What travels between a laptop and its team, inside frozen dataclasses; the wire's own messages end here."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Protocol

from google.protobuf.struct_pb2 import Value
from google.protobuf.timestamp_pb2 import Timestamp
from teamlore.feed.v1 import feed_pb2
from teamlore.sync.v1 import sync_pb2

from teamlore_client._memory import Citation, Memory, Scalar, Standing, scope_of

CREATED_AT = "_created_at"


@dataclass(frozen=True)
class Identity:
    """Who the server says is calling, and what it may do on the bank asked about."""

    principal: str
    permissions: tuple[str, ...]
    kind: str = "agent"
    """Of the credential: `person`, `agent` or `service`."""
    person_present: bool = False
    """True when the credential is a session of `teamlore login`."""


@dataclass(frozen=True)
class Answer:
    """The server's answer to one record."""

    id: str
    status: str
    reason: str = ""
    duplicate_of: str = ""


@dataclass(frozen=True)
class Change:
    """One numbered step of a bank."""

    id: str
    seq: int
    memory: Memory | None
    """The memory's current values; None for a tombstone."""


@dataclass(frozen=True)
class Batch:
    """One page of the feed."""

    changes: tuple[Change, ...]
    after_seq: int
    through_seq: int
    cursor: str
    more: bool = False


@dataclass(frozen=True)
class Head:
    """The newest seq of a bank and a cursor to it."""

    seq: int
    cursor: str


@dataclass(frozen=True)
class ServerDigest:
    """Count and sum over the live memories at a seq."""

    seq: int
    count: int
    sum: int


@dataclass(frozen=True)
class LivePage:
    """One page of the live memories of a bank."""

    changes: tuple[Change, ...]
    next: str
    """Where to go on; empty at the end."""


@dataclass(frozen=True)
class Forgotten:
    """What a forget for the team did."""

    deleted: int
    erased: int
    erasure_id: str
    """Empty where there was nothing to erase."""


@dataclass(frozen=True)
class Doomed:
    """What a forget of one memory would take."""

    author: str
    """Who saved it, and all that goes with it."""
    others: int
    """How many memories go with it."""
    texts: tuple[str, ...]
    """Texts of some of those."""
    perhaps_more: bool = False
    """True where the server named as many as it names at most: then more may go."""
    text: str = ""
    """Of the memory itself."""


class Team(Protocol):
    """The calls of a team's server that a laptop makes. Each raises ServerUnreachable or Refused."""

    def who_am_i(self, bank: str) -> Identity: ...
    def push(self, bank: str, memories: Sequence[Memory]) -> tuple[Answer, ...]: ...
    def push_stream(
        self, bank: str, batches: Iterator[Sequence[Memory]]
    ) -> Iterator[tuple[Sequence[Memory], tuple[Answer, ...]]]: ...
    def list_changes(self, bank: str, cursor: str, limit: int) -> Batch: ...
    def get_head(self, bank: str) -> Head: ...
    def get_digest(self, bank: str) -> ServerDigest: ...
    def list_live(self, bank: str, token: str) -> LivePage: ...
    def get_memories(self, bank: str, ids: Sequence[str]) -> tuple[Memory, ...]: ...
    def register_device(self, bank: str, device: str) -> None: ...
    def ack_erasures(self, bank: str, device: str, through_seq: int) -> None: ...
    def doomed(self, bank: str, id_: str) -> Doomed | None: ...
    def forget(self, bank: str, ids: Sequence[str]) -> Forgotten: ...
    def erasure_state(self, erasure_id: str) -> str: ...


def record_of(memory: Memory) -> sync_pb2.Record:
    """Write a memory as it is pushed; `_created_at` travels, so that all laptops show one order."""
    record = sync_pb2.Record(
        id=memory.id,
        text=memory.text,
        tags=memory.tags,
        fact_type=memory.fact_type or "",
        content_hash=f"sha256:{hashlib.sha256(memory.text.encode()).hexdigest()}",
    )
    if memory.occurred_at is not None:
        record.occurred_at.FromDatetime(memory.occurred_at)
    for key, value in memory.metadata.items():
        record.metadata[key].CopyFrom(_value(value))
    for citation in memory.citations:
        record.citations.add(uri=citation.uri, excerpt=citation.excerpt)
    if CREATED_AT not in memory.metadata:
        record.metadata[CREATED_AT].string_value = memory.created_at.astimezone(UTC).isoformat()
    return record


def change_of(bank: str, change: feed_pb2.Change) -> Change:
    """Read one change of a bank."""
    if change.deleted:
        return Change(change.id, change.seq, None)
    metadata = {key: _scalar(value) for key, value in change.metadata.items()}
    memory = Memory(
        id=change.id,
        bank=bank,
        scope=scope_of(bank),
        text=change.text,
        created_at=_created(metadata.get(CREATED_AT)) or _moment(change.retained_at),
        occurred_at=_moment(change.occurred_at) if change.HasField("occurred_at") else None,
        tags=tuple(change.tags),
        metadata=MappingProxyType(metadata),
        fact_type=change.fact_type or None,
        derivation=change.derivation or "fact",
        author=change.author or "unknown",
        citations=tuple(Citation(each.uri, each.excerpt) for each in change.citations),
        standing=Standing(
            version=change.version or 1,
            status=change.status or "current",
            trust=change.trust or "extracted",
            may_be_stale=change.may_be_stale,
            superseded_by=change.superseded_by,
            last_verified=_moment(change.last_verified) if change.HasField("last_verified") else None,
        ),
    )
    return Change(change.id, change.seq, memory)


def _value(scalar: Scalar) -> Value:
    if isinstance(scalar, bool):
        return Value(bool_value=scalar)
    if isinstance(scalar, str):
        return Value(string_value=scalar)
    return Value(number_value=scalar)


def _scalar(value: Value) -> Scalar:
    kind = value.WhichOneof("kind")
    if kind == "bool_value":
        return value.bool_value
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() else number
    return value.string_value


def _moment(stamp: Timestamp) -> datetime:
    try:
        return stamp.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):  # out of the calendar: shown at its edge rather than not at all
        return datetime.max.replace(tzinfo=UTC) if stamp.seconds > 0 else datetime.min.replace(tzinfo=UTC)


def _created(text: Scalar | None) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
        return None if moment is None or moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
