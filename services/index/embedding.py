"""The model: one of it, in one worker thread, which takes small pieces of the most urgent work that still has a taker."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum

from teamlore_embedder import Embedder

from kit.errors import Refusal
from kit.texts import normalised
from services.index.following import SEEN_CHARACTERS, Seen


class Urgency(IntEnum):
    """Who waits for a vector; the lesser goes first, and of equals each gets a piece in turn."""

    QUERY = 0
    """A person or an agent that asks."""
    CHECK = 1
    """A push, which stores without the answer when that takes too long."""
    FOLLOW = 2
    """The follower, for which nobody waits."""


MOST_WAITING = {Urgency.QUERY: 200, Urgency.CHECK: 1000, Urgency.FOLLOW: 1000}
"""Texts that may wait; what comes on top would be answered too late to be of use."""
_COME_BACK = {Urgency.QUERY: 1.0, Urgency.CHECK: 5.0, Urgency.FOLLOW: 5.0}
PIECE_TEXTS, PIECE_CHARACTERS = 8, 2600
"""What runs at once, and so what a query waits for at most: a tenth of a second or two."""


TURN_SECONDS, QUIET_SECONDS = 0.25, 0.05
"""While pushes are checked the follower gets a piece each turn and no more, until it was quiet for a moment: else what
nobody waits for would take the cores from those who do. A push of any length is followed all the same."""


class _Job:
    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = [normalised(text) for text in texts]
        self.done: asyncio.Future[list[Seen]] = asyncio.get_running_loop().create_future()
        # The model pads all texts of a run to the longest.
        self.left = deque(sorted(range(len(texts)), key=lambda position: len(self.texts[position])))
        self._rows: dict[int, Seen] = {}

    def take(self) -> list[int]:
        """The positions of the next piece."""
        piece: list[int] = []
        while self.left and len(piece) < PIECE_TEXTS:
            longest = min(len(self.texts[self.left[0]]), SEEN_CHARACTERS)
            if piece and (len(piece) + 1) * longest > PIECE_CHARACTERS:
                break
            piece.append(self.left.popleft())
        return piece

    def put(self, piece: Sequence[int], rows: Sequence[Seen]) -> None:
        """Notes the vectors of a piece; with the last one the job is done."""
        self._rows.update(zip(piece, rows, strict=True))
        if len(self._rows) == len(self.texts) and not self.done.done():
            self.done.set_result([self._rows[position] for position in range(len(self.texts))])


class Embedding:
    """Embeds texts as they are written, blanks and Unicode forms aside."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._worker = ThreadPoolExecutor(1, "embedder")
        self._queues: dict[Urgency, deque[_Job]] = {urgency: deque() for urgency in Urgency}
        self._running: asyncio.Task[None] | None = None
        self._more = asyncio.Event()
        self._checks, self._checked, self._turn = 0, 0.0, 0.0

    def close(self) -> None:
        """Lets the piece that runs end by itself; whoever waits is cancelled."""
        if self._running is not None:
            self._running.cancel()
        for queue in self._queues.values():
            for job in queue:
                job.done.cancel()
        self._worker.shutdown(wait=False, cancel_futures=True)

    @contextlib.contextmanager
    def checking(self) -> Iterator[None]:
        """For as long as a push is being checked, and a moment more, the follower holds back."""
        self._checks += 1
        try:
            yield
        finally:
            self._checks -= 1
            self._checked = time.monotonic()

    def _held_back(self) -> float:
        """Seconds that the follower has to wait for its next piece."""
        now = time.monotonic()
        if not self._checks and now >= self._checked + QUIET_SECONDS:
            return 0.0
        return max(0.0, self._turn + TURN_SECONDS - now)

    async def embed(self, texts: Sequence[str], urgency: Urgency) -> list[Seen]:
        """A vector a text. Work whose caller went away is dropped. Raises Refusal RATE_LIMITED."""
        if not texts:
            return []
        queue = self._queues[urgency]
        if sum(len(job.left) for job in queue) + len(texts) > MOST_WAITING[urgency]:
            raise Refusal(
                "RATE_LIMITED",
                "more texts wait for the model than it can work off in time",
                retry_after=_COME_BACK[urgency],
            )
        job = _Job(texts)
        queue.append(job)
        self._more.set()
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._work())
        try:
            return await job.done
        finally:
            if job in queue:
                queue.remove(job)

    async def _work(self) -> None:
        while (
            found := next(((who, queue) for who, queue in self._queues.items() if queue), None)
        ) is not None:
            urgency, queue = found
            if urgency is Urgency.FOLLOW:
                self._more.clear()
                if pause := self._held_back():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._more.wait(), min(pause, QUIET_SECONDS))
                    continue
                self._turn = time.monotonic()
            job = queue.popleft()
            piece = job.take()
            if job.left:
                queue.append(job)
            texts = [job.texts[position] for position in piece]
            try:
                rows = await asyncio.get_running_loop().run_in_executor(self._worker, self._run, texts)
            except Exception as error:
                if job in queue:
                    queue.remove(job)
                if not job.done.done():
                    job.done.set_exception(error)
            else:
                job.put(piece, rows)

    def _run(self, texts: list[str]) -> list[Seen]:
        rows, whole = self._embedder.embed(texts), self._embedder.seen_whole(texts)
        return [Seen(row, one) for row, one in zip(rows, whole, strict=True)]
