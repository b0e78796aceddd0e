"""`python -m tests.robustness`: the long run, told by its environment.

MINUTES (30) says how long, SEED which run it is, REPORT where the report is written besides; ONLY names faults, by
commas, PAUSE (0.3) the longest rest of a writer in seconds. KEEP_HISTORY and KEEP_STACK leave what was
written down, and the stack's folder, for a look; SABOTAGE_SQL is a file of statements that break the private database
first.

Exit codes: 0 nothing was found; 1 something was, the run proved nothing, or its report could not be kept; 2 a setting is
wrong, and nothing was run.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from kit.config import OURS, ConfigError, load, setting
from tests.robustness.faults import FAULTS
from tests.robustness.harness import run
from tests.robustness.report import Settings

LONGEST_MINUTES = 7 * 24 * 60


@dataclass(frozen=True)
class Asked:
    """The settings of a run, as they come."""

    minutes: float = setting("MINUTES", 30.0, minimum=0, maximum=LONGEST_MINUTES)
    seed: int | None = setting("SEED", None, minimum=0, maximum=2**31 - 1)
    pause: float = setting("PAUSE", 0.3, minimum=0, maximum=3600)
    only: str = setting("ONLY", "")
    sql: str = setting("SABOTAGE_SQL", "")
    report: str = setting("REPORT", "")


def asked(arguments: Sequence[str], environ: Mapping[str, str]) -> tuple[Settings, Path]:
    """What to run, and where the report goes. Ends the process with code 2, in plain words, where either is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.robustness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(arguments)
    try:
        # What begins with TEAMLORE_ is for the processes of the stack, which know their own.
        told = load(Asked, {name: value for name, value in environ.items() if not name.startswith(OURS)})
        only = _faults(told.only)
        sql = Path(told.sql).read_text() if told.sql else ""
    except ConfigError as error:
        parser.error(str(error))
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"SABOTAGE_SQL: {told.sql} cannot be read: {error}")
    seed = random.SystemRandom().randrange(2**31) if told.seed is None else told.seed
    path = Path(told.report or Path(tempfile.gettempdir()) / f"teamlore-robustness-{seed}.txt")
    try:
        with path.open("a"):
            pass
    except (OSError, ValueError) as error:
        parser.error(f"REPORT: {path} cannot be written: {getattr(error, 'strerror', error)}")
    return Settings(told.minutes * 60, seed, told.pause, only, sql), path


def _faults(raw: str) -> tuple[str, ...]:
    named = tuple(filter(None, map(str.strip, raw.split(","))))
    unknown = [name for name in named if name not in FAULTS]
    if unknown or (raw and not named):
        said = f"there is no fault {unknown[0]!r}" if unknown else "no fault is named"
        raise ConfigError(f"ONLY: {said}; there are: {', '.join(sorted(FAULTS))}")
    return named


def main() -> int:
    """Runs, reports, and gives the exit code."""
    # Whoever ends it leaves no process and no mount behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings, path = asked(sys.argv[1:], os.environ)
    print(f"seed {settings.seed}: SEED={settings.seed} makes the same choices again", flush=True)
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("disturbing", total=settings.seconds)
        report = run(settings, lambda done: progress.update(task, completed=done))
    # A place may be lost in half an hour; what was found is not.
    print(report, flush=True)
    try:
        path.write_text(f"{report}\n")
    except OSError as error:
        print(f"the report cannot be written to {path}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"written to {path}", flush=True)
    return int(bool(report.found))


if __name__ == "__main__":
    sys.exit(main())
