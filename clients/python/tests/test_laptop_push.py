"""Pushing: what is shared, in which order, and what a failure leaves queued."""

from dataclasses import replace

import pytest
from fake_sync import MEMBER, fail_at, here, preview_counts, run, save
from fake_team import FakeEmbedder, FakeTeam
from laptop import BANK, memory
from teamlore_client._errors import AnswerWrong, Refused, ServerUnreachable
from teamlore_client._laptop import Laptop
from teamlore_client._state import Pushed
from teamlore_client._wire import Answer


def test_pushes_oldest_first_in_batches_of_100_and_sends_nothing_twice(bob: Laptop, team: FakeTeam) -> None:
    made = [save(bob, f"decision {number}", number) for number in reversed(range(230))]
    assert run(bob, team).pushed["stored"] == 230
    assert [len(batch) for batch in team.pushes] == [100, 100, 30]
    assert [id_ for batch in team.pushes for id_ in batch] == [each.id for each in reversed(made)]
    done = run(bob, team)
    assert sum(done.pushed.values()) == 0
    assert len(team.pushes) == 3
    assert done.verified


def test_large_texts_make_smaller_batches_and_an_unsendable_one_blocks_nothing(
    bob: Laptop, team: FakeTeam
) -> None:
    huge = save(bob, "x" * 3_100_000)
    for number in range(1, 5):
        save(bob, f"{number}" + "y" * 1_000_000, number)
    run(bob, team)
    assert [len(batch) for batch in team.pushes] == [2, 2]
    assert bob.state.ledger(BANK)[huge.id].answer == "rejected"


def test_shares_by_the_rule(bob: Laptop, team: FakeTeam) -> None:
    plain = save(bob, "plain")
    captured, promoted = save(bob, "captured", tags=("captured",)), save(bob, "promoted", tags=("captured",))
    private, chosen = (
        save(bob, "private", tags=("private",)),
        save(bob, "chosen", tags=("private", "captured")),
    )
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
    assert private.id not in team.rows
    assert both.id not in team.rows


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
    assert len(bob.state.ledger(BANK)) == 100
    assert "list_changes" not in team.calls
    assert bob.state.status(BANK).last_error == "Refused: too many calls"
    done = run(bob, team)
    assert done.pushed["stored"] == 150
    assert done.pushed["unchanged"] == 0
    assert bob.state.status(BANK).last_error is None
    assert bob.state.status(BANK).last_sync is not None


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
    assert here(bob) == {"mine": None}
    assert bob.state.pulled(BANK) == frozenset()
    assert bob.state.digest(BANK).count == 1
    assert embedder.embedded == []
