"""`python -m tests.robustness`: the long run. Exit code 1 when anything was found.

MINUTES (30) says how long, SEED which run it is, REPORT where the report is written besides; ONLY names faults, by
commas, PAUSE (0.3) the longest rest of a writer in seconds. KEEP_HISTORY and KEEP_STACK leave what was written down,
and the stack's folder, for a look.
"""

import os
import random
import signal
import sys
import tempfile
from pathlib import Path

from rich.progress import Progress

from tests.robustness.harness import Settings, run


def main() -> int:
    """Runs, reports, and gives the exit code."""
    # Whoever ends it leaves no process and no mount behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(2**31))
    seconds = float(os.environ.get("MINUTES") or 30) * 60
    pause = float(os.environ.get("PAUSE") or 0.3)
    only = tuple(filter(None, os.environ.get("ONLY", "").split(",")))
    sql = Path(os.environ["SABOTAGE_SQL"]).read_text() if os.environ.get("SABOTAGE_SQL") else ""
    path = Path(os.environ.get("REPORT") or Path(tempfile.gettempdir()) / f"teamlore-robustness-{seed}.txt")
    print(f"seed {seed}: SEED={seed} makes the same choices again", flush=True)
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("disturbing", total=seconds)
        report = run(
            Settings(seconds, seed, pause, only, sql, lambda done: progress.update(task, completed=done))
        )
    path.write_text(f"{report}\n")
    print(f"{report}\nwritten to {path}", flush=True)
    return int(bool(report.found))


if __name__ == "__main__":
    sys.exit(main())
