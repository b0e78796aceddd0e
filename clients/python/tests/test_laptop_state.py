"""Sync state: every method a transaction, a digest that always equals a recount, one sync a bank."""

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laptop import BANK, child, said
from teamlore_client import _state_schema
from teamlore_client._lock import try_lock
from teamlore_client._sqlite import apply_schema, connect
from teamlore_client._state import BankStatus, Digest, Page, Pushed, SyncState

OTHER = "project:other-00000000"


@pytest.fixture
def state(tmp_path: Path) -> SyncState:
    return SyncState(tmp_path / "sync.db")


def recount(state: SyncState, bank: str = BANK) -> Digest:
    received = state.received(bank)
    total = 0
    for id_, seq in received.items():
        hashed = hashlib.sha256(id_.encode() + b"\0" + str(seq).encode()).digest()
        total += int.from_bytes(hashed[:8], "big")
    return Digest(len(received), total % 2**64)


def test_the_digest_of_known_values(state: SyncState) -> None:
    assert state.digest(BANK) == Digest(0, 0)
    state.apply_page(BANK, Page("c", {"aaaaaaaa": 1}))
    assert state.digest(BANK) == Digest(
        1, 4235123189308321525
    )  # from an independent hash of b"aaaaaaaa\0" b"1"
    state.apply_page(BANK, Page("c", {}, gone={"aaaaaaaa": 2}))
    assert state.digest(BANK) == Digest(0, 0)


IDS = st.sampled_from([f"id{n:06d}" for n in range(8)])
STEPS = st.lists(
    st.tuples(st.sampled_from(["page", "gone", "replay", "reconcile"]), st.lists(IDS, max_size=4)),
    max_size=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(STEPS)
def test_the_digest_equals_a_recount_after_any_history(
    state: SyncState, steps: list[tuple[str, list[str]]]
) -> None:
    state.leave(BANK)
    seq, live, last = 0, dict[str, int](), Page("c", {})
    for kind, ids in steps:
        numbered = {}
        for id_ in ids:
            seq += 1
            numbered[id_] = seq
        if kind == "page":
            last = Page(f"c{seq}", numbered, frozenset(ids[:1]))
            live |= numbered
        elif kind == "gone":
            last = Page(f"c{seq}", {}, gone=numbered)
            live = {id_: n for id_, n in live.items() if id_ not in numbered}
        if kind in ("page", "gone", "replay"):
            state.apply_page(BANK, last)
        else:
            gone = state.missing(BANK, numbered)
            assert gone == frozenset(live) - frozenset(numbered)
            assert state.reconcile(BANK, numbered, "new") == gone
            live, last = dict(numbered), Page("new", {})
        assert state.received(BANK) == live
        assert state.digest(BANK) == recount(state)


def test_a_tombstone_forgets_and_owes_an_acknowledgement(state: SyncState) -> None:
    state.record_push(BANK, {"mine0000": Pushed("stored"), "dup00000": Pushed("duplicate", "theirs00")})
    state.apply_page(BANK, Page("c1", {"theirs00": 1, "mine0000": 2}, frozenset({"theirs00"})))
    assert state.pulled(BANK) == {"theirs00"}
    state.apply_page(BANK, Page("c2", {}, gone={"theirs00": 3, "mine0000": 4}))
    assert state.pulled(BANK) == frozenset()
    assert state.ledger(BANK)["mine0000"] == Pushed("forgotten")
    assert str(state.ledger(BANK)["dup00000"]) == "duplicate:theirs00"
    state.record_push(BANK, {"mine0000": Pushed("stored")})  # an answer that was on its way
    assert state.ledger(BANK)["mine0000"] == Pushed("forgotten")
    assert state.owed_acks(BANK) == {"theirs00": 3, "mine0000": 4}
    state.acknowledged(BANK, ["theirs00"])
    assert state.owed_acks(BANK) == {"mine0000": 4}
    assert state.status(BANK).cursor == "c2"


def test_an_older_page_applied_again_lowers_no_seq(state: SyncState) -> None:
    state.apply_page(BANK, Page("c5", {"x" * 8: 5}))
    state.apply_page(BANK, Page("c3", {"x" * 8: 3}))
    assert state.received(BANK) == {"x" * 8: 5}
    assert state.digest(BANK) == recount(state)


def test_choices_are_kept_until_taken_back(state: SyncState) -> None:
    state.promote(BANK, ["a" * 8, "b" * 8])
    state.withhold(BANK, ["b" * 8])
    state.suppress(BANK, ["c" * 8])
    assert state.promoted(BANK) == {"a" * 8}
    assert state.withheld(BANK) == {"b" * 8}
    assert state.suppressed(BANK) == {"c" * 8}
    assert state.promoted(OTHER) == state.suppressed(OTHER) == frozenset()
    state.forget(BANK, ["d" * 8])
    assert state.ledger(BANK) == {"d" * 8: Pushed("forgotten")}


def test_errors_stay_until_a_success(state: SyncState) -> None:
    assert state.status(BANK) == BankStatus(None, None, None)
    at = datetime(2026, 10, 5, tzinfo=UTC)
    state.succeeded(BANK, at)
    state.failed(BANK, "unreachable")
    assert state.status(BANK) == BankStatus(None, at, "unreachable")
    state.succeeded(BANK, at)
    assert state.status(BANK).last_error is None


def test_leaving_drops_one_bank_and_keeps_what_the_user_chose_and_the_device(state: SyncState, tmp_path: Path) -> None:
    device = state.device_id()
    for bank in (BANK, OTHER):
        state.apply_page(bank, Page("c", {"x" * 8: 1}, frozenset({"x" * 8})))
        state.promote(bank, ["y" * 8])
        state.suppress(bank, ["z" * 8])
        state.withhold(bank, ["w" * 8])
    state.leave(BANK)
    assert state.digest(BANK) == Digest(0, 0)
    assert state.pulled(BANK) == frozenset()
    assert (state.promoted(BANK), state.withheld(BANK)) == ({"y" * 8}, {"w" * 8})
    assert state.suppressed(BANK) == {"z" * 8}, "forgotten on this machine is for good"
    assert state.received(BANK) == {}
    assert state.pulled(OTHER)
    with SyncState(tmp_path / "sync.db") as again:
        assert again.device_id() == device
    assert (tmp_path / "sync.db").stat().st_mode & 0o777 == 0o600


def test_a_file_of_the_first_release_is_taken_over_and_knows_what_it_does_not_know(tmp_path: Path) -> None:
    connection = connect(tmp_path / "sync.db")
    apply_schema(connection, tmp_path / "sync.db", 1, {1: _state_schema.SCHEMA})
    connection.execute("INSERT INTO banks (bank, cursor) VALUES (?, '7 c')", (BANK,))
    connection.execute("INSERT INTO ledger (bank, id, answer) VALUES (?, 'stored00', 'stored')", (BANK,))
    connection.execute("INSERT INTO ledger (bank, id, answer) VALUES (?, 'refused0', 'rejected')", (BANK,))
    connection.close()
    with SyncState(tmp_path / "sync.db") as state:
        assert state.status(BANK).cursor == "7 c"
        assert state.ledger(BANK)["stored00"] == Pushed("stored")
        assert state.perhaps_there(BANK, "unheard0")  # it may have been sent by the first release
        assert not state.perhaps_there(BANK, "refused0")
        state.settled(BANK)
        assert not state.perhaps_there(BANK, "unheard0")


def test_why_something_was_left_out_is_known_until_it_is_here_or_gone(state: SyncState, tmp_path: Path) -> None:
    reasons = {"a" * 8: "own-0001", "b" * 8: "own-0001", "c" * 8: "own-0002", "d" * 8: "own-0002"}
    state.apply_page(BANK, Page("1 c", dict.fromkeys(reasons, 1), skipped=reasons))
    assert state.skipped(BANK) == reasons
    assert (state.skipped(BANK, ["c" * 8]), state.skipped(OTHER)) == ({"c" * 8: "own-0002"}, {})
    state.apply_page(
        BANK, Page("2 c", {}, frozenset(["a" * 8]), {"b" * 8: 2}, {"c" * 8: "own-0003", "a" * 8: "own-0003"})
    )
    assert state.skipped(BANK) == {"a" * 8: "own-0003", "c" * 8: "own-0003", "d" * 8: "own-0002"}
    state.apply_page(BANK, Page("2 c", {}, frozenset(["a" * 8])))
    state.suppress(BANK, ["c" * 8])
    with SyncState(tmp_path / "sync.db") as again:
        assert again.skipped(BANK) == {"d" * 8: "own-0002"}
    state.leave(BANK)
    assert state.skipped(BANK) == {}


def test_what_was_sent_is_unsure_until_it_is_answered(state: SyncState) -> None:
    state.settled(BANK)
    assert state.sending(BANK, ["a" * 8, "b" * 8]) == {"a" * 8, "b" * 8}
    assert state.sending(BANK, ["b" * 8, "c" * 8]) == {"c" * 8}
    state.not_sent(BANK, ["c" * 8])
    state.record_push(BANK, {"a" * 8: Pushed("rejected", "no")})
    unsure = [id_ for id_ in ("a" * 8, "b" * 8, "c" * 8) if state.perhaps_there(BANK, id_)]
    assert unsure == ["b" * 8]
    state.forget(BANK, ["b" * 8])
    assert not state.perhaps_there(BANK, "b" * 8)
    assert state.perhaps_there(OTHER, "b" * 8)


def test_a_failed_page_leaves_nothing(state: SyncState) -> None:
    with pytest.raises(apsw.ConstraintError):
        state.apply_page(BANK, Page("c", {"good0000": 1, "bad00000": "x"}))  # type: ignore[dict-item]
    assert state.received(BANK) == {}
    assert state.status(BANK).cursor is None


def test_one_sync_of_a_bank_across_processes(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from teamlore_client._lock import try_lock\n"
        "lock = try_lock(Path(sys.argv[1]), sys.argv[2]); print(lock is not None, flush=True)\n"
        "sys.stdin.readline()"
    )
    with child(code, str(tmp_path), BANK) as other:
        assert said(other) == "True"
        assert try_lock(tmp_path, BANK) is None
        with try_lock(tmp_path, OTHER) or pytest.fail("another bank is free"):
            pass
        other.kill()
        other.wait()
        lock = try_lock(tmp_path, BANK)
        assert lock is not None
    with child(code, str(tmp_path), BANK) as late:
        assert said(late) == "False"
    lock.release()
    lock.release()
    with child(code, str(tmp_path), BANK) as later:
        assert said(later) == "True"
