"""A failure that comes with every try is logged once a minute, not with every try."""

import time
from collections.abc import Callable


class Complaints:
    """Counts failures by name, and says when one is to be logged."""

    def __init__(self, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._kept: dict[str, tuple[float, int]] = {}

    def due(self, failure: str) -> int:
        """How often it came since it was last logged, this time included; 0 while its minute lasts."""
        now = self._clock()
        until, count = self._kept.get(failure, (now, 0))
        self._kept[failure] = (until, count + 1) if now < until else (now + self._seconds, 0)
        return count + 1 if now >= until else 0

    def known(self, failure: str) -> bool:
        """Whether it came before."""
        return failure in self._kept
