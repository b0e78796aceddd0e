"""A laptop whose memories were lost, replaced or put back from a copy: the next plain sync makes them right."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fake_sync import MEMBER, fail_at, here, place, run, save
from fake_team import FakeEmbedder, FakeTeam
from laptop import BANK, memory, traces
from teamlore_client._errors import ServerUnreachable
from teamlore_client._laptop import Laptop
from teamlore_client._memory import Standing
from teamlore_client._paths import data_dir
from teamlore_client._schema import STEPS
from teamlore_client._sqlite import connect
from teamlore_client._sync import preview
from teamlore_client._tie import OTHERS, UNMARKED

NAMES = ("memory.db", "memory.db-wal", "memory.db-shm")


@contextmanager
def opened(embedder: FakeEmbedder) -> Iterator[Laptop]:
    with Laptop(embedder) as laptop:
        yield laptop


def lose() -> None:
    for name in NAMES:
        (data_dir() / name).unlink(missing_ok=True)


def put_aside(to: Path) -> None:
    """Copy memory.db; it must not be open, so that it is all there is."""
    assert not (data_dir() / NAMES[1]).exists()
    shutil.copy(data_dir() / "memory.db", to)


def put_back(copy: Path) -> None:
    lose()
    shutil.copy(copy, data_dir() / "memory.db")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "copy.db"


@pytest.mark.parametrize("idle", [True, False])
def test_lost_memories_come_back_as_whose_they_were(
    home: Path, embedder: FakeEmbedder, team: FakeTeam, idle: bool
) -> None:
    team.page = 2
    with opened(embedder) as bob:
        mine, withheld = save(bob, "mine"), save(bob, "mine, withheld since")
        erased, hidden = save(bob, "mine, erased since"), save(bob, "mine, hidden since")
        theirs = [team.write(memory(f"theirs {number}")) for number in range(3)]
        run(bob, team)
        bob.state.withhold(BANK, [withheld.id])
        team.forget(BANK, [erased.id])
        bob.state.forget(BANK, [erased.id], asked_here=True)
        bob.state.suppress(BANK, [hidden.id, theirs[0]])
        bob.store.erase([erased.id, hidden.id, theirs[0]])
        if idle:
            run(bob, team)
        save(bob, "not shared yet")
    lose()
    with opened(embedder) as bob:
        assert preview(bob, team, MEMBER).reconcile == UNMARKED
        done = run(bob, team)
        assert (done.reconciled, done.verified, done.pulled.restored) == (UNMARKED, True, 2)
        expected = {
            "mine": None,
            "mine, withheld since": None,
            "theirs 1": "user:alice",
            "theirs 2": "user:alice",
        }
        assert here(bob) == expected
        assert bob.state.pulled(BANK) >= set(theirs[1:]) and mine.id not in bob.state.pulled(BANK)
        pushes = len(team.pushes)
        done = run(bob, team)
        assert (done.reconciled, done.verified, len(team.pushes)) == ("", True, pushes)
        assert here(bob) == expected


def test_where_an_own_one_is_lost_for_which_the_team_has_anothers_that_one_comes_whatever_is_held_of_it(
    home: Path, embedder: FakeEmbedder, team: FakeTeam
) -> None:
    team.one_of_each = True
    with opened(embedder) as bob:
        theirs = team.write(memory("the same words"))
        save(bob, "the same words")
        run(bob, team)
        assert here(bob) == {"the same words": None}
    lose()
    team.head += 1
    team.rows[theirs] = (team.head, replace(team.rows[theirs][1], standing=Standing(2, "contradicted")))
    with opened(embedder) as bob:
        assert run(bob, team).verified
        assert bob.store.get(theirs).standing.status == "contradicted"


def test_an_older_copy_is_made_right(home: Path, embedder: FakeEmbedder, team: FakeTeam, copy: Path) -> None:
    with opened(embedder) as bob:
        save(bob, "mine")
        erased = team.write(memory("Zanzibarquartz, erased"))
        hidden = team.write(memory("Quillfeather, hidden"))
        lost = save(bob, "mine Wolframlantern, erased")
        run(bob, team)
    put_aside(copy)
    with opened(embedder) as bob:
        save(bob, "mine, newer")
        team.bury(erased)
        team.bury(lost.id)
        team.write(memory("theirs, newer"))
        bob.state.suppress(BANK, [hidden])
        bob.store.erase([hidden])
        assert run(bob, team).erasures_confirmed
        team.compact()
    put_back(copy)
    with opened(embedder) as bob:
        assert here(bob).keys() >= {
            "Zanzibarquartz, erased",
            "Quillfeather, hidden",
            "mine Wolframlantern, erased",
        }
        done = run(bob, team)
        assert (done.reconciled, done.verified, done.gone_again, done.pulled.restored) == (OTHERS, True, 3, 1)
        assert here(bob) == {"mine": None, "mine, newer": None, "theirs, newer": "user:alice"}
        assert all(traces(home, word) == {} for word in ("Zanzibarquartz", "Quillfeather", "Wolframlantern"))
        done = run(bob, team)
        assert (done.reconciled, done.verified, done.gone_again) == ("", True, 0)


def test_a_copy_of_the_same_place_brings_back_nothing_that_was_hidden_or_refused(
    home: Path, embedder: FakeEmbedder, team: FakeTeam, copy: Path
) -> None:
    with opened(embedder) as bob:
        team.write(memory("theirs"))
        hidden = team.write(memory("theirs, hidden"))
        run(bob, team)
        refused, withheld = save(bob, "forgotten before it came"), save(bob, "withheld")
        bob.state.withhold(BANK, [withheld.id])
        bob.state.forget(BANK, [withheld.id])  # by another: a copy of its author's stays
    put_aside(copy)
    with opened(embedder) as bob:
        team.compacted.add(refused.id)
        bob.state.suppress(BANK, [hidden])
        bob.store.erase([hidden])
        run(bob, team)
        assert here(bob) == {"theirs": "user:alice", "withheld": None}
    put_back(copy)
    with opened(embedder) as bob:
        done = run(bob, team)
        assert (done.reconciled, done.gone_again, done.verified) == ("", 2, True)
        assert here(bob) == {"theirs": "user:alice", "withheld": None}


def test_another_laptops_file_of_the_same_place_is_noticed(
    home: Path, embedder: FakeEmbedder, team: FakeTeam, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    team.write(memory("theirs"))
    monkeypatch.setenv("HOME", str(home / "carol"))
    (home / "carol").mkdir()
    with opened(embedder) as carol:
        run(carol, team)
    put_aside(copy)
    monkeypatch.setenv("HOME", str(home))
    with opened(embedder) as bob:
        run(bob, team)
    put_back(copy)
    with opened(embedder) as bob:
        assert run(bob, team).reconciled == OTHERS
        assert run(bob, team).reconciled == ""


def test_a_file_of_an_earlier_release_is_compared_once_and_embeds_nothing_anew(
    bob: Laptop, embedder: FakeEmbedder, team: FakeTeam
) -> None:
    team.write(memory("theirs"))
    save(bob, "mine")
    run(bob, team)
    with connect(data_dir() / "memory.db") as old:
        old.execute("DROP TABLE marks; PRAGMA user_version=3")
        assert max(STEPS) == 4
    bob.close()
    with opened(embedder) as upgraded:
        embedder.embedded.clear()
        done = run(upgraded, team)
        assert (done.reconciled, done.verified, embedder.embedded) == (UNMARKED, True, [])
        assert here(upgraded) == {"mine": None, "theirs": "user:alice"}
        assert run(upgraded, team).reconciled == ""


def test_a_comparison_that_dies_begins_again_also_when_nothing_else_would(
    bob: Laptop, team: FakeTeam
) -> None:
    team.write(memory("theirs"))
    run(bob, team)
    team.before = fail_at("list_live", ServerUnreachable("cut"))
    with pytest.raises(ServerUnreachable):
        run(bob, team, from_start=True)
    assert run(bob, team).reconciled == UNMARKED
    assert run(bob, team).reconciled == ""


def test_own_ones_that_were_sent_and_lost_before_the_answer_are_still_ones_own(
    home: Path, embedder: FakeEmbedder, team: FakeTeam
) -> None:
    with opened(embedder) as bob:
        run(bob, team)
        save(bob, "mine")
        team.after = fail_at("push", ServerUnreachable("cut"))
        with pytest.raises(ServerUnreachable):
            run(bob, team)
    lose()
    with opened(embedder) as bob:
        assert run(bob, team).pulled.restored == 1
        assert here(bob) == {"mine": None}
        run(bob, team)
        assert [each.answer for each in bob.state.ledger(BANK).values()] == ["unchanged"]


def test_a_crash_between_the_two_files_repeats_the_page_and_compares_nothing(
    bob: Laptop, team: FakeTeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(bob, team)
    team.write(memory("theirs"))
    with monkeypatch.context() as dying:
        dying.setattr(bob.state, "apply_page", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(bob, team)
    assert (here(bob), place(bob).seq) == ({"theirs": "user:alice"}, 0)
    done = run(bob, team)
    assert (done.reconciled, done.verified, place(bob).seq) == ("", True, 1)


def test_what_is_live_again_after_a_restore_is_not_taken_for_erased(bob: Laptop, team: FakeTeam) -> None:
    theirs = team.write(memory("theirs"))
    run(bob, team)
    before = dict(team.rows)
    team.bury(theirs)
    run(bob, team)
    team.restore()
    team.rows, team.graves = before, {}
    assert run(bob, team).reconciled == "CURSOR_DIVERGED"
    assert (run(bob, team).gone_again, here(bob)) == (0, {"theirs": "user:alice"})
