"""Runs the tests that docs/promises.md names: `python tests/promises.py [NUMBER …]`. Exit 1 when a promise fails."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "promises.md"


def promises() -> dict[int, tuple[str, list[str]]]:
    """Number → sentence and tests."""
    found = {}
    for part in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]:
        number, _, rest = part.partition(". ")
        found[int(number)] = (rest.splitlines()[0], re.findall(r"^\* `([^`]+)`", rest, flags=re.M))
    return found


def main(named: list[str]) -> int:
    """Prints a line per promise; gives the exit code."""
    known = promises()
    wrong = [word for word in named if not word.isdigit() or int(word) not in known]
    if wrong:
        print(f"there is no promise {wrong[0]}: choose from {min(known)} to {max(known)}", file=sys.stderr)
        return 2
    failed = False
    for number in [int(word) for word in named] or sorted(known):
        sentence, tests = known[number]
        if not tests:
            failed |= bool(named)
            print(f"{number:2d}  not yet  {sentence}", flush=True)
            continue
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *tests],
            capture_output=True,
            text=True,
            cwd=PAGE.parents[1],
        )
        failed |= done.returncode != 0
        print(f"{number:2d}  {'kept' if done.returncode == 0 else 'BROKEN':7}  {sentence}", flush=True)
        if done.returncode != 0:
            print("\n".join(done.stdout.splitlines()[-15:]))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
