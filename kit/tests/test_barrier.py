"""Secrets are found, prose is not; made-up values of the right shape."""

import pytest

from kit.barrier import Barrier
from kit.errors import Refusal
from kit.limits import RateLimit

KEY = "AKIA" + "IOSFODNN7EXAMPL2"


def test_a_key_is_rewritten_and_prose_passes() -> None:
    barrier = Barrier("redact")
    passed = barrier.check(f"The deploy key is {KEY} for now.\nWe use SQS.")
    assert (
        KEY not in passed.text
        and "[redacted: AWS Access Key]" in passed.text
        and "We use SQS." in passed.text
    )
    for text in (
        "We use SQS for the order queue.",
        "commit e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    ):
        assert barrier.check(text).text == text
    assert Barrier("off").check(KEY).text == KEY


def test_the_budget_is_per_principal_and_says_when_to_return() -> None:
    limit = RateLimit(3)
    for _ in range(3):
        limit.take("user:a")
    limit.take("user:b")
    with pytest.raises(Refusal) as caught:
        limit.take("user:a")
    assert caught.value.reason == "RATE_LIMITED" and 0 < (caught.value.retry_after or 0) <= 20
