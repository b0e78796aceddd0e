"""A text's terms: what near-duplicates are looked for by, before any model is asked.

A term is the beginning of a word, two characters of a script written without blanks, or a symbol. It weighs the more
the rarer its words are in English at large; that is known beforehand, so that the first memories of a bank are compared
like the last ones, and no count of a bank's words is kept. The terms of a text make a unit vector: the product of two
is 1 for equal texts and 0 for texts without a common term. Outside of this process a term is a number that only the
key of its bank makes.
"""

import hmac
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise

from teamlore_embedder import vocabulary

from kit.texts import normalised

MOST_TERMS = 128
"""Of a longer text the heaviest ones; equal texts have equal ones."""
EQUAL = 0.999
"""The product from which on two texts may be equal."""
LEADING = 3
"""The heaviest terms of a text. Two that say the same share two of them: one of their words may be in another form, or
have been added (`bench/near_duplicates.py` tells what that misses)."""
_LEAST, _LEAST_BOUND, _SLOPE = 0.85, 0.40, 2.0
_BEGINNING = 5
"""Characters of a word that count, so that `configure` and `configured` are one term."""
_COMMON = 60
"""So many of the commonest words count only in a text that has no others: they tell nothing and stand everywhere."""
_BESIDE = frozenset(word[:_BEGINNING] for word in "please note remember reminder fyi".split())
"""What people say before what they have to say; like the commonest, and it must not lead."""

_WITHOUT_BLANKS = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_WITHOUT_BLANKS}]+|[^\W_{_WITHOUT_BLANKS}]+")
_DENSE = re.compile(rf"[{_WITHOUT_BLANKS}]")

Terms = Mapping[int, float]
"""A unit vector, by the number of each term: 32 bits, as a sparse vector of Qdrant takes them."""


def bound(threshold: float) -> float | None:
    """The product from which on a pair is a candidate at a cosine of `threshold`; None where words tell too little.

    Measured by `bench/near_duplicates.py`: of the pairs at or above the cosine less than one in a hundred lies below it.
    """
    return _LEAST_BOUND + _SLOPE * (threshold - _LEAST) if threshold >= _LEAST else None


@lru_cache(maxsize=1)
def _ranks() -> dict[str, int]:
    """How common the commonest word of each beginning is, the commonest 1; `the` stands before all other words."""
    words = vocabulary()
    first = words.index("the")
    ranks: dict[str, int] = {}
    for rank, word in enumerate(words[first:], 1):
        if not word.startswith("##"):
            ranks.setdefault(word[:_BEGINNING], rank)
    return ranks


@lru_cache(maxsize=1)
def _rarest() -> float:
    return math.log(1 + max(_ranks().values()))


def _weight(term: str) -> float:
    if len(term) == 1 and term.isascii():
        return 1.0
    rank = _ranks().get(term)
    return _rarest() if rank is None else math.log(1 + rank)


_COMMON_WEIGHT = math.log(1 + _COMMON)


def _spoken(text: str) -> Iterator[str]:
    """The terms in plain form, as the model reads a text: without case and accents."""
    plain = normalised(text).lower()
    if not plain.isascii():
        bare = (each for each in unicodedata.normalize("NFKD", plain) if unicodedata.category(each) != "Mn")
        plain = unicodedata.normalize("NFC", "".join(bare))
    for word in _WORD.findall(plain):
        if not _DENSE.match(word):
            yield word[:_BEGINNING]
        elif len(word) == 1:
            yield word
        else:
            yield from map("".join, pairwise(word))


def weigh(text: str) -> dict[str, float]:
    """The terms of a text in plain form, and what each weighs; every text but an empty one has some."""
    weights = {term: _weight(term) for term in _spoken(text)}
    telling = {
        term: weight for term, weight in weights.items() if weight > _COMMON_WEIGHT and term not in _BESIDE
    }
    return telling or weights or dict.fromkeys("".join(normalised(text).split()), 1.0)


@lru_cache(maxsize=100_000)
def _number(key: bytes, term: str) -> int:
    return int.from_bytes(hmac.digest(key, term.encode(), "sha256")[:4], "big")


@dataclass(frozen=True)
class TermKeys:
    """Makes terms under a key per bank."""

    secret: bytes

    def of(self, bank: str, text: str) -> Terms:
        """The terms of a text of a bank."""
        key = hmac.digest(self.secret, bank.encode(), "sha256")
        weights: dict[int, float] = {}
        for term, weight in weigh(text).items():
            weights[_number(key, term)] = weight
        if len(weights) > MOST_TERMS:
            heaviest = sorted(weights.items(), key=lambda item: (-item[1], item[0]))
            weights = dict(heaviest[:MOST_TERMS])
        whole = sum(weights.values())
        return {number: math.sqrt(weight / whole) for number, weight in weights.items()}


def leads(terms: Terms) -> list[str]:
    """What a text is looked up by: each two of its heaviest terms, and each alone where it has no others.

    A word alone, and be it rare, stands in many texts of a large bank, two of them together in few.
    """
    heaviest = sorted(terms, key=lambda number: (-terms[number], number))[:LEADING]
    pairs = [f"{min(pair):08x}{max(pair):08x}" for pair in combinations(heaviest, 2)]
    return pairs if len(terms) > LEADING else pairs + [f"{number:08x}" for number in heaviest]


def product(one: Terms, other: Terms) -> float:
    """How much two texts share, 0 to 1."""
    if len(one) > len(other):
        one, other = other, one
    return sum(part * other[number] for number, part in one.items() if number in other)
