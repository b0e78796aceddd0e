"""No service of a running deployment starts on another key store than its own, or makes one."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kit.sealing import KeyStore
from stack import topology
from stack.ports import free_port
from stack.topology import Settings
from tests.integration.conftest import ROOT, RunningStack


@pytest.mark.parametrize("name", topology.SERVICES)
def test_a_service_with_another_key_store_says_so_and_ends(
    stack: RunningStack, name: str, tmp_path: Path
) -> None:
    settings = Settings(stack.data, root=ROOT)
    facts = replace(stack.facts, ports={**stack.facts.ports, name: free_port()})
    env = topology.python_env(settings) | topology.service_env(settings, facts, name)
    other = tmp_path / "other.db"
    KeyStore(other, make=True).close()
    for path in (other, tmp_path / "mistyped.db", tmp_path / "no folder" / "keystore.db"):
        done = subprocess.run(
            [sys.executable, "-m", f"services.{name}.main"],
            env={"PATH": os.environ["PATH"]} | env | {"TEAMLORE_KEYSTORE": str(path)},
            cwd=ROOT, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 1
        line = done.stderr.splitlines()[-1]
        assert line.startswith(f"{name} cannot start: TEAMLORE_KEYSTORE={path}: "), done.stderr
        assert path == other or "no such file" in line
    assert {found.name for found in tmp_path.iterdir()} <= {"other.db", "other.db-wal", "other.db-shm"}
