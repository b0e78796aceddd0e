"""What decides access, as it is kept: grants and denies, groups, Teams with members and clients."""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from kit.access import PERMISSIONS, Caller
from kit.errors import Refusal, Violation, field_invalid
from services.auth.tokens import Token, require_comply


@dataclass(frozen=True)
class Rule:
    """An allow or a deny for a subject on the banks that a pattern covers; `file` where a document manages it."""

    subject: str
    pattern: str
    effect: str
    permissions: frozenset[str]
    source: str = "call"

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from all others."""
        return self.subject, self.pattern, self.effect


@dataclass(frozen=True)
class Group:
    """A group and those that calls (`call`) or a document (`file`) put into it."""

    name: str
    members: frozenset[str]
    source: str = "call"


@dataclass(frozen=True)
class Member:
    """A person's part in a Team."""

    team_id: str
    principal: str
    role: str
    status: str


@dataclass(frozen=True)
class Client:
    """A client of a Team."""

    team_id: str
    client_id: str
    archived: bool

    @property
    def bank(self) -> str:
        """Its bank."""
        return f"client:{self.team_id}:{self.client_id}"


@dataclass(frozen=True)
class Team:
    """A Team with its members and clients, each in the order of its name."""

    team_id: str
    name: str
    archived: bool
    members: tuple[Member, ...] = ()
    clients: tuple[Client, ...] = ()


@dataclass(frozen=True)
class Holdings:
    """What a principal holds besides its tokens."""

    suspended: bool
    rules: tuple[Rule, ...]
    groups: tuple[str, ...]
    memberships: tuple[Member, ...]
    banks: tuple[str, ...]
    devices: tuple[str, ...]
    had_tokens: bool
    made: tuple[Token, ...] = ()
    """Working tokens of others that it made or rotated, the newest first."""

    @property
    def known(self) -> bool:
        """Whether there is anything but a suspension, and what is meant for everybody of a pattern."""
        named = any(not set("*?[") & set(rule.subject) for rule in self.rules)
        return self.had_tokens or named or any((self.groups, self.memberships, self.banks, self.devices, self.made))


def ordered(permissions: frozenset[str] | Sequence[str]) -> list[str]:
    """Permissions in the order of the contract."""
    return [word for word in PERMISSIONS if word in permissions]


def check_rule(who: Caller, rule: Rule, field: str = "grant") -> None:
    """Raises Refusal where `who`, an admin of the pattern, may not set this grant or deny."""
    check_change(who, rule)
    if rule.effect == "allow" or "admin" not in rule.permissions:
        return
    if rule.subject in who.groups or fnmatch.fnmatchcase(who.principal, rule.subject):
        raise field_invalid(field, "would lock you out")


def check_change(who: Caller, rule: Rule | None) -> None:
    """Raises Refusal PERMISSION_DENIED where `who`, an admin of the pattern, may not set, change or end this rule."""
    if rule is None:
        return
    # To end a deny of comply gives it as an allow does, and to deny it or to end an allow takes it away.
    if "comply" in rule.permissions:
        require_comply(who, rule.pattern)
    # One deny of admin anywhere ends the administration of the whole deployment for whom it hits.
    if rule.effect == "deny" and "admin" in rule.permissions and not who.covers("*"):
        raise Refusal(
            "PERMISSION_DENIED",
            "only an admin of the deployment may deny admin, or end such a deny",
            metadata={"permission": "admin"},
        )


def check_other(who: Caller, principal: str) -> None:
    """Raises Refusal FIELD_INVALID where the caller would shut itself out."""
    if principal == who.principal:
        raise field_invalid("principal", "is you; let another admin do it")


def check_team_id(team_id: str, field: str = "team_id") -> None:
    """Raises Refusal FIELD_INVALID for a UUID in upper case, which would be a second name of the same Team."""
    if team_id != team_id.lower():
        raise field_invalid(field, "must be in lower case")


def not_found(field: str, what: str) -> Refusal:
    """The refusal that names the field whose object is not there."""
    rule = f"there is no such {what}"
    return Refusal("NOT_FOUND", f"{field}: {rule}", violations=[Violation(field, rule)])


def bounds(pattern: str) -> tuple[str | None, str]:
    """Which patterns lie within `pattern`, as `Caller.covers` has it: this very one, or all with a start."""
    if pattern.endswith("*") and not set("*?[") & set(pattern[:-1]):
        return None, pattern[:-1]
    return pattern, ""
