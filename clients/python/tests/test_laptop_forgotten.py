"""What the team forgot no laptop brings back by itself, though it has the same words saved by its own user."""

import contextlib
from dataclasses import replace

import pytest
from fake_sync import fail_at, here, run, save
from fake_team import FakeTeam
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from laptop import BANK, memory
from teamlore_client._errors import ServerUnreachable
from teamlore_client._laptop import Laptop
from teamlore_client._memory import Memory, Standing
from teamlore_client._sharing import kept_here, queue
from teamlore_client._show_sync import synced_lines
from teamlore_client._wire import Answer

TEXT = "What Eve earns is 4200."
SAID = "1 of yours repeats what was forgotten for the team; it stays on this laptop only; save it anew to share it"
CONTRADICTED = Standing(2, "contradicted")


@pytest.fixture
def team() -> FakeTeam:
    made = FakeTeam()
    made.one_of_each = True
    return made


def duplicate(bob: Laptop, team: FakeTeam) -> tuple[str, Memory]:
    """Alice's memory, and Bob's that the server called its duplicate."""
    theirs = team.write(memory(TEXT))
    mine = save(bob, TEXT)
    run(bob, team)
    assert str(bob.state.ledger(BANK)[mine.id]) == f"duplicate:{theirs}"
    return theirs, mine


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("trimmed", [False, True])
@pytest.mark.parametrize("from_start", [False, True])
@pytest.mark.parametrize("heard", [False, True])
def test_what_was_forgotten_for_the_team_stays_gone_whichever_way_a_laptop_hears_of_it(
    bob: Laptop, team: FakeTeam, left: bool, trimmed: bool, from_start: bool, heard: bool
) -> None:
    theirs, mine = duplicate(bob, team)
    team.bury(theirs)
    said = SAID in synced_lines(run(bob, team)) if heard else False
    if left:
        bob.state.leave(BANK)
    if trimmed:
        team.compact()
    done = run(bob, team, from_start=from_start)
    assert (said or SAID in synced_lines(done), done.kept_here) == (True, 0 if heard else 1)
    assert done.verified and team.rows == {} and here(bob) == {TEXT: None}
    assert bob.state.forgotten_instead(BANK) == {mine.id: theirs}
    again = run(bob, team, from_start=from_start)
    assert (sum(again.pushed.values()), again.kept_here) == (0, 0), "it is told once, and stands in the status"
    anew = save(bob, TEXT, 1)
    run(bob, team)
    assert set(team.rows) == {anew.id}, "who saves it anew wants it shared"


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("mirrored", [False, True])
def test_what_a_restored_server_lost_is_sent_again(bob: Laptop, team: FakeTeam, left: bool, mirrored: bool) -> None:
    theirs, mine = duplicate(bob, team)
    if mirrored:  # as where the laptop finds that they say different things
        bob.vectors.put_mirrored([(replace(memory("other"), id=theirs, author="user:alice"), bob.embed([TEXT])[0])])
    team.restore(theirs)
    if left:
        bob.state.leave(BANK)
    done = run(bob, team)
    assert (done.requeued, done.kept_here, set(team.rows)) == (1, 0, {mine.id})
    assert done.verified and bob.state.ledger(BANK)[mine.id].answer == "stored"


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("trimmed", [False, True])
def test_what_was_forgotten_before_the_restore_is_not(
    bob: Laptop, team: FakeTeam, heard: bool, trimmed: bool
) -> None:
    theirs, mine = duplicate(bob, team)
    if heard:
        team.bury(theirs)
        run(bob, team)
    else:  # it lost the memory and was told of its erasure, which this laptop has not heard of
        del team.rows[theirs]
        team.head += 1
        team.graves[theirs] = team.head
    team.restore()
    if heard:
        team.graves = {}
    elif trimmed:
        team.compact()
    done = run(bob, team)
    assert (done.reconciled, done.requeued, team.rows) == ("CURSOR_DIVERGED", 0, {})
    assert bob.state.forgotten_instead(BANK) == {mine.id: theirs} and here(bob) == {TEXT: None}


def test_a_server_that_never_heard_of_it_is_sent_it(bob: Laptop, team: FakeTeam) -> None:
    _, mine = duplicate(bob, team)
    bob.state.leave(BANK)
    other = FakeTeam()
    done = run(bob, other)
    assert (set(other.rows), done.requeued, done.verified) == ({mine.id}, 1, True)


def test_own_memories_of_the_same_words_follow_what_the_first_is_answered(bob: Laptop, team: FakeTeam) -> None:
    first, second = save(bob, TEXT), save(bob, TEXT, 1)
    run(bob, team)
    assert str(bob.state.ledger(BANK)[second.id]) == f"duplicate:{first.id}"
    team.bury(first.id)
    team.compact()
    done = run(bob, team)
    assert (done.requeued, done.kept_here, team.rows) == (1, 1, {}), "the first was asked for, and forgotten"
    assert set(bob.state.forgotten_instead(BANK)) == {second.id} and not bob.store.known([first.id])


def test_it_is_no_longer_alone_once_an_older_history_has_it_again(bob: Laptop, team: FakeTeam) -> None:
    theirs, mine = duplicate(bob, team)
    before = dict(team.rows)
    team.bury(theirs)
    run(bob, team)
    team.restore()
    team.rows, team.graves = before, {}
    assert run(bob, team).verified and bob.state.forgotten_instead(BANK) == {}
    assert bob.state.ledger(BANK)[mine.id].detail == theirs


@pytest.mark.parametrize("lost", [False, True])
def test_what_its_user_erased_here_is_neither_counted_nor_sent(bob: Laptop, team: FakeTeam, lost: bool) -> None:
    theirs, mine = duplicate(bob, team)
    bob.state.suppress(BANK, [mine.id])
    bob.store.erase([mine.id])
    if lost:
        team.restore(theirs)
    else:
        team.bury(theirs)
    done = run(bob, team)
    assert (done.kept_here, done.requeued, team.rows) == (0, 0, {})
    assert kept_here(bob.store, bob.state, BANK) == frozenset()


STEPS = st.lists(
    st.sampled_from(
        [
            "write", "save", "save", "sync", "sync", "from start", "lost", "late", "bury", "bury", "trim",
            "leave", "move", "back up", "restore", "restore",
        ]
    ),
    max_size=16,
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(STEPS)
@example(["save", "save", "late", "restore", "sync"])  # lost before the laptop had a place in its history
@example(["save", "save", "sync", "move", "write", "sync"])  # elsewhere the first is a duplicate itself
def test_no_order_of_events_brings_back_what_was_forgotten_or_loses_a_memory_in_silence(
    bob: Laptop, steps: list[str]
) -> None:
    team = FakeTeam()
    team.one_of_each = True
    bob.state.leave(BANK)
    bob.store.erase([each.id for each in bob.store.list(BANK, 1000)])
    backup: dict[str, tuple[int, Memory]] = {}
    doubtful = False
    for number, step in enumerate(steps):
        team.before = team.after = lambda call: None
        held = {id_: each.detail for id_, each in bob.state.ledger(BANK).items() if each.answer == "duplicate"}
        match step:
            case "write" if all(each.text != TEXT for _, each in team.rows.values()):
                team.write(memory(TEXT))
            case "save":
                save(bob, TEXT, number)
            case "lost":
                team.after = fail_at("push", ServerUnreachable("cut after it was answered"))
            case "late":
                team.before = fail_at("list_live", ServerUnreachable("cut in the comparison"))
            case "bury" if team.rows:
                team.bury(next(iter(team.rows)))
            case "trim":
                team.compact()
            case "leave":
                bob.state.leave(BANK)
            case "move":
                bob.state.leave(BANK)
                team, backup, doubtful = FakeTeam(), {}, True
                team.one_of_each = True
            case "back up":
                backup = dict(team.rows)
            case "restore":  # what was erased since is erased again before it serves
                team.rows = {
                    id_: each for id_, each in backup.items() if id_ not in team.graves.keys() | team.compacted
                }
                team.restore()
                doubtful = True
        if step in ("sync", "from start", "lost", "late"):
            with contextlib.suppress(ServerUnreachable):
                done = run(bob, team, from_start=step != "sync" and step != "lost")
                assert done.verified
                for id_, pushed in bob.state.ledger(BANK).items():
                    if pushed.answer == "duplicate" and bob.store.known([id_]):
                        alone = id_ in bob.state.forgotten_instead(BANK)
                        assert alone is not (pushed.detail in team.rows)
                        known = pushed.detail in team.graves.keys() | team.compacted
                        assert known or doubtful or not alone
                assert not list(queue(bob.store, bob.state, BANK, share_captured=False))
        buried = team.graves.keys() | team.compacted
        back = {id_ for id_, there in held.items() if there in buried and id_ in team.rows}
        assert not back, step


def test_what_the_team_holds_of_it_reaches_the_own_one(bob: Laptop, team: FakeTeam) -> None:
    theirs, mine = duplicate(bob, team)
    hold(team, theirs, CONTRADICTED)
    assert run(bob, team).verified
    assert bob.store.get(mine.id).standing == CONTRADICTED and recalled(bob) == set()
    assert here(bob) == {TEXT: None}, "and is not shown twice"
    hold(team, theirs, Standing(3))
    run(bob, team)
    assert bob.store.get(mine.id).standing == Standing(3) and here(bob) == {TEXT: None}


def test_what_the_team_held_of_it_before_it_was_saved_here_too(bob: Laptop, team: FakeTeam) -> None:
    theirs = team.write(replace(memory(TEXT), standing=CONTRADICTED))
    run(bob, team)
    mine = save(bob, TEXT)
    run(bob, team)
    assert bob.state.ledger(BANK)[mine.id].detail == theirs and bob.store.get(mine.id).standing == CONTRADICTED


@pytest.mark.parametrize("at_first_sight", [False, True])
def test_what_the_team_holds_of_one_left_out_for_one_that_it_refused(
    bob: Laptop, team: FakeTeam, at_first_sight: bool
) -> None:
    mine = save(bob, TEXT)
    team.judged[mine.id] = Answer(mine.id, "rejected", "text: holds what looks like a secret")
    theirs = team.write(replace(memory(TEXT), standing=CONTRADICTED if at_first_sight else Standing()))
    run(bob, team)
    if not at_first_sight:
        assert recalled(bob) == {mine.id}
        hold(team, theirs, CONTRADICTED)
        run(bob, team)
    assert bob.store.get(mine.id).standing == CONTRADICTED and here(bob) == {TEXT: None}
    hold(team, theirs, Standing(3))
    run(bob, team)
    assert recalled(bob) == {mine.id}


def test_what_the_team_holds_of_an_own_one_itself_comes_before_that(bob: Laptop) -> None:
    team = FakeTeam()
    mine, theirs = save(bob, TEXT), team.write(memory(TEXT))
    run(bob, team)
    hold(team, theirs, CONTRADICTED)
    run(bob, team)
    assert bob.store.get(mine.id).standing == Standing() and recalled(bob) == {mine.id}


def hold(team: FakeTeam, id_: str, standing: Standing) -> None:
    team.head += 1
    team.rows[id_] = (team.head, replace(team.rows[id_][1], standing=standing))


def recalled(laptop: Laptop) -> set[str]:
    return {hit.memory.id for hit in laptop.vectors.search(BANK, laptop.embed([TEXT])[0], TEXT)}
