"""The negation guard: what a model puts side by side may say the opposite, or the same of something else.

A vector hardly tells `enable` from `disable` or 3 from 5. These rules look at the words. Where in doubt two texts
differ: then one is stored that could have been left out, while the other mistake would lose what somebody decided.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from kit.texts import normalised

_WORD = re.compile(r"[^\W_]+(?:['._/:-]+[^\W_]+)*")
_NAME = re.compile(
    r"(?<![\w./:#-])(?:"
    r"--[^\W_][\w-]*"  # a flag
    r"|(?=[\w./:#-]*[^\W_][./:#]\w|[\w-]*\w_|_\w|\w[\w-]*[A-Z])[\w./:#-]+"  # a path, an identifier, LARGE or camelCase
    r"|(?P<large>[A-Z][\w-]*))"
)
_NUMBER = re.compile(r"\d+(?:[.:]\d+)*")
_PHRASES = (
    (re.compile(r"(?<=\d),(?=\d{3})"), ""),
    (re.compile(r"\b(?:instead of|rather than)\b"), " not "),
    (re.compile(r"\b(?:must|has|have|need|needs) to\b"), " must "),
    (re.compile(r"\bcannot\b|\bcan't\b"), "can not"),
    (re.compile(r"\bwon't\b"), "will not"),
    (re.compile(r"n't\b"), " not"),
    (re.compile(r"\bno longer\b|\bnot any ?more\b"), "not"),
)
_NOT = frozenset(
    """not never no none nothing nobody nowhere neither nor without avoid avoids lack lacks except unless only
    nicht kein keine keinen keiner nie niemals ohne jamais nunca""".split()
)
"""Words that turn or narrow what follows."""
_EMPTY = frozenset(
    """a an the this that these those any ever be been being is are was were am do does did to of and or will would
    should shall we i you they it our your their its""".split()
)
_ORDERED = frozenset("over than from to into before after by above below on for".split())
"""Words between two things that may not change places."""
_OPPOSITES = (
    "enable/disable on/off allow/deny allow/forbid allow/block permit/forbid always/never true/false before/after "
    "above/below over/under increase/decrease raise/lower add/remove start/stop accept/reject include/exclude "
    "show/hide open/close public/private must/may must/should should/may minimum/maximum min/max first/last up/down "
    "least/most more/less more/fewer before/until all/some all/any every/some both/either required/optional "
    "mandatory/optional success/failure succeed/fail pass/fail read/write upper/lower left/right begin/end "
    "ascending/descending internal/external input/output server/client sync/async safe/unsafe keep/drop keep/remove "
    "push/pull upgrade/downgrade encrypt/decrypt encode/decode lock/unlock often/rarely hot/cold inside/outside "
    "valid/invalid present/absent with/without can/must default/optional synchronous/asynchronous mutable/immutable"
)
_PREFIXES = ("un", "dis", "in", "im", "non", "non-", "de", "a", "ir", "re")
_UNITS = {
    **dict.fromkeys(("ms", "millisecond"), "ms"),
    **dict.fromkeys(("s", "sec", "second"), "s"),
    **dict.fromkeys(("min", "minute"), "min"),
    **dict.fromkeys(("h", "hour"), "h"),
    **dict.fromkeys(("d", "day"), "day"),
    **{unit: unit for unit in "us week month year byte kb mb gb tb kib mib gib percent".split()},
}
_NUMERALS = {
    word: str(number) for number, word in enumerate("two three four five six seven eight nine ten eleven twelve".split(), 2)
}  # fmt: skip


def _stem(word: str) -> str:
    """The word without the endings by which one and the same word differs."""
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 2:
            return word[: -len(ending)]
    return word


def _pairs() -> dict[str, frozenset[str]]:
    opposite: dict[str, set[str]] = {}
    for pair in _OPPOSITES.split():
        one, other = map(_stem, pair.split("/"))
        opposite.setdefault(one, set()).add(other)
        opposite.setdefault(other, set()).add(one)
    return {word: frozenset(others) for word, others in opposite.items()}


_OPPOSITE = _pairs()


@dataclass(frozen=True)
class Reading:
    """A text, and what of its words decides; each part is read once, when it is asked for."""

    text: str

    @cached_property
    def _plain(self) -> str:
        plain = normalised(self.text).replace("\u2019", "'").lower()
        for pattern, words in _PHRASES:
            plain = pattern.sub(words, plain)
        return plain

    @cached_property
    def words(self) -> tuple[str, ...]:
        """All words in order, in lower case; of small numbers the digits."""
        return tuple(_NUMERALS.get(word, word) for word in _WORD.findall(self._plain))

    @cached_property
    def stems(self) -> tuple[str, ...]:
        """The words that say something, without their endings."""
        return tuple(_stem(word) for word in self.words if word not in _EMPTY)

    @cached_property
    def denied(self) -> Counter[str]:
        """What stands behind each word that turns or narrows."""
        found: Counter[str] = Counter()
        for position, word in enumerate(self.words):
            if word in _NOT:
                behind = (_stem(one) for one in islice(self.words, position + 1, None) if one not in _EMPTY)
                found[("only " if word == "only" else "") + next(behind, "")] += 1
        return found

    @cached_property
    def numbers(self) -> tuple[tuple[str, str], ...]:
        """Numbers and versions in order, each with its unit."""
        words = " ".join(self.words)
        found = []
        for match in _NUMBER.finditer(words):
            behind = re.match(r"\s?([a-z]+)", words[match.end() :])
            unit = behind[1] if behind else ""
            found.append((match[0], _UNITS.get(unit, _UNITS.get(unit.removesuffix("s"), ""))))
        return tuple(found)

    @cached_property
    def names(self) -> frozenset[str]:
        """Identifiers, acronyms and names in lower case: what is written unlike a plain word, or large within a sentence."""
        found = set()
        text = normalised(self.text)
        for match in _NAME.finditer(text):
            if match["large"] is None or not _begins(text, match.start()):
                found.add(match[0].strip(".,:;/-").lower())
        return frozenset(found)


def differs(one: Reading, other: Reading) -> bool:
    """Whether two texts, however near, deny each other or speak of other things."""
    if one.words == other.words:
        return False
    if one.denied != other.denied or one.numbers != other.numbers:
        return True
    if _unknown(one, other) or _unknown(other, one):
        return True
    mine, theirs = Counter(one.stems), Counter(other.stems)
    if mine == theirs:
        return one.stems != other.stems and not _ORDERED.isdisjoint(one.words)
    only_mine, only_theirs = tuple(mine - theirs), tuple(theirs - mine)
    # At the beginning of a sentence a name looks like any word; where all others are the same it is taken for one.
    if (only_mine, only_theirs) == (_first(one), _first(other)):
        return True
    return any(_opposite(a, b) for a in only_mine for b in only_theirs) or _turned(only_mine, only_theirs)


def _begins(text: str, start: int) -> bool:
    """Whether a sentence begins here."""
    before = text[max(0, start - 4) : start].rstrip("\"'`( ")
    return before[-1:] in (".", "!", "?", ":") or (not before and start < 4)


def _first(reading: Reading) -> tuple[str, ...]:
    return tuple(_stem(word) for word in reading.words[:1])


def _unknown(one: Reading, other: Reading) -> bool:
    """Whether one names what does not occur in the other at all."""
    return any(name not in other.names and name not in other.words for name in one.names)


def _opposite(a: str, b: str) -> bool:
    if b in _OPPOSITE.get(a, ()):
        return True
    return any(a == prefix + b or b == prefix + a for prefix in _PREFIXES if len(min(a, b, key=len)) >= 3)


def _turned(mine: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether exactly one says that it must or may be, or how often."""
    return bool(_weights(mine)) != bool(_weights(theirs))


def _weights(stems: Iterable[str]) -> set[str]:
    return {"must", "may", "alway", "always", "rarely", "optional"} & set(stems)
