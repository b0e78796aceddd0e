"""A cursor that one cannot go on from is told apart, never silently accepted."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import Refusal
from services.feed.cursors import Cursor, CursorCodec, History, judge

CODEC = CursorCodec(b"s" * 32)
NUMBER = st.integers(0, 2**62)


@given(NUMBER, NUMBER, NUMBER)
def test_a_cursor_comes_back_as_it_was(epoch: int, seq: int, nonce: int) -> None:
    text = CODEC.write("project:a", Cursor(epoch, seq, nonce))
    assert CODEC.read("project:a", text) == Cursor(epoch, seq, nonce)


@given(st.integers(0, 400), NUMBER)
def test_a_flipped_bit_is_found(bit: int, seq: int) -> None:
    import base64

    text = CODEC.write("project:a", Cursor(1, seq, 7))
    raw = bytearray(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    raw[bit // 8 % len(raw)] ^= 1 << bit % 8
    with pytest.raises(Refusal) as caught:
        CODEC.read("project:a", base64.urlsafe_b64encode(bytes(raw)).decode())
    assert caught.value.reason == "CURSOR_INVALID"


def test_a_cursor_has_one_form() -> None:
    text, page = CODEC.write("project:a", Cursor(1, 2, 3)), CODEC.write_page("project:a", "aaaaaaaa")
    letters = string.ascii_letters + string.digits + "-_"
    for given_text, read in ((text, CODEC.read), (page, CODEC.read_page)):
        changed = {given_text[:-1] + letter for letter in letters} - {given_text}
        for other in changed | {given_text + "=", given_text + "==", given_text + "\n", "=" + given_text}:
            with pytest.raises(Refusal) as caught:
                read("project:a", other)
            assert caught.value.reason == "CURSOR_INVALID"


@pytest.mark.parametrize("text", ["garbage", "🙂", "", "A" * 900, "%%%"])
def test_garbage_another_bank_and_another_deployment_are_invalid(text: str) -> None:
    good = CODEC.write("project:a", Cursor(1, 2, 3))
    for codec, bank, given_text in (
        (CODEC, "project:a", text),
        (CODEC, "project:b", good),
        (CursorCodec(b"t" * 32), "project:a", good),
    ):
        with pytest.raises(Refusal) as caught:
            codec.read(bank, given_text)
        assert caught.value.reason == "CURSOR_INVALID"
    with pytest.raises(Refusal):
        CODEC.read_page("project:a", good)


@pytest.mark.parametrize(
    ("cursor", "history", "reason"),
    [
        (Cursor(1, 5, 9), History(8, 0, 1, 9), None),
        (Cursor(1, 0, 0), History(8, 0, 1, 0), None),
        (Cursor(1, 3, 4), History(8, 3, 1, 4), None),
        (Cursor(1, 5, 9), History(8, 0, 1, 10), "CURSOR_DIVERGED"),
        (Cursor(1, 5, 9), History(8, 0, 1, None), "CURSOR_DIVERGED"),
        (Cursor(1, 9, 9), History(8, 0, 1, None), "CURSOR_DIVERGED"),
        (Cursor(1, 5, 9), History(8, 0, 2, 9), "CURSOR_DIVERGED"),
        (Cursor(1, 2, 9), History(8, 3, 1, None), "CURSOR_BEFORE_HORIZON"),
        (Cursor(1, 0, 0), History(8, 3, 1, None), "CURSOR_BEFORE_HORIZON"),
    ],
)
def test_where_one_can_go_on(cursor: Cursor, history: History, reason: str | None) -> None:
    if reason is None:
        judge(cursor, history)
    else:
        with pytest.raises(Refusal) as caught:
            judge(cursor, history)
        assert caught.value.reason == reason
