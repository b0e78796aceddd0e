"""The model: one of it, in one worker thread, so that the loop goes on serving."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from teamlore_embedder import Embedder

from services.index.following import Vector


class Embedding:
    """Embeds batches one after the other."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._worker = ThreadPoolExecutor(1, "embedder")

    def close(self) -> None:
        """Lets the batch that runs end by itself; those that wait are cancelled."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    async def embed(self, texts: Sequence[str]) -> Vector:
        """One unit row a text."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._embedder.embed, texts)
