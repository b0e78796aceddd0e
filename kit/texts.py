"""What makes two texts the same words, and what makes a text one at all."""

import re
import unicodedata

_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and symbols that are drawn as nothing."""
_PLAIN = re.compile(r"[0-9A-Za-z]")
"""What nearly every text holds, and is found without asking Unicode about each character."""


def normalised(text: str) -> str:
    """The text in Unicode's composed form, with single blanks: texts that differ in no more say the same."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def visible(text: str) -> bool:
    """Whether a text holds a letter, a digit, a mark or a symbol that is drawn."""
    if _PLAIN.search(text) is not None:
        return True
    return any(unicodedata.category(each)[0] in "LNPS" and each not in _BLANK for each in text)
