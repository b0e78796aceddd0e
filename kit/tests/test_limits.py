"""Budgets are each principal's own, method by method, and nobody's starts over because others call."""

import time

import pytest

from kit import limits
from kit.errors import Refusal
from kit.limits import Limits, RateLimit


def refused(take: object, *args: str) -> float:
    with pytest.raises(Refusal) as caught:
        take(*args)  # type: ignore[operator]
    assert caught.value.reason == "RATE_LIMITED" and caught.value.retry_after
    return caught.value.retry_after


def test_the_budget_is_per_principal_and_says_when_to_return() -> None:
    limit = RateLimit(3)
    for _ in range(3):
        limit.take("user:a")
    limit.take("user:b")
    assert 0 < refused(limit.take, "user:a") <= 20


def test_the_budget_comes_back_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(limits.time, "monotonic", lambda: now)
    limit = RateLimit(60)
    for _ in range(60):
        limit.take("user:a")
    assert refused(limit.take, "user:a") == pytest.approx(1)
    now += 1.01
    limit.take("user:a")
    refused(limit.take, "user:a")


def test_many_callers_reset_nobodys_limit_and_full_buckets_go(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(limits.time, "monotonic", lambda: now)
    limit = RateLimit(2)
    for _ in range(2):
        limit.take("user:noisy")
    for number in range(25_000):
        limit.take(f"user:{number}")
    refused(limit.take, "user:noisy")
    assert len(limit._buckets) == 25_001
    now += 61
    for number in range(20_000):
        limit.take(f"user:later-{number}")
    assert len(limit._buckets) <= 20_001


def test_methods_and_principals_and_addresses_have_budgets_of_their_own() -> None:
    held = Limits(2, 3, 1, {"a.Push": 1})
    held.take("a.Push", "user:a")
    refused(held.take, "a.Push", "user:a")
    held.take("a.Push", "user:b")
    for _ in range(2):
        held.take("a.Get", "user:a")
    refused(held.take, "a.Get", "user:a")
    for port in (1, 2, 3):
        held.take_public("a.Exchange", f"ipv6:%5B::1%5D:{port}")
    refused(held.take_public, "a.Exchange", "ipv6:%5B::1%5D:4")
    held.take_public("a.Exchange", "ipv4:10.0.0.1:1")
    held.take_public("a.Keys", "ipv6:%5B::1%5D:5")


def test_a_stream_counts_until_it_ends() -> None:
    held = Limits(1, 1, 2)
    with held.stream("user:a"), held.stream("user:b"):
        with held.stream("user:a"):
            refused(held.stream("user:a").__enter__)
        with held.stream("user:a"):
            pass
    assert not held._open


@pytest.mark.parametrize("budgets", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_a_budget_that_lets_nothing_pass_is_refused_at_start(budgets: tuple[int, int, int]) -> None:
    with pytest.raises(RuntimeError):
        Limits(*budgets)
