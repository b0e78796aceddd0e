"""A run is what was asked for, and one that proves nothing says so."""

import asyncio
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.robustness.__main__ import asked
from tests.robustness.faults import FAULTS, Faults, Unreachable
from tests.robustness.history import Recorder, read
from tests.robustness.processes import MODULES
from tests.robustness.proxy import Proxy
from tests.robustness.report import Report, Settings, unproven
from tests.robustness.sabotage import __main__ as sabotage


def test_what_is_asked_for_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the place of the report is tried
    told = {"MINUTES": "1.5", "SEED": "7", "PAUSE": "20", "ONLY": " slow commit, disk full,", "TEAMLORE_X": "y"}
    settings, path = asked([], told)
    assert settings == Settings(90, 7, 20, ("slow commit", "disk full"), "")
    assert path == tmp_path / "teamlore-robustness-7.txt"
    settings, _ = asked([], {"ONLY": "", "SEED": ""})
    assert (settings.seconds, settings.only) == (1800, ())


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"MINUTES": "abc"}, "MINUTES must be a number"),
        ({"MINUTES": "nan"}, "MINUTES must be a number from 0 to"),
        ({"MINUTES": "-5"}, "MINUTES must be a number from 0 to"),
        ({"SEED": "x"}, "SEED must be a whole number"),
        ({"SEED": "-1"}, "SEED must be a whole number from 0 to"),
        ({"PAUSE": "x"}, "PAUSE must be a number"),
        ({"MINUTE": "5"}, "did you mean MINUTES?"),
        ({"ONLY": "kil"}, "ONLY: there is no fault 'kil'; there are: auth stopped, backend stopped,"),
        ({"ONLY": "slow commit,kill -9"}, "there is no fault 'kill -9'"),
        ({"ONLY": " , "}, "ONLY: no fault is named"),
        ({"REPORT": "/no/such/dir/r.txt"}, "REPORT: /no/such/dir/r.txt cannot be written: No such file"),
        ({"REPORT": "/"}, "REPORT: / cannot be written: Is a directory"),
        ({"SABOTAGE_SQL": "/no/such.sql"}, "SABOTAGE_SQL: /no/such.sql cannot be read"),
    ],
)
def test_what_makes_no_run_is_refused_in_words(
    environ: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        asked([], environ)
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_words_are_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    for words, code, said in ((["--help"], 0, "MINUTES (30)"), (["5"], 2, "unrecognized arguments: 5")):
        with pytest.raises(SystemExit) as ended:
            asked(words, {})
        whole = capsys.readouterr()
        assert ended.value.code == code and said in whole.out + whole.err
    assert sabotage.main(["kil"]) == 2 and "head-lock-removed" in capsys.readouterr().err


def test_a_report_that_is_there_stays_until_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("older")
    asked([], {"REPORT": str(tmp_path / "r.txt")})
    assert (tmp_path / "r.txt").read_text() == "older"


def test_a_run_that_did_nothing_is_no_success() -> None:
    report = Report(Settings(1, 1))
    assert [fault.where for fault in unproven(report, ["slow commit"])] == [
        "no write was acknowledged",
        "never done: slow commit",
    ]
    report.found = unproven(report, [])
    assert "nothing found" not in str(report) and "no write was acknowledged" in str(report)
    report.commits, report.faults["slow commit"] = 1, 1
    assert unproven(report, ["slow commit"]) == []
    assert [fault.where for fault in unproven(report, ["disk full", "slow commit"])] == ["never done: disk full"]


def faults(folder: Path, **parts: Any) -> Faults:
    nothing: dict[str, Any] = {
        "stack": None, "random": random.Random(1), "banks": [], "proxies": [], "watchers": [], "disk": None,
    }  # fmt: skip
    return Faults(**(nothing | {"recorder": Recorder(folder / "faults.jsonl", "harness")} | parts))


async def test_a_fault_that_hit_nothing_was_not_done(tmp_path: Path) -> None:
    mine = faults(tmp_path, proxies=[Proxy("127.0.0.1:1")])
    assert await mine.do("connections cut") is False
    gone = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await gone.wait()
    with pytest.raises(Unreachable):
        await asyncio.wait_for(mine._stop_for(gone.pid, 60), 10)
    assert read(tmp_path).faults == []


async def test_a_service_that_is_away_is_neither_killed_nor_stopped(tmp_path: Path) -> None:
    class Nowhere:
        data = tmp_path / "of-no-process"

        def address(self, name: str) -> str:
            return "127.0.0.1:1"

    mine = faults(tmp_path, stack=Nowhere())
    for name in FAULTS:
        if name.partition(" ")[0] in MODULES or name.rpartition(" ")[2] in MODULES:
            assert await mine.do(name) is False, name


def test_a_full_disk_needs_a_disk(tmp_path: Path) -> None:
    assert set(faults(tmp_path, disk=tmp_path).names()) == set(FAULTS)
    assert set(FAULTS) - set(faults(tmp_path).names()) == {"disk full"}
