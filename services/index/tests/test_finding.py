"""A search takes precedence over the checks of pushes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from services.index.embedding import Urgency
from services.index.finding import Finder
from services.index.following import LANES, Hit, Seen, Vector
from services.index.store import Memory

BANK = "project:finding"


class Parts:
    """Store, vectors and embedding in one."""

    async def embed(self, texts: Sequence[str], urgency: Urgency) -> list[Seen]:
        self.urgency = urgency
        return [Seen(np.array([1, 0], dtype=np.float32), True) for _ in texts]

    async def nearest(
        self, bank: str, queries: Sequence[Vector], limit: int, *, lanes: Sequence[str] = LANES
    ) -> list[list[Hit]]:
        return [[Hit("a", 1.0)] for _ in queries]

    async def min_lane(self, bank: str) -> str:
        return LANES[0]

    async def memories(self, bank: str, ids: Sequence[str], limit: int) -> list[Memory]:
        return [Memory(own, "user:alice", "synced", "words", ()) for own in ids]


async def test_a_search_comes_before_a_check() -> None:
    parts: Any = Parts()
    asked = Finder(parts, parts, parts)
    assert [memory.id for memory, _ in await asked.search(BANK, "which", 10)] == ["a"]
    assert parts.urgency == Urgency.QUERY
