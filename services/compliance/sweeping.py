"""The sweep: drops key pages that nothing was sealed with, or nothing that is left."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from kit.errors import from_driver
from kit.sealing import KeyStore

log = logging.getLogger("teamlore.compliance")
SWEEP_SECONDS = 3600.0
AT_ONCE = 1000


class PageStore(Protocol):
    """What the sweep needs of the store."""

    async def key_pages(self, pages: Sequence[int]) -> Mapping[int, bool]:
        """Those of these key pages that the database names, and whether anything still needs them."""
        ...


class Sweep:
    """Drops old key pages that the database does not need, in the background. Replicas may sweep beside each other.

    A page goes when two passes, an hour of this process apart, found it old and not needed: a clock that jumps or a
    machine that slept between a page and its commit cannot make one pass of it lose a memory. Where the database
    names not one of the old pages, it is not the one that goes with this key store, and nothing is dropped.
    """

    def __init__(self, store: PageStore, keys: KeyStore) -> None:
        self._store = store
        self._keys = keys
        self._unused: set[int] = set()
        self._worker = ThreadPoolExecutor(1, "sweep")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to sweep, once an hour."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ends, and lets go of the key store."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self._worker.shutdown)

    async def _run(self) -> None:
        while True:
            try:
                await self.pass_once()
            except Exception as error:
                refusal = from_driver(error)
                log.warning(
                    "key pages are not swept: %s", refusal.reason if refusal else "a defect", exc_info=error
                )
            await asyncio.sleep(SWEEP_SECONDS)

    async def pass_once(self) -> int:
        """One pass; counts the pages dropped. Raises Refusal and what the store raises."""
        loop = asyncio.get_running_loop()
        # The key store first: what is old there by now has its rows committed before the database is asked.
        old = await loop.run_in_executor(self._worker, self._keys.old_pages)
        named: dict[int, bool] = {}
        for start in range(0, len(old), AT_ONCE):
            named |= await self._store.key_pages(old[start : start + AT_ONCE])
        unused = {page for page in old if not named.get(page, False)}
        if unused and not named:
            log.warning("key pages are not swept: the database names none of them")
            unused = set()
        drop = unused & self._unused
        self._unused = unused - drop
        if drop:
            await loop.run_in_executor(self._worker, self._keys.drop_pages, drop)
            log.info("%d unused key pages dropped", len(drop))
        return len(drop)
