"""The model: one of it, in few threads, which take small pieces of the most urgent work that still has a taker."""

import asyncio
import contextlib
import logging
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from functools import lru_cache

from teamlore_embedder import Embedder

from kit.errors import Refusal
from kit.texts import normalised
from services.index.following import SEEN_CHARACTERS, Seen

log = logging.getLogger("teamlore.index")

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


TURN_SECONDS, QUIET_SECONDS, BUSY_SHARE = 1.0, 0.05, 1 / 3
"""While checks of pushes take that share of the time, the follower gets one piece each turn and no more: else what
nobody waits for would take the cores from those who do, in this process and in the others of a small machine. A push of
any length is followed all the same, and what comes in little by little without delay."""
NICENESS = 10
"""Of the threads that embed for the follower: about a tenth of a core's time beside one that wants it too."""


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


class _Lane:
    """Threads for the model, and the work that waits for them, the most urgent first."""

    def __init__(self, threads: int, urgencies: Sequence[Urgency], give_way: bool) -> None:
        self.threads = threads
        self.queues: dict[Urgency, deque[_Job]] = {urgency: deque() for urgency in urgencies}
        self.workers = ThreadPoolExecutor(threads, "embedder", _give_way if give_way else None)
        self.running: set[asyncio.Task[None]] = set()


def _give_way() -> None:
    """Lowers the calling thread's priority, for good; where the system refuses that, it works on as it is."""
    if sys.platform != "linux":  # elsewhere a thread has no number that could be given here
        return
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    except OSError as error:
        _say_once(f"the follower embeds at full priority: {error.strerror}")


@lru_cache
def _say_once(message: str) -> None:
    log.warning("%s", message)


class Embedding:
    """Embeds texts as they are written, blanks and Unicode forms aside.

    A model that computes in the thread that calls it runs in `threads` threads for those who wait, and in as many of low
    priority for the follower, so that neither its queue nor its work is before theirs. Any other runs in one for all.
    """

    def __init__(self, embedder: Embedder, threads: int = 1) -> None:
        self._embedder = embedder
        if embedder.in_caller:
            self._lanes = [
                _Lane(threads, (Urgency.QUERY, Urgency.CHECK), give_way=False),
                _Lane(threads, (Urgency.FOLLOW,), give_way=True),
            ]
        else:
            self._lanes = [_Lane(1, tuple(Urgency), give_way=False)]
        self._more = asyncio.Event()
        self._load = _Load()

    def close(self) -> None:
        """Lets the pieces that run end by themselves; whoever waits is cancelled."""
        for lane in self._lanes:
            for task in lane.running:
                task.cancel()
            for queue in lane.queues.values():
                for job in queue:
                    job.done.cancel()
            lane.workers.shutdown(wait=False, cancel_futures=True)

    def checking(self) -> contextlib.AbstractContextManager[None]:
        """For as long as pushes are being checked much of the time, the follower holds back."""
        return self._load.checking()

    async def embed(self, texts: Sequence[str], urgency: Urgency) -> list[Seen]:
        """A vector a text. Work whose caller went away is dropped. Raises Refusal RATE_LIMITED."""
        if not texts:
            return []
        lane = next(lane for lane in self._lanes if urgency in lane.queues)
        queue = lane.queues[urgency]
        if sum(len(job.left) for job in queue) + len(texts) > MOST_WAITING[urgency]:
            raise Refusal(
                "RATE_LIMITED",
                "more texts wait for the model than it can work off in time",
                retry_after=_COME_BACK[urgency],
            )
        job = _Job(texts)
        queue.append(job)
        self._more.set()
        lane.running = {task for task in lane.running if not task.done()}
        for _ in range(lane.threads - len(lane.running)):
            lane.running.add(asyncio.create_task(self._work(lane)))
        try:
            return await job.done
        finally:
            if job in queue:
                queue.remove(job)

    async def _work(self, lane: _Lane) -> None:
        """Runs one piece after the other until nothing waits."""
        while (
            found := next(((who, queue) for who, queue in lane.queues.items() if queue), None)
        ) is not None:
            urgency, queue = found
            if urgency is Urgency.FOLLOW:
                self._more.clear()
                if pause := self._load.pause():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._more.wait(), pause)
                    continue
                self._load.take_turn()
            job = queue.popleft()
            piece = job.take()
            if job.left:
                queue.append(job)
            texts = [job.texts[position] for position in piece]
            try:
                rows = await asyncio.get_running_loop().run_in_executor(lane.workers, self._run, texts)
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


class _Load:
    """How much of the time pushes are being checked, and so when the follower may have its next piece."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._now, self._since = 0, 0.0
        self._busy = 0.0
        self._turn, self._checked = -math.inf, -math.inf

    @contextlib.contextmanager
    def checking(self) -> Iterator[None]:
        """A check of a push."""
        if not self._now:
            self._since = self._clock()
        self._now += 1
        try:
            yield
        finally:
            self._now -= 1
            self._checked = self._clock()
            if not self._now:
                self._busy += self._checked - max(self._since, self._turn)

    def take_turn(self) -> None:
        """The follower has a piece."""
        self._turn, self._busy = self._clock(), 0.0

    def pause(self) -> float:
        """Seconds after which to ask again whether the follower may go on; 0 when it may."""
        now = self._clock()
        passed = now - self._turn
        quiet = not self._now and now >= self._checked + QUIET_SECONDS
        if quiet or passed >= TURN_SECONDS:
            return 0.0
        busy = self._busy + (now - max(self._since, self._turn) if self._now else 0.0)
        if passed >= 2 * QUIET_SECONDS and busy < BUSY_SHARE * passed:
            return 0.0
        return min(QUIET_SECONDS, TURN_SECONDS - passed)
