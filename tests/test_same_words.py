"""What a laptop and a server must say alike, though neither may import the other."""

import sys

from hypothesis import given
from hypothesis import strategies as st
from teamlore_client import _memory, _pull, _sync

from kit import texts
from services.sync.pushing import FORGOTTEN
from services.sync.records import CLAIM

BLANKS = st.sampled_from("\u115f\u1160\u2800\u3164\uffa0\u200b\u00ad\u0301\u00a0 \n\u2028")
TEXT = st.text(BLANKS | st.characters(codec="utf-8"), max_size=8)


def test_a_letter_is_seen_by_both_or_by_none() -> None:
    every = map(chr, range(sys.maxunicode + 1))
    assert [each for each in every if _memory.visible(each) != texts.visible(each)] == []


@given(TEXT)
def test_the_same_words_are_the_same_to_both(text: str) -> None:
    assert _pull._normalised(text) == texts.normalised(text)


def test_words_of_the_wire() -> None:
    assert _sync.FORGOTTEN == FORGOTTEN
    assert CLAIM == _memory.CLAIM
