"""Figures: printed as a table, kept in bench/results.json beside those of other runs."""

import json
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
