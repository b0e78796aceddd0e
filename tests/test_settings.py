"""Every number that a process is told has a range, and a process that is told another one says so and ends."""

import dataclasses
import importlib
import os
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROCESSES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in ROOT.glob("services/**/main.py")
)


def numbers() -> list[tuple[str, type, dataclasses.Field[Any]]]:
    found = []
    for module in PROCESSES:
        config = importlib.import_module(module).Config
        kinds = typing.get_type_hints(config)
        for field in dataclasses.fields(config):
            found += [(module, kind, field) for kind in (int, float) if kind is kinds[field.name]]
    return found


def test_all_processes_are_looked_at() -> None:
    assert len(PROCESSES) == 6 and len(numbers()) >= 3


@pytest.mark.parametrize(("module", "kind", "field"), numbers(), ids=lambda value: getattr(value, "name", None))
def test_each_number_has_a_range_and_the_process_refuses_what_lies_outside(
    module: str, kind: type, field: dataclasses.Field[Any]
) -> None:
    least, most = field.metadata["range"]
    assert least <= field.default <= most
    name = field.metadata["env"]
    bare = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{ROOT / 'gen/python'}"}
    needed = {
        other.metadata["env"]: "x"
        for other in dataclasses.fields(importlib.import_module(module).Config)
        if other.default is dataclasses.MISSING
    }
    done = subprocess.run(
        [sys.executable, "-m", module],
        env=bare | needed | {name: str(10**12)}, cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    word = "whole number" if kind is int else "number"
    assert done.stderr.splitlines()[1:] == [f"{name} must be a {word} from {least} to {most}"]


def test_the_engine_says_what_it_lacks() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "services.index.engine.main"],
        env={"PATH": os.environ["PATH"], "TEAMLORE_LISTEN": "127.0.0.1:0"},
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr.splitlines()[1:]) == (2, ["TEAMLORE_ENGINE_DIR is not set"])
