"""What all measurements share: how they are asked, and where their figures go.

Figures are printed as a table and kept in bench/results.json beside those of other runs.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

OUT = Path(__file__).with_name("results.json")


@dataclass(frozen=True)
class Result:
    """One figure: a ratio in one run, or a rate beside what it is measured against."""

    name: str
    value: float
    unit: str
    against: str


MOST = 10_000_000


def command(doc: str | None) -> argparse.ArgumentParser:
    """Reads a measurement's arguments: --help says what it is; what it does not know ends it with code 2."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def whole(raw: str) -> int:
    """A number of things as an argument. Raises argparse.ArgumentTypeError."""
    if not (raw.isascii() and raw.isdecimal() and len(raw) < 10 and 1 <= int(raw) <= MOST):
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {MOST}")
    return int(raw)


def amount(name: str, default: int) -> int:
    """How many, where this environment variable makes a measurement shorter or longer. Ends the process with code 2."""
    try:
        return whole(os.environ.get(name) or str(default))
    except argparse.ArgumentTypeError as error:
        print(f"{name} {error}", file=sys.stderr)
        sys.exit(2)


def report(results: list[Result], console: Console) -> None:
    """Prints the figures and writes them over those of the same names."""
    table = Table("name", "value", "unit", "against")
    for result in results:
        value = f"{result.value:,.2f}" if result.value < 100 else f"{result.value:,.0f}"
        table.add_row(result.name, value, result.unit, result.against)
    console.print(table)
    kept = json.loads(OUT.read_text())["results"] if OUT.exists() else []
    names = {result.name for result in results}
    kept = [old for old in kept if old["name"] not in names] + [asdict(result) for result in results]
    OUT.write_text(json.dumps({"results": kept}, indent=2) + "\n")
