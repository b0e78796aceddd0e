"""The short form of `make robustness`: every fault is done at least once to a real stack under load, and nothing is found."""

import os
import random

import pytest

from tests.robustness.harness import run
from tests.robustness.report import Settings

SECONDS = float(os.environ.get("ROBUSTNESS_SECONDS") or 45)


# On a machine that does much else besides; alone it takes a minute and a half.
@pytest.mark.timeout(900)
def test_nothing_acknowledged_is_lost_and_nothing_is_skipped() -> None:
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(2**31))
    print(f"SEED={seed}")
    report = run(Settings(SECONDS, seed, pause=0.2))
    print(report)
    assert not report.found, str(report)
    # It was a run at all: everybody did everything, and each fault was done.
    asked = ["push", "forget", "erase", "status", "add", "sync", "leave", "join"]
    asked.append("push of what must be refused or is there")
    assert all(report.operations[what] for what in asked), str(report)
    assert len(report.faults) >= 18 and report.faults["kill -9 of postgres"], str(report)
    assert report.watched > report.commits
