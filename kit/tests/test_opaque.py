"""A token has one form: what decodes to the same bytes is not the same token."""

import base64
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kit import opaque

LETTERS = string.ascii_letters + string.digits + "-_"


@given(st.binary(max_size=60))
@example(b"\xfb\xff")
def test_only_the_form_that_was_given_is_taken(raw: bytes) -> None:
    text = opaque.written(raw)
    assert opaque.read(text) == raw
    others = {text + end for end in ("=", "==", "\n", " ", "é", "A")}
    others |= {text[:-1] + letter for letter in LETTERS if text} | {base64.b64encode(raw).decode()} - {text}
    for other in others - {text}:
        try:
            assert opaque.read(other) != raw
        except ValueError:
            continue


@pytest.mark.parametrize("text", ["é", "\0", "A", "AB==", "AA=", "%%%"])
def test_what_nobody_wrote_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        opaque.read(text)
