"""What a memory is on the laptop: its scope, its fields and the errors that name one wrongly."""

import math
import re
import secrets
import struct
import unicodedata
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType

DIMENSION = 384

Scalar = str | bool | int | float

_WIRE_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")
_BANK_ID = re.compile(r"[A-Za-z0-9._:@-]{1,255}")
_AROUND = re.compile(r"^[\W_]+|[\W_]+$")
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")  # letters and symbols that are drawn as nothing
STATUSES = ("current", "suspect", "contradicted", "superseded")
HIDDEN = ("contradicted", "superseded")
"""Statuses that leave recall; a list still shows them, marked."""
CLAIM = "claim"
"""The kind of fact that has to say what it rests on."""
PRIVATE = "private"
"""The tag of what is never shared by itself."""
CAPTURED = "captured"
"""The tag of what a conversation left behind: shared only where the project opted in."""
DERIVATIONS = ("fact", "observation", "model")


class FieldInvalid(ValueError):
    """A field of a memory breaks its rule; `field` names it."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field


class UnknownId(LookupError):
    """No memory's id starts with what was given; nothing was changed."""

    def __init__(self, given: str) -> None:
        super().__init__(f"no memory has an id that starts with {given!r}")


class AmbiguousId(LookupError):
    """Several ids start with what was given; nothing was changed. `candidates` holds some of them."""

    def __init__(self, given: str, candidates: tuple[str, ...]) -> None:
        super().__init__(f"{given!r} could be any of {', '.join(candidates)}")
        self.candidates = candidates


@dataclass(frozen=True)
class Scope:
    """Whose memory it is: the layer (`visibility`) and the owner that the layer asks for."""

    visibility: str
    """`system`, `team`, `client` or `private`."""
    team_id: str | None = None
    client_id: str | None = None
    user_id: str | None = None


def scope_of(bank: str) -> Scope:
    """Return the scope that a bank's id implies; a project without a named team is its own team.

    Raises FieldInvalid for an id of no known layer.
    """
    layer, _, name = bank.partition(":")
    if not _BANK_ID.fullmatch(bank) or not name:
        raise FieldInvalid("bank", "must be a layer, a colon and a name")
    if layer == "system":
        return Scope("system")
    if layer in ("project", "space"):
        return Scope("team", team_id=bank)
    if layer == "private":
        return Scope("private", user_id=name)
    team, _, client = name.partition(":")
    if layer == "client" and team and client:
        return Scope("client", team_id=team, client_id=client)
    raise FieldInvalid("bank", "must start with system:, project:, space:, client:<team>: or private:")


@dataclass(frozen=True)
class Standing:
    """What the team holds of a memory now; changes while the text does not."""

    version: int = 1
    """Grows with each change."""
    status: str = "current"
    """`current`, `suspect`, `contradicted` or `superseded`."""
    trust: str = "extracted"
    """`extracted`, `agent_inferred`, `agent_verified` or `human`."""
    may_be_stale: bool = False
    superseded_by: str = ""
    """The id of the memory that took its place."""
    last_verified: datetime | None = None


@dataclass(frozen=True)
class Citation:
    """What a memory rests on: a source that teammates can open, words of it, or both."""

    uri: str = ""
    """`https:`, `http:`, or `repo:` and a path in the project's repository."""
    excerpt: str = ""


@dataclass(frozen=True)
class Memory:
    """One immutable text with what is known about it."""

    id: str
    bank: str
    scope: Scope
    text: str
    created_at: datetime
    """When it was retained; aware, kept to the microsecond."""
    occurred_at: datetime | None = None
    """When what it tells happened; aware."""
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Scalar] = field(default_factory=lambda: MappingProxyType({}))
    fact_type: str | None = None
    derivation: str = "fact"
    """`fact`, `observation` or `model`; only facts are ever pushed."""
    author: str | None = None
    """The principal whom the server stamped; None on what was made here."""
    standing: Standing = Standing()
    citations: tuple[Citation, ...] = ()


def visible(text: str) -> bool:
    """Return whether a text holds a letter, a digit, a mark or a symbol that is drawn; the server asks the same."""
    return any(unicodedata.category(each)[0] in "LNPS" and each not in _BLANK for each in text)


def tagged(tags: Iterable[str], word: str) -> bool:
    """Return whether a tag says the word, however that is written: `Private`, ` private `, `#private`, `private,queue`.

    What leaves the laptop must not hang on a capital letter or on a blank that nobody sees. Tags are kept as they came.
    """
    return any(word in _words(tag) for tag in tags)


@lru_cache(maxsize=4096)
def _words(tag: str) -> frozenset[str]:
    folded = unicodedata.normalize("NFKC", tag).casefold()
    drawn = "".join(each for each in folded if each not in _BLANK and unicodedata.category(each) not in ("Cf", "Mn"))
    return frozenset(_AROUND.sub("", part) for part in re.split("[,;]", drawn))


def may_start_id(given: str) -> bool:
    """Return whether some id could start with this."""
    return re.fullmatch(r"[A-Za-z0-9_-]{1,64}", given) is not None


def new_id() -> str:
    """Return a random 64-bit id as 16 hex digits."""
    return secrets.token_hex(8)


def check(memory: Memory) -> None:
    """Raise FieldInvalid for the first field that breaks its rule."""
    if not _WIRE_ID.fullmatch(memory.id):
        raise FieldInvalid("id", "must match [A-Za-z0-9_-]{8,64}")
    if not _BANK_ID.fullmatch(memory.bank):
        raise FieldInvalid("bank", "must match [A-Za-z0-9._:@-]{1,255}")
    if not memory.text:
        raise FieldInvalid("text", "must not be empty")
    strings = [value for value in memory.metadata.values() if isinstance(value, str)]
    texts = {
        "text": memory.text,
        "tags": "".join(memory.tags),
        "metadata": "".join([*memory.metadata, *strings]),
        "fact_type": memory.fact_type or "",
        "author": memory.author or "",
        "citations": "".join(each.uri + each.excerpt for each in memory.citations),
    }
    for name, text in texts.items():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise FieldInvalid(name, "must be valid Unicode") from error
    for value in memory.metadata.values():
        if not isinstance(value, (str, int, float)) or (not isinstance(value, str) and not _exact(value)):
            raise FieldInvalid("metadata", "values must be strings, booleans or numbers up to 2^53")
    if memory.derivation not in DERIVATIONS:
        raise FieldInvalid("derivation", f"must be one of {', '.join(DERIVATIONS)}")
    if memory.standing.status not in STATUSES:
        raise FieldInvalid("status", f"must be one of {', '.join(STATUSES)}")
    moments = {
        "created_at": memory.created_at,
        "occurred_at": memory.occurred_at,
        "last_verified": memory.standing.last_verified,
    }
    for name, moment in moments.items():
        if moment is not None and moment.tzinfo is None:
            raise FieldInvalid(name, "must carry a time zone")


def packed(vector: Iterable[float]) -> bytes:
    """Return the vector as 384 little-endian float32. Raises FieldInvalid for anything else, or all zero."""
    values = array("f", vector)
    if len(values) != DIMENSION:
        raise FieldInvalid("vector", f"must have {DIMENSION} numbers, has {len(values)}")
    if not all(map(math.isfinite, values)) or not any(values):
        raise FieldInvalid("vector", "must be finite and not all zero")
    return struct.pack(f"<{DIMENSION}f", *values)


def _exact(number: float) -> bool:
    return math.isfinite(number) and abs(number) <= 1 << 53
