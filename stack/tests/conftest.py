"""Folders and clusters for the tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack.postgres import Postgres


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder every user can pass, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="teamlore-stack-")).resolve()
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def postgres(folder: Path) -> Iterator[Postgres]:
    """A cluster that is not started yet."""
    server = Postgres(folder / "pg", options={"shared_buffers": "16MB"}, relocation_root=folder / "moved")
    yield server
    server.destroy()


@pytest.fixture
def as_root() -> None:
    """Skip what only root can try."""
    if os.geteuid() != 0:
        pytest.skip("needs root")


def alive(pid: int) -> bool:
    """Tell whether process `pid` runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
