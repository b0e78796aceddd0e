"""Real sentences, and pairs of them of graded closeness, the same ones on every machine.

The sentences stand in the docstrings of the packages pinned in requirements/, so that any checkout has them: one per
line or full stop, of 40 to 300 characters. A pair is such a sentence and a version of it that a second person or
another agent might have saved: the edits below, one or more of each kind a sentence, graded from a blank to a clause
more, and with what must never be taken for the same (a denial, another number). Nothing is drawn without a seed.
"""

import ast
import random
import re
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_SEED = 4
_SHORTEST, _LONGEST = 40, 300
_PACKAGES = (
    "asyncpg cryptography google grpc grpc_health hypothesis hypothesmith jsonschema mypy numpy onnxruntime "
    "opentelemetry packaging pip protovalidate pydantic pydantic_core pytest _pytest qdrant_client qdrant_edge rich "
    "setuptools spacy presidio_analyzer tokenizers typer click httpx anyio jwt detect_secrets yaml urllib3 requests"
).split()
_SYNONYMS = dict(
    pair.split("/")
    for pair in (
        "return/give returns/gives remove/delete removes/deletes create/make creates/makes raise/throw raises/throws "
        "called/invoked call/invoke list/array object/instance function/method value/number name/label error/exception "
        "use/apply used/applied specify/state specified/given given/passed set/assign check/verify checks/verifies "
        "get/fetch gets/fetches string/text file/document directory/folder default/standard optional/extra "
        "convert/turn converts/turns start/begin end/finish large/big small/little allows/lets whether/if "
        "argument/parameter arguments/parameters contains/holds contain/hold current/present"
    ).split()
)
_CONTRACTIONS = {
    "does not": "doesn't",
    "do not": "don't",
    "is not": "isn't",
    "cannot": "can not",
    "will not": "won't",
}
SAME = frozenset(
    ("case", "typo", "synonym", "two synonyms", "contraction", "plural", "verb", "words before", "clauses turned")
)
"""Edits that leave what a sentence says."""
OTHER = frozenset(("denied", "other number"))
"""Edits that make it say something else. Of all others it depends on the word."""
_FILLERS = ("the", "a", "an", "this", "that", "also", "then", "just", "only", "all", "any")
_BEFORE = ("Note that", "Please note:", "In short:", "As decided,", "Remember:")
_AFTER = ("as well", "in this case", "from now on", "where possible", "as agreed")


@dataclass(frozen=True)
class Pair:
    """A sentence, another that somebody might save after it, and what was done to it."""

    one: str
    other: str
    kind: str


@lru_cache(maxsize=1)
def sentences() -> list[str]:
    """All sentences, in an order that is random but always the same."""
    found = set()
    for name in _PACKAGES:
        root = Path(sysconfig.get_paths()["purelib"]) / name
        for path in sorted(root.rglob("*.py")):
            if "test" not in path.name:
                found.update(_of_file(path))
    drawn = sorted(found)
    random.Random(_SEED).shuffle(drawn)
    return drawn


def _of_file(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for piece in re.split(r"(?<=[.!?])\s+|\n\n", ast.get_docstring(node) or ""):
                line = " ".join(piece.split())
                if _SHORTEST <= len(line) <= _LONGEST and line[0].isupper() and line[-1] in ".!?":
                    yield line


def pairs(count: int, drawn: list[str]) -> list[Pair]:
    """`count` pairs, each kind of edit in turn; a kind that finds nothing to do in a sentence passes it on."""
    rng, made = random.Random(_SEED), []
    kinds = list(_EDITS.items())
    for position, sentence in enumerate(drawn):
        if len(made) == count:
            return made
        for offset in range(len(kinds)):
            kind, edit = kinds[(position + offset) % len(kinds)]
            other = edit(sentence, rng)
            if other and other != sentence:
                made.append(Pair(sentence, other, kind))
                break
    raise ValueError(f"{len(drawn)} sentences give {len(made)} pairs, not {count}")


def _case(text: str, rng: random.Random) -> str:
    return rng.choice(
        (text.upper(), text.lower(), text.rstrip("."), text[:-1] + "!", text.replace(" ", "  ", 2))
    )


def _drop(text: str, rng: random.Random, words: tuple[str, ...] = ()) -> str:
    parts = text.split()
    places = [at for at, word in enumerate(parts) if at and (not words or word.lower() in words)]
    if not places:
        return ""
    del parts[rng.choice(places)]
    return " ".join(parts)


def _swap(text: str, rng: random.Random) -> str:
    parts = text.split()
    at = rng.randrange(len(parts) - 1)
    parts[at], parts[at + 1] = parts[at + 1], parts[at]
    return " ".join(parts)


def _typo(text: str, rng: random.Random) -> str:
    places = [match for match in re.finditer(r"[a-z]{5,}", text)]
    if not places:
        return ""
    at = rng.randrange((found := rng.choice(places)).start() + 1, found.end() - 1)
    return rng.choice(
        (
            text[:at] + text[at + 1 :],
            text[:at] + text[at] + text[at:],
            text[:at] + text[at + 1] + text[at] + text[at + 2 :],
        )
    )


def _synonym(text: str, rng: random.Random, most: int = 1) -> str:
    parts = text.split()
    places = [at for at, word in enumerate(parts) if word.lower() in _SYNONYMS]
    if len(places) < most:
        return ""
    for at in rng.sample(places, most):
        parts[at] = _SYNONYMS[parts[at].lower()]
    return " ".join(parts)


def _contract(text: str, rng: random.Random) -> str:
    for long, short in _CONTRACTIONS.items():
        if long in text:
            return text.replace(long, short)
    return ""


def _number(text: str, rng: random.Random) -> str:
    """Plural for singular or the other way round, of one word."""
    places = [match for match in re.finditer(r"\b[a-z]{4,}\b", text)]
    if not places:
        return ""
    found = rng.choice(places)
    word = found[0][:-1] if found[0].endswith("s") else found[0] + "s"
    return text[: found.start()] + word + text[found.end() :]


def _verb(text: str, rng: random.Random) -> str:
    """`Return x.` for `Returns x.`, and back."""
    first, _, rest = text.partition(" ")
    if not first.isalpha():
        return ""
    return f"{first.removesuffix('s') if first.endswith('s') else first + 's'} {rest}"


def _before(text: str, rng: random.Random) -> str:
    return f"{rng.choice(_BEFORE)} {text[0].lower()}{text[1:]}"


def _after(text: str, rng: random.Random) -> str:
    return f"{text[:-1]} {rng.choice(_AFTER)}."


def _turn(text: str, rng: random.Random) -> str:
    """The clause after a comma first."""
    head, comma, tail = text[:-1].partition(", ")
    return f"{tail[0].upper()}{tail[1:]}, {head[0].lower()}{head[1:]}." if comma and len(tail) > 10 else ""


def _deny(text: str, rng: random.Random) -> str:
    return re.sub(r"\b(is|are|will|should|must|can|may)\b", r"\1 not", text, count=1)


def _other_digits(text: str, rng: random.Random) -> str:
    return re.sub(r"\d+", lambda found: str(int(found[0]) + 1), text, count=1)


_EDITS: dict[str, Callable[[str, random.Random], str]] = {
    "case": _case,
    "filler dropped": lambda text, rng: _drop(text, rng, _FILLERS),
    "word dropped": _drop,
    "words swapped": _swap,
    "typo": _typo,
    "synonym": _synonym,
    "two synonyms": lambda text, rng: _synonym(text, rng, 2),
    "contraction": _contract,
    "plural": _number,
    "verb": _verb,
    "words before": _before,
    "words after": _after,
    "clauses turned": _turn,
    "two edits": lambda text, rng: _drop(_after(text, rng), rng),
    "denied": _deny,
    "other number": _other_digits,
}
