"""Tokens that a caller is to hand back as they were given: bytes in URL-safe letters, each in one form alone."""

import base64


def written(raw: bytes) -> str:
    """The one form of these bytes."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def read(text: str) -> bytes:
    """The bytes. Raises ValueError for anything but their one form.

    A decoder also takes other letters for the bits that are left over at the end, padding, and the other alphabet.
    """
    raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if written(raw) != text:
        raise ValueError("not the form in which it was given")
    return raw
