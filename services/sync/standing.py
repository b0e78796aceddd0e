"""Rules of what is held of a memory: who may say it, and what a reader gets."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from teamlore.sync.v1 import sync_pb2

from kit.errors import Refusal, field_invalid
from kit.sealing import KeyStore, Slot, key_alarm, open_rows
from services.sync.records import CLAIM
from services.sync.sources import openable
from services.sync.store import Standing, StatusChange, Store

VOUCHED = ("agent_verified", "human")
SKEW = timedelta(minutes=5)
"""By how much a caller's clock may be fast."""
MOST = 100
"""Memories in one answer."""
LARGEST_ANSWER = 2_500_000
"""Bytes of sealed content in one answer; gRPC takes 4 MiB."""


def change_of(request: sync_pb2.UpdateStatusRequest, person_present: bool) -> StatusChange:
    """What a request asks to change. Raises Refusal for what this caller may not say."""
    if request.HasField("trust") and request.trust == "human" and not person_present:
        raise Refusal(
            "HUMAN_TRUST_REQUIRES_PERSON",
            "only a person vouches as human: sign in with `teamlore login` and call from that session",
        )

    def given(name: str) -> Any:
        return getattr(request, name) if request.HasField(name) else None  # type: ignore[arg-type]

    verified = _moment(request.last_verified) if request.HasField("last_verified") else None
    return StatusChange(
        given("status"),
        given("trust"),
        given("may_be_stale"),
        given("superseded_by"),
        verified,
        person_present,
    )


def _moment(stamp: Timestamp) -> datetime:
    try:
        moment = stamp.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise field_invalid("last_verified", "must be a time between the years 1 and 9999") from error
    if moment > datetime.now(UTC) + SKEW:
        raise field_invalid("last_verified", "must not lie in the future: nobody has looked yet")
    return moment


def require_source(memories: Sequence[sync_pb2.Memory], version: int) -> None:
    """Raises FIELD_INVALID for a claim that cites nothing its readers can open: nobody could check who vouches for it.

    What was looked at must be what is changed, so an id without a memory is NOT_FOUND and another version a
    VERSION_CONFLICT here already: either may be otherwise a moment later.
    """
    if not memories:
        answered(None)
    for memory in memories:
        if memory.version != version:
            answered(Standing("conflict", memory.version, memory.seq))
        if memory.fact_type == CLAIM and not any(openable(citation.uri) for citation in memory.citations):
            raise field_invalid(
                "trust", "a claim that cites no source teammates can open is at most agent_inferred"
            )


def answered(found: Standing | None) -> sync_pb2.UpdateStatusResponse:
    """The answer to a change. Raises Refusal where it was not made."""
    if found is None:
        raise Refusal("NOT_FOUND", "there is no such memory in this bank")
    if found.outcome == "conflict":
        raise Refusal(
            "VERSION_CONFLICT",
            f"the memory has version {found.version} now; look at it again",
            metadata={"version": str(found.version)},
        )
    if found.outcome == "no successor":
        raise field_invalid(
            "superseded_by",
            "must be another live memory of this bank, whose own successors do not lead back here",
        )
    return sync_pb2.UpdateStatusResponse(version=found.version, seq=found.seq)


async def opened(store: Store, keys: KeyStore, bank: str, ids: Sequence[str]) -> sync_pb2.GetMemoriesResponse:
    """The live ones of these memories, as many as one answer carries. Raises KEY_MISSING for one without a key."""
    rows, size, kept = await store.live(bank, ids), 0, 0
    for row in rows:
        size += len(row["sealed"])
        if kept and size > LARGEST_ANSWER:
            break
        kept += 1
    shown = rows[:kept]
    plains = open_rows(
        keys, bank, [(row["id"], Slot(row["key_page"], row["key_slot"]), row["sealed"]) for row in shown]
    )
    missing = [row for row, plain in zip(shown, plains, strict=True) if plain is None]
    if missing:
        # Erased since it was read, or an alarm.
        still = {row["id"] for row in await store.live(bank, [row["id"] for row in missing])}
        lost = [(row["id"], Slot(row["key_page"], row["key_slot"])) for row in missing if row["id"] in still]
        if lost:
            raise key_alarm("a live memory has no key", bank, lost)
    return sync_pb2.GetMemoriesResponse(
        memories=[_memory(row, plain) for row, plain in zip(shown, plains, strict=True) if plain is not None],
        remaining_ids=[row["id"] for row in rows[kept:]],
    )


def _memory(row: Any, content: bytes) -> sync_pb2.Memory:
    memory = sync_pb2.Memory(
        id=row["id"], seq=row["last_seq"], author=row["author"], lane=row["lane"], derivation=row["derivation"],
        fact_type=row["fact_type"], status=row["status"], version=row["version"], trust=row["trust"],
        may_be_stale=row["may_be_stale"], superseded_by=row["superseded_by"],
    )  # fmt: skip
    # The content's field numbers are the message's own, so its bytes are read straight in.
    memory.MergeFromString(content)
    memory.retained_at.FromDatetime(row["retained_at"])
    for name in ("occurred_at", "last_verified"):
        if row[name] is not None:
            getattr(memory, name).FromDatetime(row[name])
    return memory
