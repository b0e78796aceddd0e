"""What makes two texts the same words."""

import unicodedata


def normalised(text: str) -> str:
    """The text in Unicode's composed form, with single blanks: texts that differ in no more say the same."""
    return " ".join(unicodedata.normalize("NFC", text).split())
