"""One sync of a bank against a server in memory: what moves, what stays, and what is never skipped silently."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_team import FakeEmbedder, FakeTeam
from laptop import BANK, memory, traces

from teamlore_client._errors import (
    AnswerWrong,
    Busy,
    DigestMismatch,
    FeedGap,
    Refused,
    ServerUnreachable,
    TeamloreError,
)
from teamlore_client._laptop import Laptop
from teamlore_client._membership import Membership
from teamlore_client._memory import Memory
from teamlore_client._pull import Place
from teamlore_client._state import Pushed, SyncState
from teamlore_client._sync import Synced, preview, sync
from teamlore_client._wire import Answer

MEMBER = Membership(BANK, "https://memory.example.com", "d" * 32)


@pytest.fixture
def embedder() -> FakeEmbedder:
    return FakeEmbedder()


@pytest.fixture
def bob(home: Path, embedder: FakeEmbedder) -> Iterator[Laptop]:
    with Laptop(embedder) as opened:
        yield opened


@pytest.fixture
def team() -> FakeTeam:
    return FakeTeam()


def save(laptop: Laptop, text: str, number: int = 0, **fields: object) -> Memory:
    made = memory(text, number, **fields)
    laptop.vectors.add(made, laptop.embed([text])[0])
    return made


def run(laptop: Laptop, team: FakeTeam, member: Membership = MEMBER, *, from_start: bool = False) -> Synced:
    return sync(laptop, team, member, from_start=from_start)


def here(laptop: Laptop) -> dict[str, str | None]:
    return {each.text: each.author for each in laptop.store.list(BANK, 1000)}


def place(laptop: Laptop) -> Place:
    return Place.read(laptop.state.status(BANK).cursor)


def fail_at(call: str, error: TeamloreError, after: int = 0) -> "Failing":
    return Failing(call, error, after)


class Failing:
    """Lets some calls of a kind through and fails the next."""

    def __init__(self, call: str, error: TeamloreError, after: int) -> None:
        self.call, self.error, self.left = call, error, after

    def __call__(self, call: str) -> TeamloreError | None:
        if call != self.call:
            return None
        self.left -= 1
        return self.error if self.left == -1 else None


def test_pushes_oldest_first_in_batches_of_100_and_sends_nothing_twice(bob: Laptop, team: FakeTeam) -> None:
    made = [save(bob, f"decision {number}", number) for number in reversed(range(230))]
    assert run(bob, team).pushed["stored"] == 230
    assert [len(batch) for batch in team.pushes] == [100, 100, 30]
    assert [id_ for batch in team.pushes for id_ in batch] == [each.id for each in reversed(made)]
    done = run(bob, team)
    assert sum(done.pushed.values()) == 0 and len(team.pushes) == 3 and done.verified


def test_large_texts_make_smaller_batches_and_an_unsendable_one_blocks_nothing(bob: Laptop, team: FakeTeam) -> None:
    huge = save(bob, "x" * 3_100_000)
    for number in range(1, 5):
        save(bob, f"{number}" + "y" * 1_000_000, number)
    run(bob, team)
    assert [len(batch) for batch in team.pushes] == [2, 2]
    assert bob.state.ledger(BANK)[huge.id].answer == "rejected"


def test_shares_by_the_rule(bob: Laptop, team: FakeTeam) -> None:
    plain = save(bob, "plain")
    captured, promoted = save(bob, "captured", tags=("captured",)), save(bob, "promoted", tags=("captured",))
    private, chosen = save(bob, "private", tags=("private",)), save(bob, "chosen", tags=("private", "captured"))
    both = save(bob, "both", tags=("private", "captured"))
    withheld = save(bob, "withheld")
    save(bob, "observed", derivation="observation")
    save(bob, "modelled", derivation="model")
    save(bob, "theirs", author="user:alice")
    bob.state.promote(BANK, [promoted.id, chosen.id])
    bob.state.withhold(BANK, [withheld.id])
    run(bob, team)
    assert set(team.rows) == {plain.id, promoted.id, chosen.id}
    run(bob, team, replace(MEMBER, share_captured=True))
    assert set(team.rows) == {plain.id, promoted.id, chosen.id, captured.id}
    assert private.id not in team.rows and both.id not in team.rows


def test_every_answer_is_recorded_and_a_bad_record_blocks_nothing(bob: Laptop, team: FakeTeam) -> None:
    made = [save(bob, f"m{number}", number) for number in range(4)]
    team.judged = {
        made[0].id: Answer(made[0].id, "rejected", "text: too long"),
        made[1].id: Answer(made[1].id, "duplicate", "", "original-1"),
    }
    done = run(bob, team)
    assert done.pushed == {"stored": 2, "unchanged": 0, "duplicate": 1, "rejected": 1}
    assert bob.state.ledger(BANK) == {
        made[0].id: Pushed("rejected", "text: too long"),
        made[1].id: Pushed("duplicate", "original-1"),
        made[2].id: Pushed("stored"),
        made[3].id: Pushed("stored"),
    }
    assert sum(run(bob, team).pushed.values()) == 0


def test_a_failed_batch_keeps_what_was_acknowledged_and_the_rest_queued(bob: Laptop, team: FakeTeam) -> None:
    for number in range(250):
        save(bob, f"decision {number}", number)
    team.before = fail_at("push", Refused("RATE_LIMITED", "too many calls"), after=1)
    with pytest.raises(Refused, match="too many calls"):
        run(bob, team)
    assert len(bob.state.ledger(BANK)) == 100 and "list_changes" not in team.calls
    assert bob.state.status(BANK).last_error == "Refused: too many calls"
    done = run(bob, team)
    assert done.pushed["stored"] == 150 and done.pushed["unchanged"] == 0
    assert bob.state.status(BANK).last_error is None and bob.state.status(BANK).last_sync is not None


def test_who_may_only_read_still_pulls(bob: Laptop, team: FakeTeam) -> None:
    save(bob, "mine")
    team.write(memory("theirs"))
    team.before = fail_at("push", Refused("PERMISSION_DENIED", "no", permission="write"))
    with pytest.raises(Refused):
        run(bob, team)
    assert here(bob) == {"mine": None, "theirs": "user:alice"}
    assert bob.state.ledger(BANK) == {}


def test_an_unreachable_server_leaves_everything_queued(bob: Laptop, team: FakeTeam) -> None:
    save(bob, "mine")
    team.before = lambda call: ServerUnreachable("connection refused")
    with pytest.raises(ServerUnreachable):
        run(bob, team)
    assert bob.state.status(BANK).last_error == "ServerUnreachable: connection refused"
    assert preview_counts(bob, team) == (1, 0, 0)


def preview_counts(laptop: Laptop, team: FakeTeam) -> tuple[int, int, int]:
    team.before = lambda call: None
    seen = preview(laptop, team, MEMBER)
    return seen.push, seen.pull, seen.erase


@pytest.mark.parametrize("wrong", [(), ("m", "m"), ("other",)])
def test_answers_that_do_not_match_the_records_are_not_recorded(
    bob: Laptop, team: FakeTeam, wrong: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(bob, "mine")
    monkeypatch.setattr(team, "push", lambda bank, sent: tuple(Answer(id_, "stored") for id_ in wrong))
    with pytest.raises(AnswerWrong):
        run(bob, team)
    assert bob.state.ledger(BANK) == {}


def test_own_memories_come_back_as_received_only(bob: Laptop, team: FakeTeam, embedder: FakeEmbedder) -> None:
    save(bob, "mine")
    embedder.embedded.clear()
    run(bob, team)
    assert here(bob) == {"mine": None} and bob.state.pulled(BANK) == frozenset()
    assert bob.state.digest(BANK).count == 1 and embedder.embedded == []


def test_a_crash_between_store_and_state_does_not_make_a_teammates_memory_ones_own(
    bob: Laptop, team: FakeTeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = team.write(memory("theirs"))
    with monkeypatch.context() as patch:
        patch.setattr(SyncState, "apply_page", lambda *_: (_ for _ in ()).throw(RuntimeError("killed")))
        with pytest.raises(RuntimeError):
            run(bob, team)
    assert here(bob) == {"theirs": "user:alice"} and place(bob) == Place()
    done = run(bob, team)
    assert team.pushes == [] and bob.state.pulled(BANK) == {theirs} and done.verified


def test_pages_join_up_and_are_applied_one_by_one(bob: Laptop, team: FakeTeam) -> None:
    team.page = 2
    for number in range(5):
        team.write(memory(f"m{number}"))
    team.before = fail_at("list_changes", ServerUnreachable("cut"), after=2)
    with pytest.raises(ServerUnreachable):
        run(bob, team)
    assert place(bob).seq == 4 and len(here(bob)) == 4
    assert run(bob, team).pulled.stored == 1 and place(bob).seq == 5


@pytest.mark.parametrize("by", [-1, 1])
def test_a_gap_in_the_feed_is_loud_and_applies_nothing(bob: Laptop, team: FakeTeam, by: int) -> None:
    team.write(memory("first"))
    run(bob, team)
    team.write(memory("second"))
    team.write(memory("third"))
    before = place(bob)
    team.answered = lambda batch: replace(batch, after_seq=batch.after_seq + by)
    with pytest.raises(FeedGap):
        run(bob, team)
    assert place(bob) == before and set(here(bob)) == {"first"}
    assert "FeedGap" in (bob.state.status(BANK).last_error or "")


def test_a_page_that_goes_backwards_or_nowhere_is_refused(bob: Laptop, team: FakeTeam) -> None:
    team.write(memory("first"))
    team.write(memory("second"))
    for wrong in (
        lambda batch: replace(batch, changes=batch.changes[::-1]),
        lambda batch: replace(batch, through_seq=1),
        lambda batch: replace(batch, changes=(), through_seq=0, more=True),
        lambda batch: replace(batch, cursor=""),
    ):
        team.answered = wrong
        with pytest.raises(FeedGap):
            run(bob, team)
        assert here(bob) == {}


def test_a_tombstone_erases_pulled_and_own_but_not_withheld(bob: Laptop, team: FakeTeam) -> None:
    theirs = team.write(memory("Theirs Zanzibarquartz"))
    mine, kept = save(bob, "Mine Zanzibarquartz"), save(bob, "withheld later")
    run(bob, team)
    bob.state.withhold(BANK, [kept.id])
    for id_ in (theirs, mine.id, kept.id):
        team.bury(id_)
    done = run(bob, team)
    assert here(bob) == {"withheld later": None} and done.pulled.erased == 2
    assert {id_: p.answer for id_, p in bob.state.ledger(BANK).items()} == dict.fromkeys(
        (theirs, mine.id, kept.id), "forgotten"
    )
    assert done.erasures_confirmed and team.acked == place(bob).seq == 6 and done.verified
    assert traces(Path.home(), "Zanzibarquartz") == {}
    team.acked = None
    assert not run(bob, team).erasures_confirmed and team.acked is None


def test_erasures_are_not_confirmed_while_bytes_may_be_left(
    bob: Laptop, team: FakeTeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = team.write(memory("theirs"))
    run(bob, team)
    team.bury(theirs)
    with monkeypatch.context() as patch:
        patch.setattr("teamlore_client._erase.settle", lambda connection, wait: False)
        assert not run(bob, team).erasures_confirmed
    assert team.acked is None and bob.state.owed_acks(BANK)
    assert run(bob, team).erasures_confirmed and team.acked == 2


def test_a_near_duplicate_of_ones_own_is_skipped_but_a_contradiction_is_not(
    bob: Laptop, team: FakeTeam, embedder: FakeEmbedder
) -> None:
    save(bob, "We use Kafka for orders")
    for text in ("We use Kafka for our orders", "We do not use Kafka for orders", "We use Kafka 3 for orders"):
        embedder.near[text] = "We use Kafka for orders"
        team.write(memory(text))
    done = run(bob, team)
    assert done.pulled.near_duplicates == 1 and done.pulled.stored == 2 and done.verified
    assert "We use Kafka for our orders" not in here(bob)


def test_suppressed_and_derived_ones_are_received_but_not_stored(bob: Laptop, team: FakeTeam) -> None:
    hidden = team.write(memory("hidden"))
    team.write(memory("seen by a server", derivation="observation"))
    bob.state.suppress(BANK, [hidden])
    done = run(bob, team)
    assert here(bob) == {} and done.pulled.suppressed == 1 and done.verified
    done = run(bob, team, from_start=True)
    assert here(bob) == {} and done.verified and bob.state.digest(BANK).count == 2


def test_a_row_that_breaks_a_rule_does_not_stop_those_behind_it(bob: Laptop, team: FakeTeam) -> None:
    team.write(memory("bad", metadata={"big": 1e300}))
    team.write(memory("good"))
    done = run(bob, team)
    assert set(here(bob)) == {"good"} and done.pulled.unreadable == 1 and done.verified


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
    assert done.verified and set(here(bob)) == {"first", "second"}
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
    assert mine.id in team.rows and kept.id in team.rows and done.verified
    assert bob.state.pulled(BANK) == {stays, new}
    team.write(memory("theirs, lost", id=gone))  # its author's laptop sends it again
    assert run(bob, team).pulled.stored == 1 and here(bob)["theirs, lost"] == "user:alice"


def test_below_the_horizon_what_was_erased_meanwhile_goes_and_is_not_revived(bob: Laptop, team: FakeTeam) -> None:
    mine, kept = save(bob, "mine Zanzibarquartz"), save(bob, "mine, kept")
    theirs = team.write(memory("theirs Zanzibarquartz"))
    run(bob, team)
    team.bury(mine.id)
    team.bury(theirs)
    team.compact()
    done = run(bob, team)
    assert done.reconciled == "CURSOR_BEFORE_HORIZON" and done.verified and done.erasures_confirmed
    assert set(here(bob)) == {"mine, kept"} and set(team.rows) == {kept.id}
    assert bob.state.ledger(BANK)[mine.id].answer == "forgotten"
    assert traces(Path.home(), "Zanzibarquartz") == {}


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
    assert place(bob) == before and "lost" in here(bob)
    done = run(bob, team)
    assert done.verified and set(here(bob)) == {"kept", "new"}


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
    assert team.calls == [] and bob.state.status(BANK).last_error is None
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
