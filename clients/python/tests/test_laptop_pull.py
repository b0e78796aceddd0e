"""Pulling: pages that join up, tombstones that erase, and what is received but not stored."""

from dataclasses import replace
from pathlib import Path

import pytest
from fake_sync import fail_at, here, place, run, save
from fake_team import FakeEmbedder, FakeTeam
from laptop import BANK, memory, traces, vector
from teamlore_client._errors import FeedGap, ServerUnreachable
from teamlore_client._laptop import Laptop
from teamlore_client._memory import Standing
from teamlore_client._pull import Place, Pulled
from teamlore_client._state import SyncState


def test_a_crash_between_store_and_state_does_not_make_a_teammates_memory_ones_own(
    bob: Laptop, team: FakeTeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = team.write(memory("theirs"))
    with monkeypatch.context() as patch:
        patch.setattr(SyncState, "apply_page", lambda *_: (_ for _ in ()).throw(RuntimeError("killed")))
        with pytest.raises(RuntimeError):
            run(bob, team)
    assert here(bob) == {"theirs": "user:alice"}
    assert place(bob) == Place()
    done = run(bob, team)
    assert team.pushes == []
    assert bob.state.pulled(BANK) == {theirs}
    assert done.verified


def test_pages_join_up_and_are_applied_one_by_one(bob: Laptop, team: FakeTeam) -> None:
    team.page = 2
    for number in range(5):
        team.write(memory(f"m{number}"))
    team.before = fail_at("list_changes", ServerUnreachable("cut"), after=2)
    with pytest.raises(ServerUnreachable):
        run(bob, team)
    assert place(bob).seq == 4
    assert len(here(bob)) == 4
    assert run(bob, team).pulled.stored == 1
    assert place(bob).seq == 5


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
    assert place(bob) == before
    assert set(here(bob)) == {"first"}
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


def test_a_tombstone_of_one_bank_reaches_no_other_banks_memory(bob: Laptop, team: FakeTeam) -> None:
    own = memory("of another bank", bank="project:other-00000000")
    bob.vectors.add(own, vector(1))
    team.head += 1
    team.graves[own.id] = team.head
    assert run(bob, team).pulled.erased == 0
    assert bob.store.get(own.id) == own


def test_a_tombstone_erases_pulled_and_own_but_not_withheld(bob: Laptop, team: FakeTeam) -> None:
    theirs = team.write(memory("Theirs Zanzibarquartz"))
    mine, kept = save(bob, "Mine Zanzibarquartz"), save(bob, "withheld later")
    run(bob, team)
    bob.state.withhold(BANK, [kept.id])
    for id_ in (theirs, mine.id, kept.id):
        team.bury(id_)
    done = run(bob, team)
    assert here(bob) == {"withheld later": None}
    assert done.pulled.erased == 2
    assert {id_: p.answer for id_, p in bob.state.ledger(BANK).items()} == dict.fromkeys(
        (theirs, mine.id, kept.id), "forgotten"
    )
    assert done.erasures_confirmed
    assert team.acked == place(bob).seq == 6
    assert done.verified
    assert traces(Path.home(), "Zanzibarquartz") == {}
    team.acked = None
    assert not run(bob, team).erasures_confirmed
    assert team.acked is None


def test_erasures_are_not_confirmed_while_bytes_may_be_left(
    bob: Laptop, team: FakeTeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = team.write(memory("theirs"))
    run(bob, team)
    team.bury(theirs)
    with monkeypatch.context() as patch:
        patch.setattr("teamlore_client._erase.settle", lambda connection, wait: False)
        assert not run(bob, team).erasures_confirmed
    assert team.acked is None
    assert bob.state.owed_acks(BANK)
    assert run(bob, team).erasures_confirmed
    assert team.acked == 2


def test_a_near_duplicate_of_ones_own_is_skipped_but_a_contradiction_is_not(
    bob: Laptop, team: FakeTeam, embedder: FakeEmbedder
) -> None:
    mine = save(bob, "We use Kafka for orders")
    for text in (
        "We use Kafka for the order",
        "We do not use Kafka for orders",
        "We use Kafka 3 for orders",
    ):
        embedder.near[text] = "We use Kafka for orders"
        team.write(memory(text))
    done = run(bob, team)
    assert done.pulled.near_duplicates == 1
    assert done.pulled.stored == 2
    assert done.verified
    assert "We use Kafka for the order" not in here(bob)
    assert [own for _, own in bob.state.skipped(BANK).items()] == [mine.id]


@pytest.mark.parametrize("cut", ["mine", "theirs", "both"])
def test_what_the_model_did_not_see_whole_repeats_only_its_equal(
    bob: Laptop, team: FakeTeam, embedder: FakeEmbedder, cut: str
) -> None:
    mine, theirs = "ฉันชอบกาแฟ", "ฐานข้อมูลอยู่ที่ไหน"
    embedder.near |= {theirs: mine, mine + " \n": mine}
    embedder.not_whole |= {"mine": {mine}, "theirs": {theirs}, "both": {mine, theirs}}[cut]
    save(bob, mine)
    team.write(memory(theirs))
    team.write(memory(mine + " \n"))
    done = run(bob, team)
    assert (done.pulled.stored, done.pulled.near_duplicates) == (1, 1)
    assert set(here(bob)) == {mine, theirs}


def test_the_packaged_model_keeps_what_it_cannot_tell_apart(home: Path, team: FakeTeam) -> None:
    beginning = "The retry budget of the checkout service is five attempts. " * 40
    with Laptop() as carol:
        for own, theirs in (
            ("ฉันชอบกาแฟ", "ฐานข้อมูลอยู่ที่ไหน"),
            ("🙂", "🎉"),
            (beginning + "Alice owns it.", beginning + "Bob owns it."),
        ):
            save(carol, own)
            team.write(memory(theirs))
        save(carol, "We use SQS for the order queue.")
        team.write(memory("We use SQS for the order queues"))
        done = run(carol, team)
    assert (done.pulled.stored, done.pulled.near_duplicates) == (3, 1)


def test_ones_own_is_found_behind_any_number_of_teammates_who_say_the_same(
    bob: Laptop, team: FakeTeam, embedder: FakeEmbedder
) -> None:
    save(bob, "We use Kafka for orders")
    others = [f"We do not use Kafka for {what}" for what in range(30)]
    embedder.near |= dict.fromkeys([*others, "We use Kafka for the order"], "We use Kafka for orders")
    for text in others:
        team.write(memory(text))
    assert run(bob, team).pulled.stored == 30
    team.write(memory("We use Kafka for the order"))
    assert run(bob, team).pulled.near_duplicates == 1


def test_ones_own_that_is_hidden_hides_nobody_elses(bob: Laptop, team: FakeTeam, embedder: FakeEmbedder) -> None:
    mine = save(bob, "We use Kafka for orders")
    bob.store.put_standing([replace(mine, standing=Standing(version=2, status="superseded"))])
    embedder.near["We use Kafka for the order"] = "We use Kafka for orders"
    team.write(memory("We use Kafka for the order"))
    assert run(bob, team).pulled.stored == 1


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ("Always enable the cache", "Always disable the cache"),
        ("Deploy before the tests", "Deploy after the tests"),
        ("alice reviews what bob writes", "bob reviews what alice writes"),
        ("Warmer than -5 degrees", "Warmer than 5 degrees"),
        ("Nobody approves pull requests", "Nobody approves their own pull requests"),
        ("if retry:\n    log()\nsend()", "if retry:\n    log()\n    send()"),
    ],
)
def test_a_teammates_contradiction_comes_whatever_the_model_says(
    bob: Laptop, team: FakeTeam, embedder: FakeEmbedder, mine: str, theirs: str
) -> None:
    save(bob, mine)
    embedder.near[theirs] = mine
    team.write(memory(theirs))
    assert run(bob, team).pulled.near_duplicates == 0
    assert theirs in here(bob)


@pytest.mark.parametrize("kept", ["private", " #Private", "withheld"])
def test_what_is_private_stands_for_nobody_elses(
    bob: Laptop, team: FakeTeam, embedder: FakeEmbedder, kept: str
) -> None:
    mine = save(bob, "We use Kafka for orders", tags=() if kept == "withheld" else ("a", kept))
    if kept == "withheld":
        bob.state.withhold(BANK, [mine.id])
    embedder.near["We use Kafka for the order"] = "We use Kafka for orders"
    team.write(memory("We use Kafka for the order"))
    assert run(bob, team).pulled.stored == 1


@pytest.mark.parametrize("gone", ["forgotten", "superseded", "contradicted", "withheld"])
@pytest.mark.parametrize("by", ["feed", "list"])
def test_what_was_left_out_comes_once_its_reason_is_gone(
    bob: Laptop, team: FakeTeam, embedder: FakeEmbedder, gone: str, by: str
) -> None:
    mine = save(bob, "We use Kafka for orders")
    embedder.near |= dict.fromkeys(["We use Kafka for the order", "We use Kafka for orders."], mine.text)
    theirs = team.write(memory("We use Kafka for the order"))
    assert run(bob, team, from_start=by == "list").pulled.near_duplicates == 1
    assert (run(bob, team).pulled, team.calls.count("get_memories")) == (Pulled(), 0)
    if gone == "forgotten":
        bob.store.erase([mine.id])
    elif gone == "withheld":
        bob.state.withhold(BANK, [mine.id])
    else:
        team.write(replace(team.rows[mine.id][1], standing=Standing(version=2, status=gone)), "user:bob")
    team.before = fail_at("get_memories", ServerUnreachable("cut"))
    with pytest.raises(ServerUnreachable):
        run(bob, team)
    done = run(bob, team)
    assert (done.pulled.stored, done.verified) == (1, True)
    assert here(bob)["We use Kafka for the order"] == "user:alice"
    assert (bob.state.skipped(BANK), bob.state.pulled(BANK)) == ({}, {theirs})
    assert (run(bob, team).pulled, team.calls.count("get_memories")) == (Pulled(), 2)


def test_what_was_left_out_and_repeats_another_of_ones_own_waits_for_that_one(
    bob: Laptop, team: FakeTeam, embedder: FakeEmbedder
) -> None:
    again = "We use Kafka for the orders"
    embedder.near |= dict.fromkeys(["We use Kafka for the order", again], "We use Kafka for orders")
    first, second = save(bob, "We use Kafka for orders"), save(bob, again)
    theirs = team.write(memory("We use Kafka for the order"))
    run(bob, team)
    reason = bob.state.skipped(BANK)[theirs]
    bob.store.erase([reason])
    assert run(bob, team).pulled.stored == 0
    assert {reason, bob.state.skipped(BANK)[theirs]} == {first.id, second.id}


def test_two_teammates_who_say_nearly_the_same_are_both_kept(
    bob: Laptop, team: FakeTeam, embedder: FakeEmbedder
) -> None:
    embedder.near["We use Kafka for the order"] = "We use Kafka for orders"
    team.write(memory("We use Kafka for orders"))
    run(bob, team)
    team.write(memory("We use Kafka for the order"), "user:carol")
    assert run(bob, team).pulled.near_duplicates == 0
    assert len(here(bob)) == 2


def test_suppressed_and_derived_ones_are_received_but_not_stored(bob: Laptop, team: FakeTeam) -> None:
    hidden = team.write(memory("hidden"))
    team.write(memory("seen by a server", derivation="observation"))
    bob.state.suppress(BANK, [hidden])
    done = run(bob, team)
    assert here(bob) == {}
    assert done.pulled.suppressed == 1
    assert done.verified
    done = run(bob, team, from_start=True)
    assert here(bob) == {}
    assert done.verified
    assert bob.state.digest(BANK).count == 2


def test_a_row_that_breaks_a_rule_does_not_stop_those_behind_it(bob: Laptop, team: FakeTeam) -> None:
    team.write(memory("bad", metadata={"big": 1e300}))
    team.write(memory("good"))
    done = run(bob, team)
    assert set(here(bob)) == {"good"}
    assert done.pulled.unreadable == 1
    assert done.verified
