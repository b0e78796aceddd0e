"""The public halves of auth's signing keys, as a service holds them."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from kit.errors import Refusal

_READ_SECONDS = 2.0

KeyFetcher = Callable[[], Awaitable[Mapping[str, Ed25519PublicKey]]]


class KeyCache:
    """Public keys by id. A key is published minutes before its first use, so reading them twice a minute suffices.

    Keeps the last good ones when a read fails; an unknown id costs one read per `refresh` seconds at most, one a second
    while auth is away. A moved access state is read at once, for it may mean that a key leaked and was retired.
    """

    def __init__(self, fetch: KeyFetcher, refresh: float = 30.0) -> None:
        self._fetch = fetch
        self._refresh = refresh
        self._keys: Mapping[str, Ed25519PublicKey] = {}
        self._version = 0
        self._read_at = float("-inf")
        self._asked_at = float("-inf")
        self._failed_at: float | None = None
        """When the last read failed; None where it worked."""
        self._lock = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None

    async def get(self, kid: str, version: int = 0) -> Ed25519PublicKey:
        """The key, as of the access state's `version` at least.

        Raises Refusal CREDENTIAL_INVALID for an unknown one, DEPENDENCY_UNAVAILABLE when none can be had.
        """
        if self._keys and version != self._version:
            async with self._lock:
                if version != self._version:
                    # Once a version, whether or not it works: auth may be down, and its keys are good then.
                    self._version = version
                    await self._read_quietly()
        if kid in self._keys:
            if time.monotonic() - self._read_at > self._refresh and self._reading is None:
                self._reading = asyncio.create_task(self._read_quietly())
            return self._keys[kid]
        async with self._lock:
            # Only a read that worked counts in full, so that a service which starts before auth is not shut for long.
            if kid not in self._keys and self._may_ask():
                with contextlib.suppress(Exception):
                    await self._read()
                    self._asked_at = time.monotonic()
                    self._version = version
        if kid not in self._keys:
            if self._failed_at is not None:
                # It may be a key that followed meanwhile: nobody is told that a good credential is none.
                raise Refusal("DEPENDENCY_UNAVAILABLE", "the keys of auth cannot be had", retry_after=1)
            raise Refusal("CREDENTIAL_INVALID", "the token was signed by no key of this deployment")
        return self._keys[kid]

    def _may_ask(self) -> bool:
        now = time.monotonic()
        return now - self._asked_at >= self._refresh and (self._failed_at is None or now - self._failed_at >= 1)

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(_READ_SECONDS):
                self._keys = await self._fetch()
        except Exception:
            self._failed_at = time.monotonic()
            raise
        self._failed_at = None
        self._read_at = time.monotonic()

    async def _read_quietly(self) -> None:
        try:
            await self._read()
        except Exception:
            # The keys held stay good; the next call tries again, once a second at most.
            self._read_at = time.monotonic() - self._refresh + 1
        finally:
            self._reading = None
