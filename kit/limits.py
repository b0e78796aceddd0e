"""Token buckets: how many calls a principal may make of a method, and how much it may have open at a time."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field

from kit.errors import Refusal

_SWEEP = 10_000
_STREAM_WAIT = 5.0
# What has come of a message is held until the rest is there: as many times the largest one is what a principal can fill.
SENDING_STREAMS, AWAITED_CALLS = 16, 16
# Those that wait for their turn are unread, but for what gRPC takes ahead of a handler.
LINED_UP_CALLS = 500


@dataclass
class _Bucket:
    tokens: float
    at: float


@dataclass
class _Line:
    """A caller's calls whose message is on its way, and the turns that they take."""

    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AWAITED_CALLS))
    calls: int = 0


class RateLimit:
    """Allows `per_minute` calls a key on average and as many at once; kept in this process."""

    def __init__(self, per_minute: int) -> None:
        """Raises RuntimeError for a budget that lets nothing pass."""
        if per_minute < 1:
            raise RuntimeError("a rate limit must allow at least one call a minute")
        self._rate = per_minute / 60
        self._size = float(per_minute)
        self._buckets: dict[str, _Bucket] = {}
        self._sweep_at = _SWEEP

    def take(self, key: str) -> None:
        """Counts one call. Raises Refusal RATE_LIMITED with the time to wait."""
        now = time.monotonic()
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= self._sweep_at:
                self._sweep(now)
            bucket = self._buckets[key] = _Bucket(self._size, now)
        bucket.tokens = min(self._size, bucket.tokens + (now - bucket.at) * self._rate)
        bucket.at = now
        if bucket.tokens < 1:
            raise Refusal(
                "RATE_LIMITED",
                "too many calls; wait and call again",
                retry_after=(1 - bucket.tokens) / self._rate,
            )
        bucket.tokens -= 1

    def _sweep(self, now: float) -> None:
        """Drops full buckets alone: a new one is full too, so nobody's limit starts over because others call."""
        self._buckets = {
            key: bucket
            for key, bucket in self._buckets.items()
            if bucket.tokens + (now - bucket.at) * self._rate < self._size
        }
        # Where many are in use, the next sweep waits until there are twice as many: a call stays cheap.
        self._sweep_at = max(_SWEEP, 2 * len(self._buckets))


class Limits:
    """What one process lets each principal do: calls of each method a minute, streams and half-sent calls at a time."""

    def __init__(
        self,
        per_minute: int,
        public_per_minute: int,
        streams: int,
        overrides: Mapping[str, int] | None = None,
    ) -> None:
        """`overrides` gives calls a minute by full method name. Raises RuntimeError for a budget that lets nothing pass."""
        if streams < 1:
            raise RuntimeError("a principal must be allowed at least one stream")
        for budget in (per_minute, public_per_minute):
            RateLimit(budget)  # refuses at start what would be refused at the first call
        self._per_minute = per_minute
        self._public_per_minute = public_per_minute
        self._streams = streams
        self._calls = {method: RateLimit(budget) for method, budget in (overrides or {}).items()}
        self._public: dict[str, RateLimit] = {}
        self._open: Counter[tuple[str, bool]] = Counter()
        self._lines: dict[str, _Line] = {}

    def take(self, method: str, principal: str) -> None:
        """Counts one call of a principal. Raises Refusal RATE_LIMITED."""
        if method not in self._calls:
            self._calls[method] = RateLimit(self._per_minute)
        self._calls[method].take(principal)

    def take_public(self, method: str, peer: str) -> None:
        """Counts one call without a good credential, by the address it comes from. Raises Refusal RATE_LIMITED."""
        if method not in self._public:
            self._public[method] = RateLimit(self._public_per_minute)
        self._public[method].take(address_of(peer))

    @contextlib.asynccontextmanager
    async def turn(self, caller: str) -> AsyncIterator[None]:
        """To be held while the message of a caller's call is awaited: beyond AWAITED_CALLS its others wait unread.

        Raises Refusal RATE_LIMITED beyond LINED_UP_CALLS.
        """
        line = self._lines.setdefault(caller, _Line())
        if line.calls >= LINED_UP_CALLS:
            raise Refusal("RATE_LIMITED", "too many of your calls wait to be read; call again", retry_after=0.5)
        line.calls += 1
        try:
            async with line.turns:
                yield
        finally:
            line.calls -= 1
            if not line.calls:
                del self._lines[caller]

    @contextlib.contextmanager
    def stream(self, principal: str, sends: bool = False) -> Iterator[None]:
        """Counts one open stream of a principal for as long as it lasts. Raises Refusal RATE_LIMITED.

        Those on which it `sends` are counted apart, and are at most SENDING_STREAMS.
        """
        most = min(self._streams, SENDING_STREAMS) if sends else self._streams
        if self._open[principal, sends] >= most:
            raise Refusal(
                "RATE_LIMITED",
                f"you hold as many streams of this kind as you may ({most}); close one",
                retry_after=_STREAM_WAIT,
            )
        self._open[principal, sends] += 1
        try:
            yield
        finally:
            self._open[principal, sends] -= 1
            if not self._open[principal, sends]:
                del self._open[principal, sends]


def address_of(peer: str) -> str:
    """The address of a peer as gRPC names it, without the port."""
    return peer.rpartition(":")[0] or peer
