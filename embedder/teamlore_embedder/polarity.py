"""The guard against denials: what a model puts side by side may say the opposite, or the same of something else.

A vector hardly tells `enable` from `disable` or 3 from 5, and no list names every opposite, tool and colleague. So two
texts say the same only where they are the same, word by word and sign by sign, but for the few differences that are
undone here. Where in doubt two texts differ: then one is stored that could have been left out, while the other mistake
would lose what somebody decided.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from textwrap import dedent

_LOOKS = str.maketrans(
    {wide: wide - 0xFEE0 for wide in range(0xFF01, 0xFF5F)}
    | dict.fromkeys(map(ord, "\u2018\u2019\u201a\u201b"), "'")
    | dict.fromkeys(map(ord, "\u201c\u201d\u201e\u201f"), '"')
    | dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212"), "-")
)
"""Signs that look other than the one of a keyboard that they are."""
_BEFORE = re.compile(r"(?:note that|please note:|remember:) ", re.IGNORECASE)
_STOP = re.compile(r"""(?<=[\w)\]"'`%])[.\u3002]$""")
"""The last stop. That of `cd .` and `*.` is no such."""
_VERBS = "do does did is are was were has have had should would could must need".split()
_CONTRACTED = (
    (re.compile(rf"\b({'|'.join(f'[{verb[0].upper()}{verb[0]}]{verb[1:]}' for verb in _VERBS)})n't\b"), r"\1 not"),
    (re.compile(r"\b([Cc]an)(?:'t|not)\b"), r"\1 not"),
    (re.compile(r"\b([Ww])on't\b"), r"\1ill not"),
)
_VOWEL = re.compile("[aeiouy]")
_WORD = re.compile(r"([a-z]+(?:-[a-z]+)?)([,.;:?!)]*)")
_ARTICLES = frozenset(("a", "an", "the"))
_NO_NOUNS = frozenset(
    """and or nor but not is was are were has had may can could must should will would does did of to in on at by as for
    from with into over under after before if when then than few little first second last next most least only""".split()
)
"""What shows that the word before it is a name (plan a and plan b), or that both say something together (a few)."""
_MODALS = frozenset("will may can must".split())
"""Behind which no verb has an s: if it has, they are Will and May."""
_NO_PLURALS = frozenset(
    """news means goods customs arms premises odds others besides dozens hundreds thousands millions billions
    seconds minutes hours days weeks months quarters years sometimes mornings evenings nights weekends
    mondays tuesdays wednesdays thursdays fridays saturdays sundays""".split()
)
"""Words that say something else with an s than without: another thing, or another time."""
_ONES = """one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen""".split()
_NUMERALS = {word: str(number) for number, word in enumerate(["zero", *_ONES])}
for _ten, _word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2):
    _NUMERALS |= {_word: str(10 * _ten)}
    _NUMERALS |= {f"{_word}-{one}": str(10 * _ten + number) for number, one in enumerate(_ONES[:9], 1)}


@dataclass(frozen=True)
class Reading:
    """A text, and what of it decides; read once, when it is asked for."""

    text: str

    @cached_property
    def words(self) -> tuple[str, ...]:
        """What stands between blanks, in order, without what makes no difference; of a text with indented lines its lines."""
        plain = normalised(self.text)
        return tuple(plain.split("\n") if "\n" in plain else _words(plain))


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


def differs(one: Reading, other: Reading) -> bool:
    """Whether two texts, however near, deny each other or speak of other things."""
    return one.words != other.words


def _words(plain: str) -> Iterator[str]:
    plain = plain.translate(_LOOKS)
    if before := _BEFORE.match(plain):
        plain = plain[before.end() :]
    for pattern, words in _CONTRACTED:
        plain = pattern.sub(words, plain)
    parts = _begun(_STOP.sub("", plain).split())
    for place, part in enumerate(parts):
        if not _is_article(parts, place):
            found = _WORD.fullmatch(part)
            named = place > 0 and parts[place - 1] in _MODALS
            yield part if found is None or named else _plain(found[1]) + found[2]


def _begun(parts: list[str]) -> list[str]:
    """With the first word in lower case where it has a capital because it is the first. Behind a stop may stand a name."""
    first, *others = parts or [""]
    begins = first[1:2].islower() and first[1:] == first[1:].lower()
    if begins or (first == "A" and _is_article(["a", *others], 0)):
        first = first.lower()
    return [first, *others]


def _is_article(parts: list[str], place: int) -> bool:
    if parts[place] not in _ARTICLES or place + 1 == len(parts):
        return False
    following = parts[place + 1].rstrip(",.;:?!)").lower()
    return following[:1].isalpha() and following not in _NO_NOUNS


def _plain(word: str) -> str:
    """A word in lower case without the s of a plural or of a third person; a number in digits."""
    if len(word) < 4 or word[-1] != "s" or "-" in word or word in _NO_PLURALS:
        return _NUMERALS.get(word, word)
    return word[:-1] if _VOWEL.search(word) else word
