"""What has a stated end goes in the background: an issuer's word about groups, ended tokens, old counts."""

import asyncio
import logging
import time
from typing import Protocol

from kit import audit
from kit.errors import from_driver

log = logging.getLogger("teamlore.auth")
GROUPS_ENDED, SWEPT = "access.issuer_groups_ended", "access.records_swept"
STEP_SECONDS = 30.0
HOUR_SECONDS = 3600.0
AT_ONCE = 1000


class Records(Protocol):
    """What the sweep needs of the store."""

    async def end_issuer_groups(self, seconds: float) -> int:
        """Takes principals out of groups that the issuer has not named for so long; counts them."""
        ...

    async def sweep(self, days: int, most: int) -> int:
        """Deletes of each kind at most `most` rows that ended so many days ago; counts the kind with the most."""
        ...


class Sweep:
    """Ends what is past its time. Replicas may sweep beside each other."""

    def __init__(self, store: Records, groups_seconds: float, retention_days: int) -> None:
        self._store = store
        self._groups_seconds = groups_seconds
        self._days = retention_days
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins: groups every half minute, rows once an hour."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ends."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def groups(self) -> int:
        """Takes out whom the issuer has not named in time; counts them. Raises what the store raises."""
        with audit.calling(audit.CallContext(GROUPS_ENDED, "service:auth", "service:auth")):
            return await self._store.end_issuer_groups(self._groups_seconds)

    async def rows(self) -> None:
        """Deletes all that ended longer ago than it is kept, some at a time. Raises what the store raises."""
        while True:
            with audit.calling(audit.CallContext(SWEPT, "service:auth", "service:auth")):
                if await self._store.sweep(self._days, AT_ONCE) < AT_ONCE:
                    return

    async def _run(self) -> None:
        swept_at = float("-inf")
        while True:
            try:
                await self.groups()
                if time.monotonic() - swept_at >= HOUR_SECONDS:
                    await self.rows()
                    swept_at = time.monotonic()
            except Exception as error:
                refusal = from_driver(error)
                log.warning(
                    "old records are not swept: %s", refusal.reason if refusal else "a defect", exc_info=error
                )
            await asyncio.sleep(STEP_SECONDS)
