"""Proving that both sides hold the same, and what happens when they do not."""

from dataclasses import replace
from pathlib import Path

import pytest
from fake_sync import MEMBER, fail_at, here, place, preview_counts, run, save
from fake_team import FakeEmbedder, FakeTeam
from laptop import BANK, memory, traces
from teamlore_client._errors import Busy, DigestMismatch, Refused, ServerUnreachable
from teamlore_client._laptop import Laptop
from teamlore_client._sync import preview


def test_a_different_digest_is_an_error_that_from_start_heals(bob: Laptop, team: FakeTeam) -> None:
    team.write(memory("first"))
    lost = team.write(memory("second"))
    team.answered = lambda batch: replace(batch, changes=tuple(c for c in batch.changes if c.id != lost))
    with pytest.raises(DigestMismatch, match="--from-start"):
        run(bob, team)
    team.answered = lambda batch: batch
    with pytest.raises(DigestMismatch):
        run(bob, team)
    done = run(bob, team, from_start=True)
    assert done.verified
    assert set(here(bob)) == {"first", "second"}
    assert run(bob, team).verified


def test_a_digest_of_a_later_seq_is_not_compared(bob: Laptop, team: FakeTeam) -> None:
    team.write(memory("first"))

    def someone_writes(call: str) -> None:
        if call == "get_digest":
            team.write(memory("meanwhile"))

    team.before = someone_writes  # type: ignore[assignment]
    assert not run(bob, team).verified


def test_a_lost_history_is_reconciled_and_own_memories_are_sent_again(bob: Laptop, team: FakeTeam) -> None:
    team.page = 2
    kept, mine, gone = save(bob, "mine, kept"), save(bob, "mine, lost"), team.write(memory("theirs, lost"))
    stays = team.write(memory("theirs, kept"))
    run(bob, team)
    team.restore(mine.id, gone)
    new = team.write(memory("theirs, new"))
    done = run(bob, team)
    assert (done.reconciled, done.requeued) == ("CURSOR_DIVERGED", 1)
    assert set(here(bob)) == {"mine, kept", "mine, lost", "theirs, kept", "theirs, new"}
    assert mine.id in team.rows
    assert kept.id in team.rows
    assert done.verified
    assert bob.state.pulled(BANK) == {stays, new}
    team.write(memory("theirs, lost", id=gone))  # its author's laptop sends it again
    assert run(bob, team).pulled.stored == 1
    assert here(bob)["theirs, lost"] == "user:alice"


def test_below_the_horizon_what_was_erased_meanwhile_goes_and_is_not_revived(
    bob: Laptop, team: FakeTeam
) -> None:
    mine, kept = save(bob, "mine Zanzibarquartz"), save(bob, "mine, kept")
    theirs = team.write(memory("theirs Zanzibarquartz"))
    run(bob, team)
    team.bury(mine.id)
    team.bury(theirs)
    team.compact()
    done = run(bob, team)
    assert done.reconciled == "CURSOR_BEFORE_HORIZON"
    assert done.verified
    assert done.erasures_confirmed
    assert set(here(bob)) == {"mine, kept"}
    assert set(team.rows) == {kept.id}
    assert bob.state.ledger(BANK)[mine.id].answer == "forgotten"
    assert traces(Path.home(), "Zanzibarquartz") == {}


HELD = [None, Refused("BANK_HELD", "held"), ServerUnreachable("not now", "KEYSTORE_UNAVAILABLE")]


@pytest.mark.parametrize("held", HELD, ids=["taken", "refused", "not now"])
def test_what_this_laptop_had_erased_for_the_team_does_not_come_back_with_an_older_history(
    bob: Laptop, team: FakeTeam, held: Refused | ServerUnreachable | None
) -> None:
    mine, other = save(bob, "mine Zanzibarquartz"), save(bob, "mine, hidden by a program")
    run(bob, team)
    before = dict(team.rows)
    team.forget(BANK, [mine.id, other.id])
    bob.state.forget(BANK, [mine.id], asked_here=True)
    bob.store.erase([mine.id])
    run(bob, team)  # its tombstone changes nothing of whose wish it was
    assert bob.state.erased_by_user(BANK) == {mine.id}
    lost = team.write(memory("theirs, lost"))
    run(bob, team)
    team.restore(lost)
    team.rows, team.graves = before, {}
    if held:
        team.before = fail_at("forget", held)
    done = run(bob, team)
    assert (done.reconciled, done.erased_again) == ("CURSOR_DIVERGED", 0 if held else 1)
    assert (done.erasing_refused, done.pulled.dropped, done.pulled.erased) == (held.reason if held else "", 1, 0)
    assert (mine.id in team.rows) is (held is not None)
    assert traces(Path.home(), "Zanzibarquartz") == {}
    assert here(bob) == {"mine, hidden by a program": "user:bob"}, "nobody here knows whose wish that was"
    assert done.verified
    if held:
        team.before = lambda call: None
        assert run(bob, team, from_start=True).erased_again == 1
        assert mine.id not in team.rows


@pytest.mark.parametrize("how", ["trimmed", "buried", "another server", "from start"])
def test_a_kept_mirror_ends_when_the_laptop_joins_again(bob: Laptop, team: FakeTeam, how: str) -> None:
    mine, stays = save(bob, "mine"), memory("theirs, kept")
    theirs = team.write(memory("theirs Zanzibarquartz"))
    team.write(stays)
    run(bob, team)
    bob.state.leave(BANK)  # with --keep-mirror
    if how == "another server":
        team = FakeTeam()
        team.write(stays)
    else:
        team.bury(theirs)
    if how in ("trimmed", "from start"):
        team.compact()
    assert preview(bob, team, MEMBER).reconcile == "teammates' memories were kept"
    done = run(bob, team, from_start=how == "from start")
    assert done.verified
    assert here(bob) == {mine.text: None, stays.text: "user:alice"}
    assert traces(Path.home(), "Zanzibarquartz") == {}
    assert bob.state.pulled(BANK) == {stays.id}
    assert done.erasures_confirmed
    assert run(bob, team).reconciled == ""


def test_a_reconcile_that_dies_begins_again(bob: Laptop, team: FakeTeam) -> None:
    team.page = 1
    lost = team.write(memory("lost"))
    team.write(memory("kept"))
    run(bob, team)
    before = place(bob)
    team.restore(lost)
    team.write(memory("new"))
    team.before = fail_at("list_live", ServerUnreachable("cut"), after=1)
    with pytest.raises(ServerUnreachable):
        run(bob, team)
    assert place(bob) == before
    assert "lost" in here(bob)
    done = run(bob, team)
    assert done.verified
    assert set(here(bob)) == {"kept", "new"}


def test_only_a_lost_place_is_reconciled(bob: Laptop, team: FakeTeam) -> None:
    team.before = fail_at("list_changes", Refused("CREDENTIAL_REVOKED", "revoked"))
    with pytest.raises(Refused):
        run(bob, team)
    assert "list_live" not in team.calls


def test_a_dry_run_moves_nothing(bob: Laptop, team: FakeTeam) -> None:
    save(bob, "mine")
    gone = team.write(memory("gone"))
    run(bob, team)
    save(bob, "mine too")
    team.write(memory("theirs"))
    team.bury(gone)
    before = place(bob), bob.state.ledger(BANK), bob.state.digest(BANK), here(bob)
    assert preview_counts(bob, team) == (1, 1, 1)
    assert (place(bob), bob.state.ledger(BANK), bob.state.digest(BANK), here(bob)) == before
    team.restore()
    assert preview(bob, team, MEMBER).reconcile == "CURSOR_DIVERGED"


def test_one_sync_of_a_bank_at_a_time(bob: Laptop, team: FakeTeam) -> None:
    lock = bob.try_lock(BANK)
    assert lock is not None
    with lock, pytest.raises(Busy):
        run(bob, team)
    assert team.calls == []
    assert bob.state.status(BANK).last_error is None
    run(bob, team)


def test_two_laptops_and_the_server_agree(
    home: Path, team: FakeTeam, monkeypatch: pytest.MonkeyPatch, embedder: FakeEmbedder
) -> None:
    other = home.parent / "other"
    other.mkdir()
    with Laptop(embedder) as bob:
        save(bob, "bob's")
        run(bob, team)
        monkeypatch.setenv("HOME", str(other))
        with Laptop(embedder) as alice:
            save(alice, "alice's")
            for laptop in (alice, bob, alice):
                assert run(laptop, team).verified
            assert bob.state.digest(BANK) == alice.state.digest(BANK)
            assert bob.state.digest(BANK).count == 2
