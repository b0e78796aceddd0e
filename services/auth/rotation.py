"""Keeps the signing keys in time: makes the next one, retires the old ones, and holds the ring that signs."""

import asyncio
import logging
import time
from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from kit import audit
from kit.access_state import AccessState
from kit.errors import LOST
from kit.sealing import KeyMissing
from services.auth import keys
from services.auth.keys import KeyRing, Schedule
from services.auth.store import Store

log = logging.getLogger("teamlore.auth")
MADE, RETIRED = "auth.signing_key_made", "auth.signing_key_retired"
_STEP_SECONDS = 0.25
_RELOAD_SECONDS = 5.0


def job(name: str) -> audit.CallContext:
    """One step of this task, as its audit row tells it."""
    return audit.CallContext(name, "service:auth", "service:auth")


class Rotation:
    """The keys of one process. Any number of them on one database agree, by its clock and under its locks."""

    def __init__(self, store: Store, secret: bytes, schedule: Schedule) -> None:
        self._store = store
        self._secret = secret
        self._schedule = schedule
        self._ring: KeyRing | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, access: AccessState) -> None:
        """Makes the first key where there is none, reads the ring and goes on in the background."""
        await self.tend()
        self._task = asyncio.create_task(self._run(access))

    async def stop(self) -> None:
        """Ends the background task."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def signer(self) -> tuple[str, Ed25519PrivateKey]:
        """Id and key that sign now. Raises Refusal DEPENDENCY_UNAVAILABLE when the keys were not read for long."""
        assert self._ring is not None, "started"
        return self._ring.signer()

    async def public_keys(self) -> Mapping[str, Ed25519PublicKey]:
        """The published keys. Read anew, so that whoever saw the access head move sees what moved it."""
        try:
            return (await self.load()).public
        except LOST:
            # Auth's callers go on with what is known while the database is away.
            assert self._ring is not None, "started"
            return self._ring.public

    async def load(self) -> KeyRing:
        """Reads the ring. Raises KeyMissing where the key store is not the one of this database."""
        stored, now = await self._store.signing_keys()
        self._ring = keys.open_ring(self._secret, stored, now)
        return self._ring

    async def tend(self) -> None:
        """Makes the next key and retires old ones where that is due; several processes do it once."""
        stored, now = await self._store.signing_keys()
        if self._schedule.next_start(stored, now) is not None:
            with audit.calling(job(MADE)):
                await self._store.make_signing_key(
                    self._schedule.next_start, lambda start: keys.make_key(self._secret, start)
                )
        if self._schedule.gone(stored, now):
            with audit.calling(job(RETIRED)):
                await self._store.retire_signing_keys(self._schedule.gone)
        await self.load()

    async def _run(self, access: AccessState) -> None:
        version, done = access.version, time.monotonic()
        while True:
            await asyncio.sleep(_STEP_SECONDS)
            if access.version == version and time.monotonic() - done < _RELOAD_SECONDS:
                continue
            version, done = access.version, time.monotonic()
            try:
                await self.tend()
            except LOST:
                continue
            except KeyMissing:
                log.error("a signing key was sealed under another key store than this process has")
