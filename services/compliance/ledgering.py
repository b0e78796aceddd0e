"""Writes an erasure into the ledger beside the keys before any of its keys is destroyed."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from kit.ledger import Ledger
from kit.sealing import Slot
from services.compliance.erasures import EraseObjects


class LedgerStore(Protocol):
    """What the ledger needs of the store."""

    async def slots(self, erasure_id: str, memory_ids: Sequence[str]) -> Mapping[str, Slot]:
        """Where the keys of an erasure's memories stand or stood."""
        ...

    async def epoch(self) -> int:
        """The epoch of this history."""
        ...


class Ledgered:
    """A participant whose part is written down first: what it then destroys, no restore can bring back."""

    def __init__(self, store: LedgerStore, ledger: Ledger, participant: EraseObjects) -> None:
        self._store = store
        self._ledger = ledger
        self._participant = participant
        self._worker = ThreadPoolExecutor(1, "ledger")

    async def __call__(self, erasure_id: str, bank: str, memory_ids: Sequence[str]) -> None:
        """As the participant. Raises Refusal KEYSTORE_UNAVAILABLE, and destroys nothing, where it cannot be written."""
        slots = await self._store.slots(erasure_id, memory_ids)
        epoch = await self._store.epoch()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._worker, self._ledger.record, erasure_id, bank, slots, epoch)
        await self._participant(erasure_id, bank, memory_ids)

    async def close(self) -> None:
        """Ends its thread, then lets go of the ledger."""
        await asyncio.to_thread(self._worker.shutdown)
        self._ledger.close()
