"""What grants, denies, groups, Teams and layers allow: pure rules over frozen dataclasses."""

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

PERMISSIONS = ("read", "write", "forget", "comply", "admin")
# What owners and admins of a Team hold on its clients; comply is given by name alone.
_FULL = frozenset(("read", "write", "forget", "admin"))
# Any writer owns the bank it makes, so that owning one gives no say over what others may do.
_OWNED = frozenset(("read", "write", "forget"))
_WILD = frozenset("*?[")


@dataclass(frozen=True)
class Grant:
    """Permissions on the banks that a case-sensitive fnmatch pattern covers, and where they come from."""

    pattern: str
    permissions: frozenset[str]
    source: str = field(default="", compare=False)


@dataclass(frozen=True)
class Membership:
    """A part in a Team: role `owner`, `admin` or `member`; active while neither it nor the Team is stopped."""

    role: str
    active: bool


@dataclass(frozen=True)
class BankFacts:
    """What of a bank decides access: its owner, and whether its client is `active` or `archived` (None: unknown)."""

    owner: str | None = None
    client: str | None = None


@dataclass(frozen=True)
class Caller:
    """Who is calling, authenticated. `internal` is true for another service of this deployment."""

    principal: str
    kind: str
    token_id: str
    grants: tuple[Grant, ...] = ()
    denies: tuple[Grant, ...] = ()
    revoked: tuple[Grant, ...] = ()
    """What was taken away: allows, or words of them, roles in Teams, and allows of groups that the caller has left."""
    ceiling: tuple[Grant, ...] | None = None
    """What a narrowed personal key may do at most; None where nothing narrows."""
    groups: tuple[str, ...] = ()
    token_groups: tuple[str, ...] = ()
    """Those of the groups that come with the token alone."""
    memberships: Mapping[str, Membership] = field(default_factory=dict)
    default_access: str = "deny"
    person_present: bool = False
    internal: bool = False
    expires_at: float | None = None
    """Unix seconds."""
    team: str = ""
    """The Team that the call selected; CLIENT banks of others are out of reach."""
    through: "Caller | None" = None
    """The service that calls on this principal's behalf: both must hold what is asked."""
    behalf_token_id: str = ""
    """The principal's own credential, where a service calls on its behalf with its own."""

    def may(self, permission: str, bank: str, facts: BankFacts | None = None) -> bool:
        """Whether the caller holds `permission` on `bank`."""
        return permission in self.permissions_on(bank, facts)

    def permissions_on(self, bank: str, facts: BankFacts | None = None) -> frozenset[str]:
        """All the caller may do on `bank`: the union of what is allowed, less every deny."""
        held = frozenset(word for word, given in self.given(bank, facts).items() if given)
        held -= frozenset(word for word, taken in self.taken(bank).items() if taken)
        if self.through is not None:
            held &= self.through.permissions_on(bank, facts)
        return held

    def given(self, bank: str, facts: BankFacts | None = None) -> Mapping[str, Sequence[str]]:
        """Which sources give each permission on `bank`, before denies."""
        found: dict[str, list[str]] = {word: [] for word in PERMISSIONS}

        def give(permissions: frozenset[str], source: str) -> None:
            for word in permissions:
                found[word].append(source)

        if bank.startswith("private:"):
            # No pattern reaches a PRIVATE bank, and so no ceiling names one: a narrowed key has none.
            if bank == f"private:{self.principal}" and self.through is None and self.ceiling is None:
                give(frozenset(("read", "write", "forget")), "its own PRIVATE bank")
            return found
        facts = facts or BankFacts()
        if bank.startswith("client:") and not self._in_use(bank, facts):
            return found
        for grant in (*self.grants, *self._roles(bank)):
            if fnmatch.fnmatchcase(bank, grant.pattern):
                give(grant.permissions, grant.source)
        if bank.startswith("system:"):
            if not found["admin"]:
                found = {word: [] for word in PERMISSIONS}
            give(frozenset(("read",)), "everybody reads the SYSTEM layer")
        elif not bank.startswith("client:"):
            if self.default_access == "owner_only" and facts.owner == self.principal:
                give(_OWNED, "owner of the bank")
            elif self.default_access == "open":
                give(frozenset(("read", "write")), "default access open")
        if self.ceiling is not None:
            cap = frozenset().union(
                *(grant.permissions for grant in self.ceiling if fnmatch.fnmatchcase(bank, grant.pattern))
            )
            found = {word: sources if word in cap else [] for word, sources in found.items()}
        return found

    def taken(self, bank: str) -> Mapping[str, Sequence[str]]:
        """Which denies take each permission on `bank`; none reaches a PRIVATE bank."""
        found: dict[str, list[str]] = {word: [] for word in PERMISSIONS}
        if not bank.startswith("private:"):
            for deny in self.denies:
                if fnmatch.fnmatchcase(bank, deny.pattern):
                    for word in deny.permissions:
                        found[word].append(deny.source)
        return found

    def lost(self, bank: str, permission: str) -> bool:
        """Whether `permission` on a CLIENT bank was within reach once, or, for who no longer reads it, any.

        A grant, a group, a role or a membership ended, a grant or a role was lowered, or a deny takes it.
        """
        membership = self.memberships.get(team_of(bank))
        if membership is not None and not membership.active:
            return True
        standing = (*self.grants, *self._roles(bank))
        words = {permission, "read"}
        if any(_match(bank, word, self.denies) and _match(bank, word, standing) for word in words):
            return True
        if not _match(bank, "read", standing):
            return any(fnmatch.fnmatchcase(bank, grant.pattern) for grant in self.revoked)
        return _match(bank, permission, self.revoked)

    def covers(self, pattern: str, permission: str = "admin") -> bool:
        """Whether the caller surely holds `permission` on all banks but PRIVATE ones that `pattern` covers."""
        roles = [grant for team in self.memberships for grant in self._roles(f"client:{team}:")]
        return (
            self._reaches(pattern)
            and within(pattern, permission, (*self.grants, *roles))
            and (self.ceiling is None or within(pattern, permission, self.ceiling))
            and not any(
                permission in deny.permissions and not _disjoint(deny.pattern, pattern)
                for deny in self.denies
            )
            and (self.through is None or self.through.covers(pattern, permission))
        )

    def on_behalf_of(self, other: "Caller") -> "Caller":
        """`other`, as this service calls for it: both must hold what is asked, and no person is present."""
        return replace(
            other,
            through=self,
            person_present=False,
            token_id=self.token_id,
            behalf_token_id=other.token_id,
        )

    def _in_use(self, bank: str, facts: BankFacts) -> bool:
        team = team_of(bank)
        membership = self.memberships.get(team)
        return (
            facts.client == "active"
            and (not self.team or self.team == team)
            and (membership is None or membership.active)
        )

    def _reaches(self, pattern: str) -> bool:
        """Whether no stopped membership and no selected Team keeps the caller from CLIENT banks that `pattern` covers.

        `*` stands for the deployment as a whole and not for the clients in it.
        """
        if pattern == "*" or _disjoint(pattern, "client:*"):
            return True
        start = _literal(pattern)
        if start.count(":") < 2:
            return not self.team and all(membership.active for membership in self.memberships.values())
        team = team_of(start)
        membership = self.memberships.get(team)
        return (not self.team or self.team == team) and (membership is None or membership.active)

    def _roles(self, bank: str) -> tuple[Grant, ...]:
        team = team_of(bank)
        membership = self.memberships.get(team)
        if membership is None or not membership.active or membership.role == "member":
            return ()
        return (role_of(team, f"{membership.role} of team {team}"),)


def role_of(team: str, source: str = "") -> Grant:
    """What an owner or admin of a Team holds on its clients."""
    return Grant(f"client:{team}:*", _FULL, source)


def team_of(bank: str) -> str:
    """The Team in the id of a CLIENT bank; empty for another bank."""
    return bank.split(":", 2)[1] if bank.startswith("client:") else ""


def needs_facts(caller: Caller, bank: str) -> bool:
    """Whether access to `bank` depends on more than the caller."""
    return bank.startswith("client:") or caller.default_access == "owner_only"


def _match(bank: str, permission: str, grants: Sequence[Grant]) -> bool:
    return any(
        permission in grant.permissions and fnmatch.fnmatchcase(bank, grant.pattern) for grant in grants
    )


def within(pattern: str, permission: str, grants: Sequence[Grant]) -> bool:
    """Whether one of the grants surely gives `permission` on all that `pattern` covers."""
    return any(permission in grant.permissions and _wider(grant.pattern, pattern) for grant in grants)


def _literal(pattern: str) -> str:
    """What every bank that the pattern covers begins with."""
    return pattern[: min((pattern.index(sign) for sign in _WILD if sign in pattern), default=len(pattern))]


def _wider(pattern: str, other: str) -> bool:
    """Whether `pattern` surely covers all that `other` covers: equal, or a prefix with a star of a literal start."""
    if pattern in ("*", other):
        return True
    if pattern.endswith("*") and not _WILD & set(pattern[:-1]):
        return _literal(other).startswith(pattern[:-1])
    return False


def _disjoint(one: str, other: str) -> bool:
    """Whether surely no bank is covered by both: a literal one that the other misses, or starts that differ."""
    if not _WILD & set(one):
        return not fnmatch.fnmatchcase(one, other)
    if not _WILD & set(other):
        return not fnmatch.fnmatchcase(other, one)
    a, b = _literal(one), _literal(other)
    return not (a.startswith(b) or b.startswith(a))
