"""Secrets are found, prose is not; made-up values of the right shape."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.barrier import Barrier

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


@pytest.mark.parametrize(
    "secret",
    [
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "glpat-abcdefghijABCDEFGHIJ",
        "npm_" + "a1" * 18,
        "tlk_" + "Ab" * 21 + "c",
        "xoxb-123456789012-123456789012-abcdefghijklmnopqrstuvwx",
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\ndef\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_all_of_a_secret_goes_whatever_a_comment_says(secret: str) -> None:
    text = Barrier("redact").check(f"before {secret} after # pragma: allowlist secret").text
    assert text.startswith("before [redacted: ") and text.endswith("] after # pragma: allowlist secret")


@given(
    st.sampled_from(
        ("apikey_", "token=", "sk-", "eyJ-", "://a:", "AKIA", "xoxb-1-", "-----BEGIN ", "a.b.", "-us1")
    ),
    st.text(max_size=3),
)
def test_no_text_makes_it_slow(piece: str, end: str) -> None:
    # A catastrophic pattern would run for minutes here and be ended by the suite's limit.
    Barrier("redact").check((piece * 50_000)[:50_000] + end)
