"""Banks and their policies as auth shows and sets them."""

import fnmatch
from dataclasses import dataclass, fields, replace
from datetime import datetime

from kit.access import BankFacts, Caller
from kit.errors import Refusal, field_invalid

_LAYERS = {"system": "system", "project": "team", "space": "team", "client": "client", "private": "private"}
# A float of 32 bits, as the column and the contract have it.
_THRESHOLD = 0.949999988079071


@dataclass(frozen=True)
class Policy:
    """How a bank treats what is written to it and what it serves; None leaves what stands."""

    barrier: str | None = None
    near_duplicates: str | None = None
    near_duplicate_threshold: float | None = None
    classification: str | None = None
    team_memory: bool | None = None
    min_lane: str | None = None
    publish_requires_review: bool | None = None
    pii: str | None = None

    def over(self, standing: "Policy") -> "Policy":
        """`standing` with the fields that are set here."""
        return replace(
            standing,
            **{f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None},
        )

    def words(self) -> str:
        """All fields that are set, in words."""
        pairs = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) is not None]
        return ", ".join(f"{name} {_word(value)}" for name, value in pairs)


# Where the barrier is None, sync's setting counts. Only sync knows it, so nothing else can be told here.
DEFAULTS = Policy(None, "skip", _THRESHOLD, "internal", True, "synced", False, "off")


@dataclass(frozen=True)
class Bank:
    """A bank; one that nobody has made has no `created_at`. `client` is as in BankFacts."""

    bank: str
    layer: str
    name: str = ""
    owner: str | None = None
    archived: bool = False
    policy: Policy = DEFAULTS
    created_at: datetime | None = None
    client: str | None = None


@dataclass(frozen=True)
class BankChange:
    """What to set of a bank; None leaves what stands, and a bank that is not there is made."""

    bank: str
    name: str | None = None
    owner: str | None = None


NO_LAYER = "the bank id names no layer: use project:, space:, client:, private:, system:"


def known_layer(bank: str) -> str | None:
    """The layer that an id tells; None for an id of none."""
    word, _, name = bank.partition(":")
    return _LAYERS.get(word) if name else None


def layer_of(bank: str) -> str:
    """The layer that an id tells. Raises Refusal INVALID_SCOPE for an id of none."""
    layer = known_layer(bank)
    if layer is None:
        raise Refusal("INVALID_SCOPE", NO_LAYER)
    return layer


def owner_of(bank: Bank) -> str:
    """The owner: of a PRIVATE bank whom its id names."""
    return bank.bank.removeprefix("private:") if bank.layer == "private" else bank.owner or ""


def check_scope(bank: str, owner: str, tenant_id: str, deployment: str) -> None:
    """Raises Refusal INVALID_SCOPE for another organisation or a bank of no layer, FIELD_INVALID for an owner."""
    if tenant_id not in ("", deployment):
        raise Refusal("INVALID_SCOPE", "tenant_id: this deployment is one organisation, and not that one")
    if layer_of(bank) == "private" and owner not in ("", bank.removeprefix("private:")):
        raise field_invalid("owner", "a PRIVATE bank belongs to whom its id names")


def readable(who: Caller, bank: Bank, pattern: str) -> bool:
    """Whether the bank is one of those that `who` asks for and may read."""
    if pattern and not fnmatch.fnmatchcase(bank.bank, pattern):
        return False
    return who.may("read", bank.bank, BankFacts(bank.owner, bank.client))


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.7g}" if isinstance(value, float) else str(value)
