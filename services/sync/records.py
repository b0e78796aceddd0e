"""Rules of a pushed record: what makes it a draft that may be stored, and what makes it rejected."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from google.protobuf.struct_pb2 import Value
from teamlore.sync.v1 import sync_pb2

from kit.barrier import NEVER_FORWARDED, Barrier, redacted_kinds, shapes
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


class Draft(NamedTuple):
    """A record that may be stored: its text after the barrier, and the content message that will be sealed."""

    id: str
    text: str
    content: bytes
    fact_type: str
    occurred_at: datetime | None
    retain_id: str = ""
    """As sent: which retain the text is a chunk of."""
    sent: str = ""
    """The text before the barrier; never kept."""


@dataclass(frozen=True)
class Rejected:
    """A record that may not: why, in words that repeat nothing of it."""

    id: str
    reason: str


class _Gate:
    """Lets the texts of one record through both barriers, and gathers the kinds of what they found."""

    def __init__(self, barrier: Barrier, personal: PersonalData) -> None:
        self.barrier = barrier
        self.personal = personal
        self.field = ""
        """Which field is being let through."""
        self.secrets: dict[str, str] = {}
        self.persons: dict[str, str] = {}
        """Kind → the field in which it was found last."""

    def __call__(self, text: str) -> str:
        if self.barrier.action != "off":
            text, found = self.barrier.check(text)
            self.secrets.update(dict.fromkeys(found, self.field))
        return self._without_persons(text)

    def value(self, key: str, text: str) -> str:
        """A value of the metadata, which may be a secret by its key alone."""
        if self.barrier.action != "off":
            text, found = self.barrier.check_value(key, text)
            self.secrets.update(dict.fromkeys(found, self.field))
        return self._without_persons(text)

    def _without_persons(self, text: str) -> str:
        if self.personal.action != "off":
            text, found = self.personal.check(text)
            self.persons.update(dict.fromkeys(found, self.field))
        return text

    def refusal(self) -> str:
        """Why the record is refused; empty where it is not."""
        if self.secrets and self.barrier.action == "reject":
            return _refusal(self.secrets, "a secret")
        if self.persons and self.personal.action == "reject":
            return _refusal(self.persons, "personal data")
        return ""


def _refusal(found: Mapping[str, str], what: str) -> str:
    fields, kinds = sorted(set(found.values())), sorted(found)
    return f"{', '.join(fields)}: holds what looks like {what}: {', '.join(kinds)}"


def judge(record: sync_pb2.Record, barrier: Barrier, personal: PersonalData) -> Draft | Rejected:
    """Judges one record alone, in the order: rules of the proto, hash, times, metadata, secrets, personal data.

    Each field is read once: to read one costs as much as a rule does.
    """
    wrong = violations_of(record)
    if wrong:
        return Rejected(record.id, f"{wrong[0].field}: {wrong[0].description}")
    memory_id, text, fact_type, citations = record.id, record.text, record.fact_type, record.citations
    if not visible(text):
        return Rejected(memory_id, "text: must hold a visible character")
    told = record.content_hash
    if told and told != "sha256:" + hashlib.sha256(text.encode()).hexdigest():
        return Rejected(memory_id, "content_hash: does not fit the text")
    if citations and any(not citation.uri and not visible(citation.excerpt) for citation in citations):
        return Rejected(memory_id, "citations: each names a source, carries an excerpt, or both")
    if fact_type == CLAIM and not citations:
        return Rejected(memory_id, "citations: a claim names a source or carries an excerpt of it")
    # Neither is sealed, so they are kept for ever and cannot be rewritten: refused where a text would be redacted, too.
    for field, word in (("id", memory_id), ("fact_type", fact_type)):
        if word and barrier.spans(word):
            return Rejected(memory_id, f"{field}: looks like a secret")
    occurred = None
    if record.HasField("occurred_at"):
        try:
            occurred = record.occurred_at.ToDatetime(tzinfo=UTC)
        except (ValueError, OverflowError):
            return Rejected(memory_id, "occurred_at: must be a time between the years 1 and 9999")
    content, gate, retain = sync_pb2.MemoryContent(), _Gate(barrier, personal), ""
    if record.metadata:
        gate.field = "metadata"
        problem = _pass_metadata(record, content, gate)
        if problem:
            return Rejected(memory_id, f"metadata: {problem}")
        retain = record.metadata["_retain_id"].string_value if "_retain_id" in record.metadata else ""
    gate.field = "citations"
    for citation in citations or ():
        content.citations.add(uri=gate(citation.uri), excerpt=gate(citation.excerpt))
    gate.field = "tags"
    if tags := record.tags:
        content.tags.extend(gate(tag) for tag in tags)
    gate.field = "text"
    content.text = passed = gate(text)
    reason = gate.refusal()
    if not reason and (gate.secrets or gate.persons):
        reason = _outgrown(content)
    if reason:
        return Rejected(memory_id, reason)
    return Draft(
        memory_id, passed, content.SerializeToString(deterministic=True), fact_type, occurred, retain, text
    )


def stored_so(sent: str, stored: str, barrier: Barrier, personal: PersonalData) -> bool:
    """Whether a text, as sent, was stored so, whatever the bank's policy was then; both barriers redact. Blocks.

    Only who knows all of a text that was not taken out of it is told: secrets are never left out of the comparison but
    where they were left out of the store.
    """
    kinds = redacted_kinds(stored)
    if sent == stored or not kinds:
        return sent == stored
    forms = {sent, barrier.check(sent).text}
    if not kinds <= {shape.kind for shape in shapes()}:
        forms |= {personal.check(form).text for form in forms}
    return stored in forms


def _pass_metadata(record: sync_pb2.Record, content: sync_pb2.MemoryContent, gate: _Gate) -> str:
    """Puts what is kept of a record's metadata into the content; gives what is wrong with it, if anything is."""
    kept = []
    for key in sorted(record.metadata):
        value = record.metadata[key]
        problem = _scalar_problem(value)
        if problem:
            return problem
        if (
            key in KEPT_SYSTEM_KEYS or not key.startswith("_")
        ) and key.strip().lower() not in NEVER_FORWARDED:
            kept.append((key, value))
    # The barrier reads every character, so nothing too large gets there.
    if sync_pb2.MemoryContent(metadata=dict(kept)).ByteSize() > METADATA_BYTES:
        return _METADATA_TOO_LARGE
    for key, value in kept:
        passed = gate(key)
        if passed in content.metadata:
            return "two keys are one with their secrets redacted"
        content.metadata[passed].CopyFrom(value)
        kind = value.WhichOneof("kind")
        if kind == "string_value":
            content.metadata[passed].string_value = gate.value(key, value.string_value)
        elif kind == "number_value":
            decimal = _decimal(value.number_value)
            told = gate.value(key, decimal)
            if told != decimal:
                content.metadata[passed].string_value = told
    return _METADATA_TOO_LARGE if content.ByteSize() > METADATA_BYTES else ""


def _decimal(number: float) -> str:
    """A number as people write it: a card's has no point and no exponent."""
    return str(int(number)) if number.is_integer() else repr(number)


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
