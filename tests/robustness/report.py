"""What a run is told, and what it says when it is through."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.robustness.checker import Fault


@dataclass(frozen=True)
class Settings:
    """What a run is told."""

    seconds: float
    seed: int
    pause: float = 0.3
    """Longest rest of a writer between two calls, in seconds."""
    only: tuple[str, ...] = ()
    """Faults to do; none named means all."""
    sql: str = ""
    """Statements run on the private database before anyone works: a sabotage."""


@dataclass
class Report:
    """What a run did and what was found."""

    settings: Settings
    operations: Counter[str] = field(default_factory=Counter)
    unanswered: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    commits: int = 0
    """Write calls that were acknowledged and changed something."""
    changes: int = 0
    """Numbers that the banks' heads have reached."""
    watched: int = 0
    """Changes that watchers wrote down."""
    laptops: Counter[str] = field(default_factory=Counter)
    """What laptops were told, and why they compared all that they have."""
    found: list[Fault] = field(default_factory=list)

    def __str__(self) -> str:
        """The report in words."""
        named, some = Counter(fault.kind for fault in self.found), dict[str, list[str]]()
        for fault in self.found:
            some.setdefault(fault.kind, []).append(f"  {fault.kind}: {fault.where}")
        lines = [
            f"seed {self.settings.seed}, {self.settings.seconds:g} s",
            f"commits {self.commits}, changes {self.changes}, changes seen by watchers {self.watched}",
            f"operations {self.operations.total()}, of them without an answer {self.unanswered}",
            *(f"  {name}: {count}" for name, count in sorted(self.operations.items())),
            *(f"  on laptops, {name}: {count}" for name, count in sorted(self.laptops.items())),
            f"faults done {self.faults.total()}",
            *(f"  {name}: {count}" for name, count in sorted(self.faults.items())),
            "nothing found" if not self.found else f"FOUND {dict(named)}",
            *(line for each in some.values() for line in each[:10]),
        ]
        return "\n".join(lines)


def unproven(report: Report, asked: Iterable[str]) -> list[Fault]:
    """What a run lacks to have proved anything: a write that was acknowledged, and each fault that it was to do."""
    found = [] if report.commits else [Fault("no proof", "no write was acknowledged")]
    return found + [Fault("no proof", f"never done: {name}") for name in asked if not report.faults[name]]
