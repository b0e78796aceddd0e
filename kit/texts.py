"""What makes two texts the same words, and what makes a text one at all."""

import re
import unicodedata
from textwrap import dedent

_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and symbols that are drawn as nothing."""
_PLAIN = re.compile(r"[0-9A-Za-z]")
"""What nearly every text holds, and is found without asking Unicode about each character."""
_UNDRAWN = "\u00ad\u034f\u061c\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
"""What web pages and messengers put between letters and nobody sees: soft hyphens, joiners, marks of direction."""
ODD = f"[{_UNDRAWN}\u00a0\u2000-\u200a\u202f\u205f\u3000\uff01-\uff5e]"
"""A pattern of what every text holds that looks other than it is."""
_ODD = re.compile(ODD)
_UNSEEN = re.compile(f"[{_UNDRAWN}]")
_LIKE_ASCII = {wide: wide - 0xFEE0 for wide in range(0xFF01, 0xFF5F)} | dict.fromkeys(
    (0xA0, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000), " "
)


def as_drawn(text: str) -> tuple[str, list[int]] | None:
    """The text as it looks, in plain blanks and letters of usual width, and where each of its characters stands in `text`.

    None where that is the text itself, as nearly always.
    """
    if text.isascii() or _ODD.search(text) is None:
        return None
    places = [place for place, each in enumerate(text) if _UNSEEN.match(each) is None]
    return "".join(text[place] for place in places).translate(_LIKE_ASCII), places


def normalised(text: str) -> str:
    """The text in Unicode's composed form, with single blanks: texts that differ in no more say the same.

    Where a line is indented or begins with a sign, as in code, YAML and lists, lines and indentation stay: they say what
    belongs to what.
    """
    plain = unicodedata.normalize("NFC", text)
    lines = [line.rstrip() for line in plain.splitlines()]
    full = [place for place, line in enumerate(lines) if line]
    begin = [lines[place] for place in full]
    if len(begin) > 1 and not all(line[0].isalnum() for line in [begin[0].lstrip(), *begin[1:]]):
        return dedent("\n".join(lines[full[0] : full[-1] + 1]))
    return " ".join(plain.split())


def visible(text: str) -> bool:
    """Whether a text holds a letter, a digit, a mark or a symbol that is drawn."""
    if _PLAIN.search(text) is not None:
        return True
    return any(unicodedata.category(each)[0] in "LNPS" and each not in _BLANK for each in text)
