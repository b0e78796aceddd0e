"""Rules of a receipt: the statement it makes, its canonical bytes, and the signature over them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from kit.sealing import KeyMissing, KeyStore

OUT_OF_SCOPE = (
    "A copy that a person or a program made of a text before its erasure is not covered.",
    "An agent's own transcripts and logs on a device are not covered.",
    "A device is covered only once it has confirmed; those that had not are listed as unconfirmed.",
    "A device that was retired before it confirmed is listed as retired; what it still holds is not known.",
    "A backup of the key store can open an older backup of the database until the day in key_backups_expire_at.",
)
NO_INDEX = "This deployment names no index to the erasure, so no vectors were purged."


@dataclass(frozen=True)
class Facts:
    """What is known of an erasure when the servers are done. Times are aware; devices stand as they are then."""

    erasure_id: str
    bank: str
    memory_ids: tuple[str, ...]
    requested_at: datetime
    hidden_at: datetime
    keys_destroyed_at: datetime
    index_purged_at: datetime
    server_done_at: datetime
    through_seq: int
    confirmed: tuple[str, ...]
    unconfirmed: tuple[str, ...]
    keys_not_found: tuple[str, ...] = ()
    """Ids whose keys were in no key store and were given up by an operator; no destruction of them is claimed."""
    retired: tuple[tuple[str, datetime], ...] = ()
    """Devices that were retired before they confirmed, each with when."""


@dataclass(frozen=True)
class Terms:
    """What every receipt of this deployment says: how many days a backup of keys lives, and what is not covered."""

    key_backup_days: int
    out_of_scope: Sequence[str] = OUT_OF_SCOPE


@dataclass(frozen=True)
class Receipt:
    """A statement (canonical JSON), its Ed25519 signature (64 bytes) and the raw public key (32 bytes)."""

    statement: bytes
    signature: bytes
    public_key: bytes


def statement(facts: Facts, terms: Terms) -> bytes:
    """The bytes that are signed: sorted keys, no white space, UTF-8; the same facts always give the same bytes.

    They name the bank, ids, times and devices: no text, and nobody who asked.
    """
    words = {
        "erasure_id": facts.erasure_id,
        "bank": facts.bank,
        "keys_not_found": sorted(facts.keys_not_found),
        "memory_count": len(facts.memory_ids),
        "memory_ids": sorted(facts.memory_ids),
        "requested_at": _time(facts.requested_at),
        "hidden_at": _time(facts.hidden_at),
        "keys_destroyed_at": _time(facts.keys_destroyed_at),
        "index_purged_at": _time(facts.index_purged_at),
        "server_done_at": _time(facts.server_done_at),
        "through_seq": facts.through_seq,
        "devices": {
            "confirmed": sorted(facts.confirmed),
            "retired": [{"device_id": each, "retired_at": _time(at)} for each, at in sorted(facts.retired)],
            "unconfirmed": sorted(facts.unconfirmed),
        },
        "key_backups_expire_at": _time(facts.keys_destroyed_at + timedelta(days=terms.key_backup_days)),
        "out_of_scope": list(terms.out_of_scope),
    }
    return json.dumps(words, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def signing_key(secret: bytes) -> Ed25519PrivateKey:
    """The key that signs, from a secret of the deployment (32 bytes)."""
    return Ed25519PrivateKey.from_private_bytes(secret)


def open_signing_key(keys: KeyStore, signed_by: bytes | None) -> Ed25519PrivateKey:
    """The key that signs: never another than that of the receipts there are, whose raw public key is `signed_by`.

    Raises KeyMissing where the key store has no such key.
    """
    key = signing_key(keys.secret("compliance.receipts", make=signed_by is None))
    if signed_by not in (None, key.public_key().public_bytes_raw()):
        raise KeyMissing("secret compliance.receipts")
    return key


def sign(key: Ed25519PrivateKey, words: bytes) -> Receipt:
    """A receipt over a statement."""
    return Receipt(words, key.sign(words), key.public_key().public_bytes_raw())


def verify(receipt: Receipt, trusted: bytes) -> bool:
    """Whether a receipt is whole and signed by `trusted`, a raw public key the reader has from elsewhere.

    The key that a receipt carries says which key to ask for; by itself it proves nothing.
    """
    if receipt.public_key != trusted:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(trusted).verify(receipt.signature, receipt.statement)
    except (InvalidSignature, ValueError):
        return False
    return True


def _time(value: datetime) -> str:
    """RFC 3339 in UTC, always with microseconds."""
    return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
