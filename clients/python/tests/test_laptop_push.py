"""Pushing: what is shared, in which order, and what a failure leaves queued."""

import contextlib
from dataclasses import replace

import pytest
from fake_sync import MEMBER, fail_at, here, preview_counts, run, save
from fake_team import FakeEmbedder, FakeTeam
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laptop import BANK, memory
from teamlore.common.v1.errors_pb2 import ErrorReason
from teamlore_client import _sync
from teamlore_client._errors import AnswerWrong, Refused, ServerUnreachable, TeamloreError
from teamlore_client._laptop import Laptop
from teamlore_client._show_sync import failed_lines
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


SPELT = [
    "{T}", "{U}", " {}", "{}\t", "#{}", "# {T}", "\uff03{}", "{W}", "\u200b{}\ufeff", "queue,{T}", "[{}]", "{S}", "{D}",
    "{}\u3164", "\u115f{}", "{};queue",
]  # fmt: skip


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
    assert bob.state.status(BANK).last_error == "Refused: too many calls"
    done = run(bob, team)
    assert done.pushed["stored"] == 150
    assert done.pushed["unchanged"] == 0
    assert bob.state.status(BANK).last_error is None
    assert bob.state.status(BANK).last_sync is not None


REASONS = sorted(ErrorReason.keys())
"""Of every refusal that the contract knows."""
UNTYPED = ["RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "INTERNAL", "UNKNOWN", "UNIMPLEMENTED", "CANCELLED"]
REFUSALS = [Refused(each.removeprefix("ERROR_REASON_"), "no") for each in REASONS if "CREDENTIAL" not in each]
REFUSALS += [Refused(each, "what gRPC or a proxy says by itself") for each in UNTYPED]
NOT_TAKEN = [*REFUSALS, ServerUnreachable("not now", "DEPENDENCY_UNAVAILABLE"), AnswerWrong("no such answer")]
CREDENTIALS = [each.removeprefix("ERROR_REASON_") for each in REASONS if "CREDENTIAL" in each]
GONE = [Refused(each, "no") for each in [*CREDENTIALS, "UNAUTHENTICATED"]]
GONE_OR_AWAY = [*GONE, ServerUnreachable("connection refused")]


def called(error: TeamloreError) -> str:
    return getattr(error, "reason", "") or type(error).__name__


@pytest.mark.parametrize("way", ["batch", "stream", "stream cut", "from start"])
@pytest.mark.parametrize("error", NOT_TAKEN[-3:], ids=called)
def test_a_push_that_is_not_taken_stops_nothing_else(
    bob: Laptop,
    team: FakeTeam,
    monkeypatch: pytest.MonkeyPatch,
    error: TeamloreError,
    way: str,
) -> None:
    gone = team.write(memory("erased for everyone"))
    run(bob, team)
    assert "erased for everyone" in here(bob)
    save(bob, "mine")
    save(bob, "mine too", 1)
    team.write(memory("theirs"))
    team.bury(gone)
    if way.startswith("stream"):
        monkeypatch.setattr(_sync, "STREAM_FROM", 1)
    team.before = fail_at("push_stream" if way == "stream" else "push", error)
    with pytest.raises(type(error)) as caught:
        run(bob, team, from_start=way == "from start")
    assert caught.value is error
    assert here(bob) == {"mine": None, "mine too": None, "theirs": "user:alice"}
    assert set(bob.state.ledger(BANK)) == {gone}
    assert error.synced is not None
    done = error.synced
    assert (done.push_refused, done.pulled.stored, done.verified) == (_sync.reason_of(error), 1, True)
    assert done.pulled.erased + done.pulled.dropped == 1
    assert done.erasures_confirmed and team.acked == team.head
    assert bob.state.status(BANK).last_error == f"{type(error).__name__}: {error}"
    assert run(bob, team).pushed["stored"] == 2


@pytest.mark.parametrize("error", NOT_TAKEN, ids=called)
def test_whatever_a_push_is_refused_for_what_was_erased_for_everyone_goes(
    bob: Laptop, team: FakeTeam, error: TeamloreError
) -> None:
    gone = team.write(memory("erased for everyone"))
    run(bob, team)
    save(bob, "mine")
    team.bury(gone)
    team.before = fail_at("push", error)
    with pytest.raises(type(error)):
        run(bob, team)
    assert here(bob) == {"mine": None}
    assert error.synced is not None and error.synced.push_refused


@pytest.mark.parametrize("error", GONE_OR_AWAY, ids=called)
def test_without_a_server_or_its_trust_nothing_more_is_asked(bob: Laptop, team: FakeTeam, error: TeamloreError) -> None:
    save(bob, "mine")
    team.before = fail_at("push", error)
    with pytest.raises(type(error)):
        run(bob, team)
    assert "list_changes" not in team.calls
    assert error.synced is not None and error.synced.push_refused == ""


def test_a_pull_that_is_cut_tells_how_far_it_came(bob: Laptop, team: FakeTeam) -> None:
    cut = ServerUnreachable("cut")
    team.page = 1
    save(bob, "mine")
    team.write(memory("theirs"))
    team.write(memory("theirs too"))
    team.before = fail_at("list_changes", cut, after=1)
    with pytest.raises(ServerUnreachable):
        run(bob, team)
    assert cut.synced is not None
    assert failed_lines(cut.synced) == ["pushed: 1 stored", "pulled: 1 new, 0 erased"]


def test_a_pull_that_fails_too_is_what_is_told(bob: Laptop, team: FakeTeam) -> None:
    save(bob, "mine")
    refused, cut = Refused("BANK_ARCHIVED", "no"), ServerUnreachable("cut")
    team.before = lambda call: {"push": refused, "list_changes": cut}.get(call)
    with pytest.raises(ServerUnreachable):
        run(bob, team)
    assert cut.synced is not None and cut.synced.push_refused == ""


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
