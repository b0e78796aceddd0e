"""The search itself: it finds a word in each form, or a green canary would mean nothing."""

import base64
from pathlib import Path

import pytest

from tests.canary.search import search

WORD = "Zqcanary7781Xylophon"


@pytest.mark.parametrize(
    "data",
    [
        WORD.encode(), WORD.lower().encode(), WORD.upper().encode(), WORD.encode("utf-16-le"), WORD.encode("utf-16-be"),
        WORD.encode().hex().encode(), WORD.encode().hex().upper().encode(),
        *(base64.b64encode(b"x" * n + WORD.encode() + b"yz") for n in range(3)),
        *(base64.urlsafe_b64encode(b"x" * n + WORD.encode()) for n in range(3)),
    ],
)  # fmt: skip
def test_a_word_is_found_in_every_form(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(b"\0\1noise" * 100 + data + b"noise" * 100)
    (tmp_path / "other").write_bytes(b"nothing here")
    assert {found.path.name for found in search([tmp_path], [WORD])} == {"file"}


RAW = bytes(range(240, 256)) * 2


@pytest.mark.parametrize(
    "data",
    [
        RAW, RAW.hex().encode(), RAW.hex().upper().encode(),
        *(coded(b"x" * n + RAW + b"y" * m) for coded in (base64.b64encode, base64.urlsafe_b64encode) for n in range(3)
          for m in range(3)),
    ],
)  # fmt: skip
def test_raw_bytes_are_found_in_every_form(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(b"\0\1noise" * 100 + data + b"noise" * 100)
    assert search([tmp_path], [], [RAW])
