"""Ctrl-C at any import of the command's start: exit code 130, and nothing is printed."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from laptop import PACKAGE_ROOT

CODE = """
import atexit, importlib, os, signal, sys
atexit.register(print, "all that was open is closed")
wanted = sys.argv[1]
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
entry, _, function = sys.argv[2].partition(":")
sys.argv[1:] = sys.argv[3:]
getattr(importlib.import_module(entry), function)()
"""
ENTRY = tomllib.loads((PACKAGE_ROOT / "pyproject.toml").read_text())["project"]["scripts"]["teamlore"]


def interrupted(home: Path, module: str, *words: str) -> tuple[int, bytes, bytes]:
    done = subprocess.run(
        [sys.executable, "-c", CODE, module, ENTRY, *words],
        env={"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE_ROOT)},
        cwd=home,
        capture_output=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("json", [[], ["--json"]])
@pytest.mark.parametrize("module", ["typer", "teamlore_client.cli", "teamlore_client._lazy"])
def test_ctrl_c_while_the_command_loads_ends_it_without_a_word(home: Path, module: str, json: list[str]) -> None:
    assert interrupted(home, module, "team", "status", *json) == (130, b"", b"")


@pytest.mark.parametrize("json", [[], ["--json"]])
@pytest.mark.parametrize("module", ["teamlore_client._cli_team", "apsw", "teamlore_client._sync"])
def test_ctrl_c_once_it_is_at_work_lets_it_close_what_is_open(home: Path, module: str, json: list[str]) -> None:
    assert interrupted(home, module, "team", "status", *json) == (130, b"all that was open is closed\n", b"")
