"""Pushing: what is shared, in which order, and what a failure leaves queued."""

import contextlib
from dataclasses import replace

import pytest
from fake_sync import MEMBER, fail_at, here, preview_counts, run, save
from fake_team import FakeEmbedder, FakeTeam
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laptop import BANK, memory
from teamlore_client import _sync
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


SPELT = ["{T}", "{U}", " {}", "{}\t", "#{}", "# {T}", "\uff03{}", "{W}", "\u200b{}\ufeff", "queue,{T}", "[{}]", "{S}", "{D}"]


def spelt(form: str, word: str) -> str:
    wide = "".join(chr(ord(each) + 0xFEE0) for each in word.title())
    broken, dotted = f"{word[:3]}\u00ad{word[3:]}", word.upper().replace("I", "\u0130")
    return form.format(word, T=word.title(), U=word.upper(), W=wide, S=broken, D=dotted)


@pytest.mark.parametrize("form", SPELT)
def test_a_tag_holds_back_however_it_is_spelt(bob: Laptop, team: FakeTeam, form: str) -> None:
    tags = {word: spelt(form, word) for word in ("private", "captured")}
    for word, tag in tags.items():
        save(bob, word, tags=("queue", tag))
    plain = save(bob, "plain", tags=("privately", "not private", "capture", ""))
    run(bob, team)
    assert set(team.rows) == {plain.id}
    assert {each.tags for each in bob.store.list(BANK, 10)} >= {("queue", tag) for tag in tags.values()}
    run(bob, team, replace(MEMBER, share_captured=True))
    assert {memory.text for _, memory in team.rows.values()} == {"plain", "captured"}


def test_every_answer_is_recorded_and_a_bad_record_blocks_nothing(bob: Laptop, team: FakeTeam) -> None:
    made = [save(bob, f"m{number}", number) for number in range(4)]
    team.write(memory("as m1 says", id="original-1"))
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


def test_a_lost_answer_leaves_word_that_the_server_may_have_it(bob: Laptop, team: FakeTeam) -> None:
    run(bob, team)
    for number in range(150):
        save(bob, f"decision {number}", number)
    team.after = fail_at("push", ServerUnreachable("cut"), after=1)
    with pytest.raises(ServerUnreachable):
        run(bob, team)
    unheard = team.pushes[1]
    assert len(unheard) == 50
    assert all(bob.state.perhaps_there(BANK, id_) for id_ in unheard)
    assert not bob.state.ledger(BANK, unheard)
    assert run(bob, team).pushed["unchanged"] == 50
    assert sorted(bob.state.ledger(BANK)) == sorted(team.rows)


def test_a_lost_answer_in_a_stream_too(bob: Laptop, team: FakeTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sync, "STREAM_FROM", 20)
    run(bob, team)
    for number in range(30):
        save(bob, f"decision {number}", number)
    team.after = fail_at("push", ServerUnreachable("cut"))
    with pytest.raises(ServerUnreachable):
        run(bob, team)
    assert "push_stream" in team.calls
    assert len(team.rows) == 30
    assert all(bob.state.perhaps_there(BANK, id_) for id_ in team.rows)


@pytest.mark.parametrize("undone", [True, False])
def test_a_refusal_settles_only_what_it_speaks_of(bob: Laptop, team: FakeTeam, undone: bool) -> None:
    run(bob, team)
    before = save(bob, "sent before, no answer heard")
    bob.state.sending(BANK, [before.id])
    mine = save(bob, "mine", 1)
    refusal = Refused("PERMISSION_DENIED", "no", permission="write")
    refusal.undone = undone
    team.before = fail_at("push", refusal)
    with pytest.raises(Refused):
        run(bob, team)
    assert bob.state.perhaps_there(BANK, before.id)
    assert bob.state.perhaps_there(BANK, mine.id) is not undone


STEPS = st.lists(
    st.sampled_from(["save", "save", "sync", "lost", "late", "unreachable", "refused", "reader", "leave", "bury", "restore"]),
    max_size=14,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(STEPS)
def test_no_own_memory_is_on_the_server_unnoticed(bob: Laptop, steps: list[str]) -> None:
    team, mine = FakeTeam(), list[str]()
    bob.state.leave(BANK)
    bob.store.erase([each.id for each in bob.store.list(BANK, 1000)])
    for number, step in enumerate(steps):
        refusal = Refused("PERMISSION_DENIED", "no", permission="write")
        refusal.undone = True
        team.before = team.after = lambda call: None
        match step:
            case "save":
                mine.append(save(bob, f"{number} {len(mine)}", number).id)
            case "lost":
                team.after = fail_at("push", ServerUnreachable("cut after it was stored"))
            case "late":
                team.after = fail_at("list_changes", ServerUnreachable("cut in the pull"))
            case "unreachable":
                team.before = fail_at("push", ServerUnreachable("cut before it was stored"))
            case "refused":
                team.before = fail_at("push", Refused("RATE_LIMITED", "another try of it was left unanswered"))
            case "reader":
                team.before = fail_at("push", refusal)
            case "leave":
                bob.state.leave(BANK)
            case "bury" if team.rows:
                team.bury(next(iter(team.rows)))
            case "restore" if team.rows:
                team.restore(next(iter(team.rows)))
        if step in ("sync", "lost", "late", "unreachable", "refused", "reader"):
            with contextlib.suppress(ServerUnreachable, Refused):
                run(bob, team)
        for id_ in mine:
            answer = bob.state.ledger(BANK, [id_]).get(id_, Pushed("")).answer
            known = answer in ("stored", "unchanged") or bob.state.perhaps_there(BANK, id_)
            assert known or id_ not in team.rows, (step, answer)


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
