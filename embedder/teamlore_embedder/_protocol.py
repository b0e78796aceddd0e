"""What every embedder promises, and the checks and batching that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]

#: Texts in one run of the model. Larger chunks gain nothing on a CPU and cost memory.
CHUNK = 64

#: Share of a text's characters, blanks aside, that may lie in words the model has no tokens for. A word is counted
#: by its length: a whole sentence of a script written without blanks is one unknown token.
UNKNOWN_SHARE = 0.01


class EmbedderUnavailable(RuntimeError):
    """The model, or the package that runs it, is missing, unreadable or not the expected one."""


class Embedder(Protocol):
    """Texts in, unit vectors out. Deterministic: the same text gives the same vector, alone or in a batch."""

    @property
    def model(self) -> str:
        """Name of the model, for people and for the index's record."""

    @property
    def revision(self) -> str:
        """sha256 (64 lower-case hex digits) of the file or files the model was loaded from."""

    @property
    def dimension(self) -> int:
        """Length of every vector."""

    @property
    def in_caller(self) -> bool:
        """Whether a call computes in the calling thread alone, at that thread's priority and beside other calls.

        Where it does not, calls are to be made one after the other.
        """

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return float32 of shape (len(texts), dimension): row i is texts[i], with Euclidean length 1.

        No texts give shape (0, dimension). Text past the model's limit of tokens is cut off.
        Raises ValueError when a text holds a lone surrogate (it is not Unicode text).
        """

    def seen_whole(self, texts: Sequence[str]) -> list[bool]:
        """Tell for each text whether its vector tells of all of it; raises as `embed` does.

        False when it was cut off at the model's limit of tokens, or when more than `UNKNOWN_SHARE` of it are words
        the model does not know. Different texts then have the same vector: no cosine says that two of them agree.
        """


def check_texts(texts: Sequence[str]) -> None:
    """Raise ValueError, naming the position but never the text, when a text holds a lone surrogate.

    Raises TypeError for a single string, which would otherwise be taken apart into its characters.
    """
    if isinstance(texts, str):
        raise TypeError("embed takes a sequence of texts, not one string")
    for position, text in enumerate(texts):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"text {position} holds a lone surrogate, so it is not Unicode text") from None


def embed_in_chunks(texts: Sequence[str], dimension: int, run: Callable[[list[str]], Vectors]) -> Vectors:
    """Run the model over chunks of texts of like length and return the rows in the order of `texts`.

    Sorting by length keeps padding, and so wasted work, small. `run` maps n texts to shape (n, dimension).
    """
    rows = np.empty((len(texts), dimension), dtype=np.float32)
    order = sorted(range(len(texts)), key=lambda position: len(texts[position]))
    for start in range(0, len(order), CHUNK):
        chunk = order[start : start + CHUNK]
        rows[chunk] = run([texts[position] for position in chunk])
    return rows


def is_seen_whole(text: str, length: int, limit: int, unknown: Iterable[tuple[int, int]]) -> bool:
    """Decide it for a text of `length` tokens, of which those at the spans `unknown` of the text are not known."""
    if length > limit:
        return False
    unseen = sum(len("".join(text[start:end].split())) for start, end in unknown)
    return unseen <= UNKNOWN_SHARE * len("".join(text.split()))


def unit_length(rows: npt.NDArray[np.floating]) -> Vectors:
    """Scale every row of shape (n, d) to Euclidean length 1, as float32.

    Raises ValueError for a row of zeros.
    """
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.all(lengths > 0):
        raise ValueError("the model gave a vector without a direction")
    unit: Vectors = (rows / lengths).astype(np.float32)
    return unit
