"""What makes two texts the same words, and what makes a text one at all."""

import unicodedata

_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and symbols that are drawn as nothing."""


def normalised(text: str) -> str:
    """The text in Unicode's composed form, with single blanks: texts that differ in no more say the same."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def visible(text: str) -> bool:
    """Whether a text holds a letter, a digit, a mark or a symbol that is drawn."""
    return any(unicodedata.category(each)[0] in "LNPS" and each not in _BLANK for each in text)
