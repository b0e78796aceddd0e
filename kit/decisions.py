"""Every access decision, counted in Postgres: a denial before it is answered, what was granted every few seconds.

Rows hold a minute, a method, numbers of principals, reasons and banks; no text, no name and no secret.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Mapping
from datetime import datetime, timezone

from kit.access import Caller
from kit.database import Database
from kit.errors import from_driver

log = logging.getLogger("teamlore.decisions")
FLUSH_SECONDS = 5.0
# A refusal is answered after this time whatever the database does; it stays in memory until it is written.
ANSWER_SECONDS, WRITE_SECONDS = 1.0, 5.0
# A caller chooses what it is denied: beyond this many banks a minute, its further ones are counted together.
BANKS_A_MINUTE, OTHER_BANKS = 200, "*"
_BANK = re.compile(r"[A-Za-z0-9._:@-]{1,255}")
# A token that somebody sent where a bank's id belongs has the form of an id.
_CREDENTIAL = re.compile(r"tlk_[A-Za-z0-9_-]{16}|eyJ[A-Za-z0-9_-]{8}")
_COUNT = "select compliance.count_decisions($1, $2, $3, $4, $5, $6, $7, $8)"

# Refusals that say no to who is calling; `NOT_FOUND` is one only while access is decided.
DENIALS = frozenset(
    (
        "CREDENTIAL_MISSING", "CREDENTIAL_INVALID", "CREDENTIAL_EXPIRED", "CREDENTIAL_REVOKED", "PERMISSION_DENIED",
        "ACCESS_REVOKED", "PERSON_REQUIRED",
    )
)  # fmt: skip

_Key = tuple[int, str, str, str, str, str]
"""Minute since 1970, method, principal, token, reason (empty: granted), bank."""


class Decisions:
    """Counts what this process decides. One statement is under way at a time and carries all that wait for it."""

    def __init__(self, database: Database, service: str) -> None:
        self._database = database
        self._service = service
        self._granted: dict[_Key, int] = {}
        self._denied: dict[_Key, int] = {}
        self._banks: dict[str, set[str]] = {}
        self._banks_minute = 0
        self._wake = asyncio.Event()
        self._next = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())

    def granted(self, method: str, caller: Caller) -> None:
        """Counts a call that may go on."""
        key = (int(time.time()) // 60, method, caller.principal, caller.token_id, "", "")
        self._granted[key] = self._granted.get(key, 0) + 1

    async def denied(self, method: str, caller: Caller | None, reason: str, bank: str) -> None:
        """Counts a refusal and returns once it is written; never raises for a database that is away."""
        self.note_denied(method, caller, reason, bank)
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await asyncio.shield(self._next)

    def note_denied(self, method: str, caller: Caller | None, reason: str, bank: str) -> None:
        """Counts a refusal, to be written with the next one that waits or within seconds."""
        principal, token_id = (caller.principal, caller.token_id) if caller is not None else ("", "")
        minute = int(time.time()) // 60
        key = (minute, method, principal, token_id, reason, self._bank(minute, principal, bank))
        self._denied[key] = self._denied.get(key, 0) + 1

    async def stop(self) -> None:
        """Writes what is left and ends."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        # A second limit: a driver that is cut off waits for a server that hangs before it gives its connection back.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WRITE_SECONDS + 1):
                await self._write(all_of_it=True)

    def _bank(self, minute: int, principal: str, bank: str) -> str:
        if _BANK.fullmatch(bank) is None or _CREDENTIAL.search(bank):
            return ""
        if minute != self._banks_minute:
            self._banks, self._banks_minute = {}, minute
        seen = self._banks.setdefault(principal, set())
        if bank not in seen and len(seen) >= BANKS_A_MINUTE:
            return OTHER_BANKS
        seen.add(bank)
        return bank

    async def _run(self) -> None:
        flush_at = time.monotonic() + FLUSH_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, flush_at - time.monotonic())):
                    await self._wake.wait()
            due = time.monotonic() >= flush_at
            if due:
                flush_at = time.monotonic() + FLUSH_SECONDS
            await self._write(all_of_it=due)

    async def _write(self, all_of_it: bool) -> None:
        self._wake.clear()
        denied, self._denied = self._denied, {}
        granted: dict[_Key, int] = {}
        if all_of_it:
            granted, self._granted = self._granted, {}
        written, self._next = self._next, asyncio.get_running_loop().create_future()
        try:
            if denied or granted:
                async with asyncio.timeout(WRITE_SECONDS):
                    await self._count({**denied, **granted})
        except asyncio.CancelledError:
            self._keep(denied, granted)
            raise
        except Exception as error:
            if from_driver(error) is None:
                log.error("a defect: decisions cannot be counted", exc_info=error)
            else:
                self._keep(denied, granted)
        finally:
            written.set_result(None)

    def _keep(self, denied: Mapping[_Key, int], granted: Mapping[_Key, int]) -> None:
        """Puts back what may not have been written: rather counted twice than lost."""
        for held, back in ((self._denied, denied), (self._granted, granted)):
            for key, count in back.items():
                held[key] = held.get(key, 0) + count

    async def _count(self, batch: Mapping[_Key, int]) -> None:
        minutes, methods, principals, tokens, reasons, banks = zip(*batch, strict=True)
        await self._database.execute_raw(
            _COUNT,
            self._service,
            [datetime.fromtimestamp(60 * minute, timezone.utc) for minute in minutes],
            methods,
            principals,
            tokens,
            reasons,
            banks,
            list(batch.values()),
        )
