"""A home, a file and a store for each test of the laptop."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # what these tests share lies beside them

from fake_team import FakeEmbedder, FakeTeam
from laptop import EMBEDDER
from teamlore_client._laptop import Laptop
from teamlore_client._store import Store


@pytest.fixture(autouse=True)  # no test may write into the user's own
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "TEAMLORE_TEAM_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder / "memory.db"


@pytest.fixture
def store(file: Path) -> Iterator[Store]:
    with Store(file, EMBEDDER) as opened:
        yield opened


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
