"""A measurement says what it is when it is asked, and does nothing that it was not asked for."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from bench.report import MOST, amount

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = sorted(path.stem for path in ROOT.glob("bench/*.py") if "def main()" in path.read_text(encoding="utf-8"))


PROGRAM = """
import importlib, sys
for name in sys.argv[1:]:
    sys.argv = [name, "--help"]
    try:
        importlib.import_module(f"bench.{name}").main()
    except SystemExit as ended:
        assert ended.code == 0
"""


def given(name: str, *words: str) -> None:
    """Ends as a command does that these words are given to, which are known to be read first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *words])
        importlib.import_module(f"bench.{name}").main()


def test_each_tells_what_it_is_and_takes_no_word_that_it_does_not_know() -> None:
    # In a process of its own, and one for all: what does not read its arguments starts to measure.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *COMMANDS], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    for name in COMMANDS:
        assert f"`make bench-{name.replace('_', '-')}`: " in done.stdout, name
        with pytest.raises(SystemExit) as ended:
            given(name, "--no-such-word")
        assert ended.value.code == 2


def test_what_names_no_amount_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for raw in ("x", "0", "-5", "nan", "1.5", " 7", "\u0663", str(MOST + 1), "9" * 5000):
        monkeypatch.setenv("SOME_ROUNDS", raw)
        with pytest.raises(SystemExit) as ended:
            amount("SOME_ROUNDS", 7)
        said = f"SOME_ROUNDS must be a whole number from 1 to {MOST}\n"
        assert (ended.value.code, capsys.readouterr().err) == (2, said), raw
    for raw, found in (("", 7), ("1", 1), (str(MOST), MOST)):
        monkeypatch.setenv("SOME_ROUNDS", raw)
        assert amount("SOME_ROUNDS", 7) == found


@pytest.mark.parametrize("words", [("--parts", "sped"), ("--parts", ""), ("--rounds", "0"), ("--pairs", "x")])
def test_a_part_that_is_not_there_is_no_measurement(
    words: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        given("near_duplicates", *words)
    assert ended.value.code == 2 and f"argument {words[0]}: " in capsys.readouterr().err
