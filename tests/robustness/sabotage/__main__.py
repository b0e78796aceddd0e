"""`python -m tests.robustness.sabotage [NAME…]`: breaks one guard after the other and sees that the harness notices.

Each is done to a copy of the tree, or by SQL on the private database of a run, so nothing has to be restored. Exit code
0 when every sabotage turned the checker red for a reason that fits it, 1 when one passed unnoticed, 2 when there is none
of a name that was given.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
RUN = ("-m", "tests.robustness")


@dataclass(frozen=True)
class Sabotage:
    """One guard taken away, what is run then, and words of which the output must have one."""

    red: tuple[str, ...]
    edits: tuple[tuple[str, str, str], ...] = ()
    """(file, text there, text instead)."""
    sql: str = ""
    """A file beside this one."""
    command: tuple[str, ...] = RUN
    only: str = ""
    """Faults that are done meanwhile, by commas; empty for all."""
    env: Mapping[str, str] = field(default_factory=dict)
    """More of what `python -m tests.robustness` reads."""


PULL = "clients/python/teamlore_client/_pull.py"
SABOTAGES = {
    "head-lock-removed": Sabotage(
        ("gap:", "acknowledged write missing:", "out of order:"),
        sql="no_head_lock.sql",
        only="slow commit,backend stopped",
    ),
    "foreign-key-dropped": Sabotage(
        ("gap:", "acknowledged write missing:"), sql="no_foreign_key.sql", only="kill -9 of a watcher"
    ),
    "bookmark-sent-early": Sabotage(
        ("bookmark early:",),
        edits=(
            (
                "services/feed/watching.py",
                "            yield page\n            marked",
                "            yield page.end\n            yield page\n            marked",
            ),
        ),
        only="kill -9 of a watcher",
    ),
    "cursor-saved-before-apply": Sabotage(
        ("copies differ:",),
        # The pause only makes the window wide enough to be hit within seconds.
        edits=(
            (
                PULL,
                "    erase(laptop, bank, gone, counts)\n    pulled",
                "    _tie.note(laptop, bank, str(before), str(place))\n"  # without it the next sync would notice
                "    laptop.state.apply_page(bank, Page(str(place), live, frozenset(live), gone))\n"
                "    __import__('time').sleep(1)\n"
                "    erase(laptop, bank, gone, counts)\n    pulled",
            ),
        ),
        only="long transaction",
        env={"PAUSE": "20", "MINUTES": "1.5"},
    ),
    "nonce-ignored": Sabotage(
        ("FAILED tests/robustness/test_restore.py",),
        edits=(
            ("services/feed/cursors.py", "if cursor.seq > 0 and cursor.nonce != history.nonce:", "if False:"),
        ),
        command=("-m", "pytest", "-q", "tests/robustness/test_restore.py", "-k", "nobody_announced"),
    ),
}


def sabotaged(name: str, folder: Path) -> bool:
    """Whether the harness was red, for a reason that fits, on a copy of the tree with this sabotage."""
    case = SABOTAGES[name]
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for word in filter(None, listed.split("\0")):
        if (ROOT / word).is_file():
            (folder / word).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / word, folder / word)
    for file, old, new in case.edits:
        text = (folder / file).read_text()
        assert text.count(old) == 1, f"{name}: {file} no longer has the line that is to be broken"
        (folder / file).write_text(text.replace(old, new))
    path = ":".join(str(folder / part) for part in ("", "gen/python", "clients/python", "embedder"))
    env = os.environ | {"PYTHONPATH": path, "MINUTES": "0.5", "ONLY": case.only, **case.env}
    if case.sql:
        env["SABOTAGE_SQL"] = str(HERE / case.sql)
    done = subprocess.run(
        [sys.executable, *case.command], cwd=folder, env=env, capture_output=True, text=True
    )
    red = done.returncode == 1 and any(word in done.stdout for word in case.red)
    tail = "\n".join(
        line[:200] for line in done.stdout.splitlines() if line.startswith(("FOUND", "  ")) or not red
    )
    print(
        f"{name}: {'seen' if red else 'NOT SEEN'}\n{tail[-1500:]}{'' if red else done.stderr[-3000:]}",
        flush=True,
    )
    return red


def main(names: list[str]) -> int:
    """Does those named, or all; exit code 2 where one is not there."""
    unknown = [name for name in names if name not in SABOTAGES]
    if unknown:
        print(f"there is no sabotage {unknown[0]!r}; there are: {', '.join(SABOTAGES)}", file=sys.stderr)
        return 2
    unnoticed = []
    for name in names or SABOTAGES:
        with tempfile.TemporaryDirectory(prefix="teamlore-sabotage-") as folder:
            Path(folder).chmod(0o755)
            if not sabotaged(name, Path(folder)):
                unnoticed.append(name)
    print(f"unnoticed: {', '.join(unnoticed)}" if unnoticed else "every sabotage was seen")
    return int(bool(unnoticed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
