"""Token buckets: how many calls a principal may make of a method."""

import time
from dataclasses import dataclass

from kit.errors import Refusal


@dataclass
class _Bucket:
    tokens: float
    at: float


class RateLimit:
    """Allows `per_minute` calls a key on average and as many at once; kept in this process."""

    def __init__(self, per_minute: int) -> None:
        """Raises RuntimeError for a budget that lets nothing pass."""
        if per_minute < 1:
            raise RuntimeError("a rate limit must allow at least one call a minute")
        self._rate = per_minute / 60
        self._size = float(per_minute)
        self._buckets: dict[str, _Bucket] = {}

    def take(self, key: str) -> None:
        """Counts one call. Raises Refusal RATE_LIMITED with the time to wait."""
        now = time.monotonic()
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= 10_000:
                self._buckets = {
                    k: b
                    for k, b in self._buckets.items()
                    if b.tokens + (now - b.at) * self._rate < self._size
                }
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
