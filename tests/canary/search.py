"""Searches every file of every store for unique words, in every form in which bytes could hide them."""

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.files import contents


@dataclass(frozen=True)
class Found:
    """A needle in a file, and the form it stood in."""

    path: Path
    form: str


def forms(word: str) -> Iterator[tuple[str, bytes]]:
    """The word as plain, lower and upper case, UTF-16 both ways, hex, and base64 of both alphabets at each alignment."""
    plain = word.encode()
    yield "plain", plain
    yield "utf-16-le", word.encode("utf-16-le")
    yield "utf-16-be", word.encode("utf-16-be")
    yield "lower utf-16-le", word.lower().encode("utf-16-le")
    yield from encodings(plain)


def encodings(plain: bytes) -> Iterator[tuple[str, bytes]]:
    """Bytes as hex, and as base64 of both alphabets at each of its three alignments."""
    yield "hex", plain.hex().encode()
    for shift in range(3):
        # The characters at both ends depend on the neighbours; those between do not.
        text = base64.b64encode(b"\0" * shift + plain)[4 if shift else 0 :][: len(plain) // 3 * 4 - 4]
        yield f"base64 at {shift}", text
        if (url := text.translate(bytes.maketrans(b"+/", b"-_"))) != text:
            yield f"url base64 at {shift}", url


def search(folders: Iterable[Path], words: Iterable[str], raw: Iterable[bytes] = ()) -> list[Found]:
    """All places where a word (in any form, any case) or raw bytes (as they are, hex, base64) stand in a file below."""
    wanted = [(form, needle) for word in words for form, needle in forms(word)]
    for needle in raw:
        wanted += [("raw bytes", needle), *encodings(needle)]
    found = []
    for folder in folders:
        for path, data in contents(folder):
            lower = data.lower()
            for form, needle in wanted:
                if needle in data or (form in ("plain", "hex") and needle.lower() in lower):
                    found.append(Found(path, form))
    return found
