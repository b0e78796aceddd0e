"""The guard against denials: what a model puts side by side may say the opposite, or the same of something else.

A vector hardly tells `enable` from `disable` or 3 from 5, and no list names every opposite, tool and colleague. So the
words decide: two texts say the same where they have the same words, numbers and signs in the same order, each in
whatever form, but for words that say nothing. Where in doubt two texts differ: then one is stored that could have been
left out, while the other mistake would lose what somebody decided.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

_LETTER = r"[\w\u00a1-\u00aa\u00ac-\u00ba\u00bc-\u200f\u2030-\u2fff\u3021-\ufeff\uff21-\U0010ffff]"
"""Of a word: all but blanks and punctuation, so that no script's vowel signs and no emoji are passed over."""
_TOKEN = re.compile(
    rf"(?:(?<=\s)|^)--?(?=[^\W\d_]){_LETTER}+(?:-{_LETTER}+)*"  # a flag
    rf"|(?<![\w)\]])[-+]\d+(?:[.,:]\d+)*{_LETTER}*"  # a number with its sign
    rf"|\.?{_LETTER}+(?:[.,](?=\d){_LETTER}+|[./:@\\-]+{_LETTER}+)*(?:\+\++|\#)?"
    r"|[<>=!]=+|=>|->|<-|\+/-|&&|\|\||[<>=~^|$]|!(?=\w)|(?<=\s)[+*/](?=\s)|-(?=\s\d)|\?(?!\w)"
)
_BULLET = re.compile(r"^\s*[-*#\u2022]+\s+", re.MULTILINE)
_LOOKS = str.maketrans(
    {"\u2018": "'", "\u2019": "'", "\u2212": "-", "\u2011": "-", "\u2010": "-", "\u2260": " != ", "\u2264": " <= ",
     "\u2265": " >= ", "\u2192": " -> ", "\u21d2": " => ", "\u2190": " <- ", "\u00b1": " +/- ", "\u00d7": " * ",
     "\u00f7": " / ", "\u00b0": " \u00b0 ", "\u20ac": " \u20ac ", "\u00a3": " \u00a3 ", "\u00a5": " \u00a5 ", "$": " $ "}
)  # fmt: skip
_PHRASES = tuple(
    (re.compile(pattern, re.IGNORECASE), words)
    for pattern, words in (
        (r"(?<=\d),(?=\d{3}(?!\d))", ""),
        (r"(?<=\d)\u2013(?=\d)", "-"),
        (r"(?<=\w)--+(?=\w)", " "),
        (r"([$\u20ac\u00a3\u00a5])\s*(\d+(?:[.,]\d+)*)", r"\2 \1"),
        (r"%", " percent "),
        (r"(?<=\s)&(?=\s)", "and"),
        (r"\b(?:instead of|rather than)\b", "not"),
        (r"\b(?:must|has|have|need|needs) to\b", "must"),
        (r"\bcannot\b|\bcan'?t\b", "can not"),
        (r"\bwon'?t\b", "will not"),
        (r"\b(do|does|did|is|are|was|were|has|have|had|should|would|could|must)n'?t\b", r"\1 not"),
        (r"\bno longer\b|\bnot any ?more\b", "not"),
        (r"\btwice\b", "2 times"),
        (r"\bthrice\b", "3 times"),
        (r"(?<=\w)'(?:s|re|ll|d|ve|m)\b", ""),
        (r"\bv(?=\d+\b)", "version "),
        (r"\bwe (?:have )?(?:decided|agreed) (?:to|that we)\b", "we"),
        (r"\b(?:please note|note that|in short|as (?:decided|agreed)|as well|from now on|in this case)\b", ""),
        (r"^(?:decision|decided|remember|note|fyi|please|reminder)\b[:,]?", ""),
    )
)
_EMPTY = frozenset(
    """a an the this that these those be been being is are am do does of will would shall it its have has having
    also just please simply actually basically indeed really""".split()
)
_FORMS = """
    not never no nicht; every each; we our; i my; you your; they their them; was were did had; must shall;
    choose chose chosen pick select; run ran; write wrote written; send sent; keep kept; build built; make made;
    take took taken; give gave given; go goes going went gone; get got gotten; hold held; use using;
    database db; repository repo; configuration config; production prod; environment env; documentation docs;
    $ dollar usd; \u20ac euro eur; \u00a3 pound gbp; percent percentage;
    ms millisecond msec; us microsecond \u00b5s; ns nanosecond; s second sec; min minute; h hour hr; d day;
    kb kilobyte; mb megabyte; gb gigabyte; tb terabyte
"""
"""Words that are one, the first of them in their place."""
_ASIDE = frozenset(
    "we our i my you your they their all every each then now here there so thus hence therefore own already very well".split()
)
"""Words that one text may say and the other leave out, though not the other exchange."""
_NEGATIONS = frozenset("not none nothing nobody neither nor without avoid except unless only".split())
"""Words behind which none may be left out: not all is not none."""
_UNITS = frozenset(
    "ms us ns s min h d week month year kb mb gb tb kib mib gib tib m g k x px".split()
)
"""Units that may be written at their number."""
_SMALL = {
    word: number
    for number, word in enumerate(
        """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
        seventeen eighteen nineteen""".split()
    )
} | {
    word: 10 * tens
    for tens, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)
}
_LARGE = {"hundred": 100, "thousand": 1_000, "million": 10**6, "billion": 10**9}
_NUMERALS = _SMALL.keys() | _LARGE.keys()
_QUANTITY = re.compile(r"(?P<number>[-+]?\d+(?:[.,]\d+)*)(?P<unit>[^\W\d_]+)")
_COMPOUND = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)+")


_ALIKE = {word: group.split()[0] for group in _FORMS.split(";") for word in group.split()}


@dataclass(frozen=True)
class Reading:
    """A text, and what of its words decides; read once, when it is asked for."""

    text: str

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words, numbers and signs that say something, in order and in lower case; numbers in digits."""
        words = list(_words(self.text))
        return tuple(words if _NUMERALS.isdisjoint(words) else _counted(words))


def normalised(text: str) -> str:
    """The text in Unicode's composed form, with single blanks: texts that differ in no more say the same."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def differs(one: Reading, other: Reading) -> bool:
    """Whether two texts, however near, deny each other or speak of other things."""
    less, more = sorted((one.words, other.words), key=len)
    at = 0
    for place, word in enumerate(more):
        if at < len(less) and _same(less[at], word):
            at += 1
        elif word not in _ASIDE or (place and not _NEGATIONS.isdisjoint(_forms(more[place - 1]))):
            return True
    return at < len(less)


def _words(text: str) -> Iterator[str]:
    plain = normalised(_BULLET.sub("", text).translate(_LOOKS))
    for pattern, words in _PHRASES:
        plain = pattern.sub(words, plain)
    shouted = plain.isupper()
    for match in _TOKEN.finditer(plain):
        word = match[0].lower()
        if (parts := _QUANTITY.fullmatch(word)) and not _UNITS.isdisjoint(_forms(parts["unit"])):
            yield from parts.groups()
        elif _COMPOUND.fullmatch(word):
            # Written apart it is the same; with a part more it is another name.
            yield from (part for part in word.split("-") if part not in _EMPTY or len(part) == 1)
        elif word not in _EMPTY or (match[0] == "A" and not shouted and not _begins(plain, match.start())):
            yield word


def _begins(text: str, start: int) -> bool:
    """Whether a sentence begins here."""
    return text[:start].rstrip("\"'`( ")[-1:] in ("", ".", "!", "?", ":")


def _same(one: str, other: str) -> bool:
    """Whether two words are one in whatever form; who blocks is not blocked."""
    if one == other:
        return True
    return not _forms(one).isdisjoint(_forms(other)) and {one[-2:], other[-2:]} != {"ng", "ed"}


def _forms(word: str) -> set[str]:
    plain = word.isascii() and word.isalpha() and word not in _NUMERALS
    return {_ALIKE.get(form, form) for form in (_bare(word) if plain else (word,))}


def _bare(word: str) -> set[str]:
    """The word, and what it may be without the endings of a plural and of a verb."""
    forms = {word}
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        forms.add(word[:-1])
        if word.endswith(("ses", "xes", "zes", "ches", "shes", "oes")):
            forms.add(word[:-2])
        if word.endswith("ies"):
            forms.add(word[:-3] + "y")
    for form in tuple(forms):
        for ending in ("ing", "ed"):
            if form.endswith(ending):
                stem = form.removesuffix(ending)
                forms |= {stem, stem + "e", stem[:-1] if stem[-1:] == stem[-2:-1] else stem}
                forms.add(stem[:-1] + "y" if stem.endswith("i") else stem)
    return {form for form in forms if form == word or len(form) > 2}


def _counted(words: Iterable[str]) -> Iterator[str]:
    """The same with numbers in words as digits: `two hundred and five`, `twenty-one`."""
    total = part = 0
    counting = False
    held: list[str] = []
    for word in words:
        number = _SMALL.get(word)
        if number is not None and (not counting or _goes_on(part, number)):
            part, counting, held = part + number, True, []
        elif word in _LARGE and (counting or word == "hundred"):
            factor = _LARGE[word]
            if factor == 100:
                part = max(part, 1) * 100
            else:
                total, part = total + max(part, 1) * factor, 0
            counting, held = True, []
        elif counting and not held and word == "and" and (part >= 100 or total):
            held = [word]
        else:
            if counting:
                yield str(total + part)
            yield from held
            total, part, counting, held = 0, number or 0, number is not None, []
            if number is None:
                yield word
    if counting:
        yield str(total + part)
    yield from held


def _goes_on(part: int, number: int) -> bool:
    """Whether a number in words goes on: `twenty` with `one`, `hundred` with all below it."""
    return (part > 0 and part % 100 == 0) or (part % 100 >= 20 and part % 10 == 0 and 0 < number < 10)

