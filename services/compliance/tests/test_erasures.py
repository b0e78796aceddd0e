"""Rules of an erasure, without a database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from services.compliance.erasures import (
    DONE,
    LONGEST_WAIT,
    PASS_SECONDS,
    STAGES,
    Erasure,
    Mirror,
    chunks,
    facts_of,
    wait_after,
)

AT = datetime(2026, 3, 1, tzinfo=UTC)
PURGED = Erasure(
    erasure_id="0f" * 16,
    bank="space:x",
    state="index_purged",
    memory_ids=("memory-1",),
    requested_at=AT,
    hidden_at=AT,
    keys_destroyed_at=AT + timedelta(seconds=1),
    index_purged_at=AT + timedelta(seconds=2),
    server_done_at=None,
    through_seq=7,
    mirrors=(Mirror("laptop-c", 8), Mirror("laptop-b", 7), Mirror("laptop-a", 6)),
    receipt=None,
    read_at=AT + timedelta(seconds=3),
)


def test_the_stages_lead_from_hidden_to_done_keys_first() -> None:
    state, walk = "hidden", []
    while state != DONE:
        walk.append((STAGES[state].participant, STAGES[state].to_state))
        state = STAGES[state].to_state
    assert walk == [("sync", "keys_destroyed"), ("index", "index_purged"), ("", "server_done")]
    assert len(walk) == len(STAGES)


def test_a_device_has_confirmed_from_the_last_tombstone_on() -> None:
    assert PURGED.confirmed == ("laptop-b", "laptop-c")
    assert PURGED.unconfirmed == ("laptop-a",)


def test_a_retired_device_is_named_as_such_unless_it_had_confirmed() -> None:
    mirrors = (Mirror("laptop-c", 8, AT), Mirror("laptop-b", 7), Mirror("laptop-a", 6, AT))
    left = replace(PURGED, mirrors=mirrors)
    assert (left.confirmed, left.unconfirmed) == (("laptop-b", "laptop-c"), ())
    assert left.retired == (("laptop-a", AT),) == facts_of(left).retired


def test_facts_are_those_of_the_snapshot() -> None:
    facts = facts_of(PURGED)
    assert facts.server_done_at == PURGED.read_at
    assert (facts.confirmed, facts.unconfirmed) == (("laptop-b", "laptop-c"), ("laptop-a",))


@pytest.mark.parametrize(
    "change",
    [
        {"state": "hidden"},
        {"state": "keys_destroyed"},
        {"state": "server_done"},
        {"keys_destroyed_at": None},
        {"index_purged_at": None},
    ],
)
def test_nothing_is_stated_that_did_not_happen(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="whose participants are done"):
        facts_of(replace(PURGED, **change))


@pytest.mark.parametrize(
    ("count", "sizes"), [(0, []), (1, [1]), (100, [100]), (101, [100, 1]), (250, [100, 100, 50])]
)
def test_chunks_hold_at_most_100_and_lose_nothing(count: int, sizes: list[int]) -> None:
    ids = [f"memory-{n}" for n in range(count)]
    parts = list(chunks(ids))
    assert [len(part) for part in parts] == sizes
    assert [item for part in parts for item in part] == ids


def test_the_wait_doubles_up_to_five_seconds() -> None:
    assert [wait_after(n) for n in range(1, 8)] == [
        PASS_SECONDS,
        0.4,
        0.8,
        1.6,
        3.2,
        LONGEST_WAIT,
        LONGEST_WAIT,
    ]
    assert wait_after(10_000) == LONGEST_WAIT
