"""Personal data with a shape is found, numbers of other kinds are not; nothing is fetched for it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from kit.pii import _D, PersonalData, _loaded, _spans

FOUND = {
    "EMAIL": ("ola.nordmann@example.com", "o'hara+x@mail.example.co.uk", "bob@b\u00fccher.example.de",
              "bob@intern.corp", "alice@host.local", "ola@mail.intra.acme", "a.b@ad.firma.lan", "bob@x.xn--80ak6aa92e"),
    "PHONE": ("+47 22 12 34 56", "+14155552671", "(650) 253-0000", "020 7946 0958", "030 901820", "030/1234", "169 0"),
    "CREDIT CARD": ("4111 1111 1111 1111", "5555555555554444"),
    "IBAN": ("DE89370400440532013000", "GB82 WEST 1234 5698 7654 32"),
    "IP ADDRESS": ("192.0.2.17", "2001:db8::8a2e:370:7334"),
    "NATIONAL ID": ("12345678Z", "X9613851N", "131052-308T", "RSSMRA85T10A562S", "960121-1000009", "19811218-9876",
                    "10000000146", "8001015009087", "15070649C103"),
}  # fmt: skip
ODD = ("4111\u200b1111\u200b1111\u200b1111", "ola.nord\u00admann@example.com",
       "DE89\u00a03704\u00a00044\u00a00532\u00a00130\u00a000")  # fmt: skip
NOT_FOUND = (
    "4111 1111 1111 1112", "DE89370400440532013001", "12345678A", "131052-308U", "8001015009088", "1700000000", "6502530000",
    "1700000000000", "127.0.0.1:5432", "0.0.0.0", "::1", "3.11.7", "2024-01-15T10:30:00", "ports 5432 5433 5434",
    "R\u017fSMRA85T10A562S",
    "@app.route", "git@github", "user@host", "getty@tty1.service", "logo@2x.png", "lib@1.2.rc", "lib@3.11.70",
    "wg-quick@wg0.timer", "bob@.corp",
    "std::vector", "0190a5b2-7c1e-7d3a-9f4b-2a6c8e0d1f35", "SQS took 1,234,567,890",
)  # fmt: skip


@pytest.mark.parametrize(("kind", "words"), [(kind, one) for kind, many in FOUND.items() for one in many])
def test_what_has_the_shape_is_rewritten(kind: str, words: str) -> None:
    passed = PersonalData("redact").check(f"It was {words} then.")
    assert (passed.text, passed.found) == (f"It was [redacted: {kind}] then.", (kind,))
    refused = PersonalData("reject").check(f"It was {words} then.")
    assert (refused.text, refused.found) == (f"It was {words} then.", (kind,))
    assert PersonalData("off").check(words).found == ()


@pytest.mark.parametrize("words", ODD)
def test_what_has_the_shape_to_the_eye_is_rewritten_whole(words: str) -> None:
    passed = PersonalData("redact").check(f"It was {words} then.")
    assert re.fullmatch(r"It was \[redacted: [A-Z ]+\] then\.", passed.text)


@pytest.mark.parametrize("words", NOT_FOUND)
def test_what_only_resembles_it_passes(words: str) -> None:
    assert PersonalData("redact").check(f"It was {words} then.").found == ()


@pytest.mark.parametrize("piece", ["a.", "1 ", "1.", "a@", "@a.", "::", "DE12 ", "+1"])
def test_no_text_makes_it_slow(piece: str) -> None:
    # A catastrophic pattern would run for minutes here and be ended by the suite's limit.
    PersonalData("redact").check((piece * 12_500)[:12_500] + " x@y 1")


ONES = [one for many in FOUND.values() for one in many] + [
    "RSSMRA85T10A562S",
    "+49 170 1234567 ext. 12",
    "9606051234567",
]
CHANGES = st.sampled_from(
    [
        ("", ""), (" ", ""), (" ", "-"), (" ", "\u00a0"), ("-", ""), ("-", " "), ("1", "\u0661"), ("2", "\uff12"),
        ("S", "\u017f"), ("K", "\u212a"), ("+", "\uff0b"), ("0", "00"), (" ", " x "), ("(", "["), (".", ". "), (" ", "\n"),
    ]
)  # fmt: skip
PIECES = st.tuples(st.sampled_from(ONES), CHANGES, st.booleans()).map(
    lambda drawn: (drawn[0].lower() if drawn[2] else drawn[0]).replace(*drawn[1])
)


@given(st.lists(st.one_of(PIECES, st.text(max_size=4), st.from_regex(r"[0-9A-Z+(). :-]{1,20}")), max_size=6))
def test_a_hint_loses_nothing_that_is_found_without_it(pieces: list[str]) -> None:
    text = "".join(pieces)
    recognizers, hints = _loaded()
    hinted = sorted(hints.Match(text.encode()) or ())
    assert _spans(text, [recognizers[place] for place in hinted]) == _spans(text, recognizers)


def test_whatever_is_a_digit_to_a_pattern_is_one_to_the_hints() -> None:
    digits = "".join(re.findall(r"\d", "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000))))))
    assert len(digits) > 600 and re2.fullmatch(f"{_D}*", digits)
    assert not re2.search(_D, "\u00e9\u2014\u2192\u2500\u25ba"), "or every drawing would be looked at"


PROGRAM = """
import sys
reached = []
names = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")
sys.addaudithook(lambda name, values: reached.append(name) if name in names else None)
from kit.pii import PersonalData
assert not any(name.startswith(("presidio", "spacy")) for name in sys.modules)
assert PersonalData("redact").check("to ola@example.com").text == "to [redacted: EMAIL]"
print(reached)
"""


def test_it_is_loaded_late_and_reaches_for_no_network(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), list(tmp_path.rglob("*"))) == ("[]", []), done.stderr
