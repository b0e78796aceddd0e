"""memory.db is lost, copied and put back, and every process dies wherever it may: the next plain sync is right."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import apsw
import pytest
from fake_sync import run, save
from fake_team import FakeEmbedder, FakeTeam
from hypothesis import given, settings
from hypothesis import strategies as st
from laptop import BANK, memory
from teamlore_client import _erase, _sqlite, _state, _store
from teamlore_client._laptop import Laptop
from teamlore_client._memory import Memory, Standing
from teamlore_client._paths import data_dir

EMBEDDER = FakeEmbedder()
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # processes die here, power does not
HARMFUL = {"lose", "put back", "compact"}
"""After these a comparison is due; without them a crash repeats a page and no more."""


class Died(BaseException):
    """The process is gone: it writes nothing any more, not even that it failed."""


class Mortal:
    """Lets some transactions through, of both files, and none after them."""

    def __init__(self) -> None:
        self.left = 1_000_000
        self._whole = _sqlite.writing

    @contextmanager
    def writing(self, connection: apsw.Connection) -> Iterator[None]:
        self.left -= 1
        if self.left < 0:
            raise Died
        with self._whole(connection):
            yield


class World:
    """Bob's laptop, the team, and one copy of memory.db."""

    def __init__(self, folder: Path, mortal: Mortal) -> None:
        self.mortal = mortal
        self.copy = folder / "copy.db"
        self.team = FakeTeam()
        self.team.page = 2
        self.hidden: set[str] = set()
        self.harmed = False
        self.number = 0
        self.as_bob(lambda bob: run(bob, self.team))

    def as_bob(self, act: Callable[[Laptop], object], lives: int = 1_000_000) -> None:
        with Laptop(EMBEDDER) as bob:
            self.mortal.left = lives
            try:
                act(bob)
            except Died:
                pass
            finally:
                self.mortal.left = 1_000_000

    def text(self) -> str:
        self.number += 1
        return f"number {self.number}"

    def step(self, what: str, which: int, lives: int) -> None:
        self.harmed |= what in HARMFUL
        rows = sorted(self.team.rows)
        one = rows[which % len(rows)] if rows else ""
        match what:
            case "alice saves":
                self.team.write(memory(self.text()))
            case "alice erases" if one:
                self.team.bury(one)
            case "status" if one:
                _, row = self.team.rows[one]
                version = row.standing.version + 1
                judged = replace(row, standing=Standing(version, "suspect"))
                self.team.write(judged, row.author or "")
            case "bob saves":
                self.as_bob(lambda bob: save(bob, self.text()))
            case "bob syncs":
                self.as_bob(self.sync, lives)
            case "bob hides":
                self.as_bob(lambda bob: self.hide(bob, which), lives)
            case "bob erases":
                self.as_bob(lambda bob: self.erase(bob, which), lives)
            case "compact":
                self.team.compact()
            case "copy" if (data_dir() / "memory.db").exists():
                shutil.copy(data_dir() / "memory.db", self.copy)
            case "lose":
                self.lose()
            case "put back" if self.copy.exists():
                self.lose()
                shutil.copy(self.copy, data_dir() / "memory.db")

    def sync(self, bob: Laptop) -> None:
        done = run(bob, self.team)
        assert done.verified
        assert self.harmed or not done.reconciled, done.reconciled
        self.harmed = False

    def hide(self, bob: Laptop, which: int) -> None:
        if found := bob.store.list(BANK, 1000):
            one = found[which % len(found)].id
            bob.state.suppress(BANK, [one])
            self.hidden.add(one)
            bob.store.erase([one])

    def erase(self, bob: Laptop, which: int) -> None:
        shared = [each.id for each in bob.store.list(BANK, 1000) if each.id in self.team.rows]
        if shared:
            one = shared[which % len(shared)]
            self.team.forget(BANK, [one])
            bob.state.forget(BANK, [one], asked_here=True)
            bob.store.erase([one])

    @staticmethod
    def lose() -> None:
        for file in data_dir().glob("memory.db*"):
            file.unlink()

    def check(self, bob: Laptop) -> None:
        self.sync(bob)
        expected = {
            id_: replace(row, author=None if row.author == "user:bob" else row.author)
            for id_, (_, row) in self.team.rows.items()
            if id_ not in self.hidden
        }
        found: dict[str, Memory] = {each.id: each for each in bob.store.list(BANK, 1000)}
        assert found == expected
        pushes = len(self.team.pushes)
        done = run(bob, self.team)
        assert (done.verified, done.reconciled, done.gone_again, len(self.team.pushes)) == (
            True,
            "",
            0,
            pushes,
        )
        assert {each.id for each in bob.store.list(BANK, 1000)} == expected.keys()


STEPS = st.tuples(
    st.sampled_from(
        "alice saves,alice erases,status,bob saves,bob syncs,bob syncs,bob hides,bob erases,compact,copy,lose,put back".split(
            ","
        )
    ),
    st.integers(0, 7),
    st.one_of(st.just(1_000_000), st.integers(0, 20)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, min_size=4, max_size=14))
def test_the_next_plain_sync_makes_the_mirror_right(steps: list[tuple[str, int, int]]) -> None:
    mortal = Mortal()
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, pytest.MonkeyPatch.context() as patch:
        for module in (_store, _erase, _state):
            patch.setattr(module, "writing", mortal.writing)
        patch.delenv("XDG_DATA_HOME", raising=False)
        patch.delenv("XDG_STATE_HOME", raising=False)
        with mock.patch.dict(os.environ, HOME=folder):
            world = World(Path(folder), mortal)
            for what, which, lives in steps:
                world.step(what, which, lives)
            world.as_bob(world.check)
