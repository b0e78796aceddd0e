"""Rules of a pushed record: what makes it a draft that may be stored, and what makes it rejected."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from google.protobuf.struct_pb2 import Value
from teamlore.sync.v1 import sync_pb2

from kit.barrier import NEVER_FORWARDED, Barrier
from kit.pii import PersonalData
from kit.texts import visible
from kit.validation import violations_of

CLAIM = "claim"
"""The kind of fact that has to say what it rests on."""
KEPT_SYSTEM_KEYS = frozenset({"_created_at", "_retain_id", "_chunk_index"})
METADATA_BYTES = 4096
_METADATA_TOO_LARGE = f"must be at most {METADATA_BYTES} bytes"
LARGEST_NUMBER = float(2**53)
TEXT_CHARACTERS, TAG_CHARACTERS, KEY_CHARACTERS, CITATION_CHARACTERS = 50_000, 100, 100, 2000
"""The proto's limits. They are checked of what was sent, and again of what the barrier made of it."""


@dataclass(frozen=True)
class Draft:
    """A record that may be stored: its text after the barrier, and the content message that will be sealed."""

    id: str
    text: str
    content: bytes
    fact_type: str
    occurred_at: datetime | None
    retain_id: str = ""
    """As sent: which retain the text is a chunk of."""


@dataclass(frozen=True)
class Rejected:
    """A record that may not: why, in words that repeat nothing of it."""

    id: str
    reason: str


def judge(record: sync_pb2.Record, barrier: Barrier, personal: PersonalData) -> Draft | Rejected:
    """Judges one record alone, in the order: rules of the proto, hash, times, metadata, secrets, personal data."""
    wrong = violations_of(record)
    if wrong:
        return Rejected(record.id, f"{wrong[0].field}: {wrong[0].description}")
    text = record.text
    if not visible(text):
        return Rejected(record.id, "text: must hold a visible character")
    if record.content_hash and record.content_hash != "sha256:" + hashlib.sha256(text.encode()).hexdigest():
        return Rejected(record.id, "content_hash: does not fit the text")
    if any(not citation.uri and not visible(citation.excerpt) for citation in record.citations):
        return Rejected(record.id, "citations: each names a source, carries an excerpt, or both")
    if record.fact_type == CLAIM and not record.citations:
        return Rejected(record.id, "citations: a claim names a source or carries an excerpt of it")
    occurred = None
    if record.HasField("occurred_at"):
        try:
            occurred = record.occurred_at.ToDatetime(tzinfo=UTC)
        except (ValueError, OverflowError):
            return Rejected(record.id, "occurred_at: must be a time between the years 1 and 9999")
    content = sync_pb2.MemoryContent()
    found: set[str] = set()
    named: set[str] = set()

    def pass_barrier(text: str) -> str:
        passed = barrier.check(text)
        found.update(passed.found)
        passed = personal.check(passed.text)
        named.update(passed.found)
        return passed.text

    retain = ""
    if record.metadata:
        problem = _pass_metadata(record, content, pass_barrier)
        if problem:
            return Rejected(record.id, f"metadata: {problem}")
        retain = record.metadata["_retain_id"].string_value if "_retain_id" in record.metadata else ""
    for citation in record.citations:
        content.citations.add(uri=pass_barrier(citation.uri), excerpt=pass_barrier(citation.excerpt))
    if record.tags:
        content.tags.extend(pass_barrier(tag) for tag in record.tags)
    content.text = pass_barrier(text)
    if found and barrier.action == "reject":
        return Rejected(record.id, "text: holds what looks like a secret: " + ", ".join(sorted(found)))
    if named and personal.action == "reject":
        return Rejected(record.id, "text: holds what looks like personal data: " + ", ".join(sorted(named)))
    grown = _outgrown(content) if found or named else ""
    if grown:
        return Rejected(record.id, grown)
    sealed = content.SerializeToString(deterministic=True)
    return Draft(record.id, content.text, sealed, record.fact_type, occurred, retain)


def _pass_metadata(
    record: sync_pb2.Record, content: sync_pb2.MemoryContent, pass_barrier: Callable[[str], str]
) -> str:
    """Puts what is kept of a record's metadata into the content; gives what is wrong with it, if anything is."""
    kept = []
    for key in sorted(record.metadata):
        value = record.metadata[key]
        problem = _scalar_problem(value)
        if problem:
            return problem
        if (key in KEPT_SYSTEM_KEYS or not key.startswith("_")) and key.lower() not in NEVER_FORWARDED:
            kept.append((key, value))
    # The barrier reads every character, so nothing too large gets there.
    if sync_pb2.MemoryContent(metadata=dict(kept)).ByteSize() > METADATA_BYTES:
        return _METADATA_TOO_LARGE
    for key, value in kept:
        passed = pass_barrier(key)
        if passed in content.metadata:
            return "two keys are one with their secrets redacted"
        content.metadata[passed].CopyFrom(value)
        if value.WhichOneof("kind") == "string_value":
            content.metadata[passed].string_value = pass_barrier(value.string_value)
    return _METADATA_TOO_LARGE if content.ByteSize() > METADATA_BYTES else ""


def _outgrown(content: sync_pb2.MemoryContent) -> str:
    """Which limit a content breaks that it kept before the barrier: a redaction may be longer than the secret."""
    longest = {
        "text": (TEXT_CHARACTERS, len(content.text)),
        "tags": (TAG_CHARACTERS, max(map(len, content.tags), default=0)),
        "metadata": (KEY_CHARACTERS, max(map(len, content.metadata), default=0)),
        "citations": (
            CITATION_CHARACTERS,
            max((max(len(each.uri), len(each.excerpt)) for each in content.citations), default=0),
        ),
    }
    for name, (limit, size) in longest.items():
        if size > limit:
            return f"{name}: must be at most {limit} characters, and has {size} after redaction"
    return ""


def _scalar_problem(value: Value) -> str:
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        number = value.number_value
        if math.isnan(number) or abs(number) > LARGEST_NUMBER:
            return "a number must lie between -2^53 and 2^53"
        return ""
    return "" if kind in ("string_value", "bool_value") else "a value must be a string, a bool or a number"
