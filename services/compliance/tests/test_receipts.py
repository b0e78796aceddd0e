"""Receipts: the same facts give the same bytes, and no byte of a receipt can change unseen."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from kit.sealing import KeyMissing, KeyStore
from services.compliance.receipts import (
    Facts,
    Receipt,
    Terms,
    open_signing_key,
    sign,
    signing_key,
    statement,
    verify,
)

AT = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
FACTS = Facts(
    erasure_id="0f" * 16,
    bank="project:zoë-1",
    memory_ids=("memory-b", "memory-a"),
    requested_at=AT,
    hidden_at=AT + timedelta(microseconds=1),
    keys_destroyed_at=AT + timedelta(seconds=1),
    index_purged_at=(AT + timedelta(seconds=2)).astimezone(timezone(timedelta(hours=5))),
    server_done_at=AT + timedelta(seconds=3),
    through_seq=17,
    confirmed=("laptop-2", "laptop-1"),
    unconfirmed=("laptop-3",),
    keys_not_found=("memory-a",),
    retired=(("laptop-4", AT),),
)
TERMS = Terms(35, ("A sentence – with a dash.",))
GOLDEN = (
    '{"bank":"project:zoë-1","devices":{"confirmed":["laptop-1","laptop-2"],"retired":'
    '[{"device_id":"laptop-4","retired_at":"2026-03-01T12:00:00.000000Z"}],"unconfirmed":["laptop-3"]},'
    '"erasure_id":"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f","hidden_at":"2026-03-01T12:00:00.000001Z",'
    '"index_purged_at":"2026-03-01T12:00:02.000000Z","key_backups_expire_at":"2026-04-05T12:00:01.000000Z",'
    '"keys_destroyed_at":"2026-03-01T12:00:01.000000Z","keys_not_found":["memory-a"],"memory_count":2,"memory_ids":["memory-a","memory-b"],'
    '"out_of_scope":["A sentence – with a dash."],"requested_at":"2026-03-01T12:00:00.000000Z",'
    '"server_done_at":"2026-03-01T12:00:03.000000Z","through_seq":17}'
).encode()
KEY = signing_key(bytes(range(32)))
TRUSTED = KEY.public_key().public_bytes_raw()


def test_the_statement_is_canonical() -> None:
    assert statement(FACTS, TERMS) == GOLDEN
    assert statement(replace(FACTS, memory_ids=("memory-a", "memory-b")), TERMS) == GOLDEN
    decoded = json.loads(GOLDEN)
    assert json.dumps(decoded, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() == GOLDEN


def test_every_fact_is_in_the_statement() -> None:
    others: dict[str, Any] = {
        "erasure_id": "ab" * 16, "bank": "space:x", "memory_ids": ("memory-a",), "requested_at": AT - timedelta(1),
        "hidden_at": AT - timedelta(1), "keys_destroyed_at": AT - timedelta(1), "index_purged_at": AT - timedelta(1),
        "server_done_at": AT - timedelta(1), "through_seq": 18, "confirmed": (), "unconfirmed": (),
        "keys_not_found": (), "retired": (("laptop-4", AT + timedelta(1)),),
    }  # fmt: skip
    for name, value in others.items():
        assert statement(replace(FACTS, **{name: value}), TERMS) != GOLDEN, name
    assert statement(FACTS, replace(TERMS, key_backup_days=36)) != GOLDEN
    assert b'"key_backups_expire_at":"2026-03-01T12:00:01.000000Z"' in statement(
        FACTS, replace(TERMS, key_backup_days=0)
    )


def test_a_signature_verifies_and_is_the_same_each_time() -> None:
    receipt = sign(KEY, GOLDEN)
    assert len(receipt.signature) == 64 and receipt.public_key == TRUSTED
    assert verify(receipt, TRUSTED)
    assert sign(signing_key(bytes(range(32))), GOLDEN) == receipt


@pytest.mark.parametrize("part", ["statement", "signature", "public_key"])
def test_any_changed_byte_fails(part: str) -> None:
    receipt = sign(KEY, GOLDEN)
    good: bytes = getattr(receipt, part)
    for position in range(len(good)):
        bad = good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :]
        assert not verify(replace(receipt, **{part: bad}), TRUSTED), position
    for bad in (good[:-1], good + b"\0", b""):
        assert not verify(replace(receipt, **{part: bad}), TRUSTED)


def test_a_receipt_of_another_key_fails_though_it_carries_that_key() -> None:
    other = sign(signing_key(bytes(32)), GOLDEN)
    assert verify(other, other.public_key)
    assert not verify(other, TRUSTED)
    assert not verify(Receipt(GOLDEN, other.signature, TRUSTED), TRUSTED)
    assert not verify(Receipt(GOLDEN, other.signature, b"short"), b"short")


def test_receipts_are_never_signed_with_a_second_key(tmp_path: Path) -> None:
    first, other = (KeyStore(tmp_path / name, make=True) for name in ("a.db", "b.db"))
    public = open_signing_key(first, None).public_key().public_bytes_raw()
    assert open_signing_key(first, public).public_key().public_bytes_raw() == public
    for _ in range(2):
        with pytest.raises(KeyMissing):
            open_signing_key(other, public)
    with pytest.raises(KeyMissing):
        other.secret("compliance.receipts", make=False)
    open_signing_key(other, None)
    with pytest.raises(KeyMissing):
        open_signing_key(other, public)
