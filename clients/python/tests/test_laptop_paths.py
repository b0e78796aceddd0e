"""The folders of a laptop follow the home and are private."""

from pathlib import Path

import pytest
from teamlore_client import _paths


@pytest.mark.parametrize(
    ("made", "where"),
    [
        (_paths.config_dir, ".config/teamlore"),
        (_paths.data_dir, ".local/share/teamlore"),
        (_paths.state_dir, ".local/state/teamlore"),
    ],
)
def test_folders_are_private_and_below_the_home(home: Path, made: object, where: str) -> None:
    assert callable(made)
    assert made() == home / where
    assert (home / where).stat().st_mode & 0o777 == 0o700
    (home / where).chmod(0o755)
    made()
    assert (home / where).stat().st_mode & 0o777 == 0o700


def test_xdg_counts_inside_the_home_only(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "elsewhere"))
    assert _paths.data_dir() == home / "elsewhere/teamlore"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "of-another-user"))
    assert _paths.data_dir() == home / ".local/share/teamlore"


def test_two_homes_are_two_laptops(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = _paths.state_dir()
    monkeypatch.setenv("HOME", str(tmp_path / "bob"))
    assert _paths.state_dir() == tmp_path / "bob/.local/state/teamlore" != first
