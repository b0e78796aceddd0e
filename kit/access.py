"""Grants and what they allow: pure rules over frozen dataclasses."""

import fnmatch
from dataclasses import dataclass

PERMISSIONS = ("read", "write", "forget", "comply", "admin")


@dataclass(frozen=True)
class Grant:
    """Permissions on the banks that a case-sensitive fnmatch pattern covers."""

    pattern: str
    permissions: frozenset[str]


@dataclass(frozen=True)
class Caller:
    """Who is calling, authenticated. `internal` is true for another service of this deployment."""

    principal: str
    kind: str
    token_id: str
    grants: tuple[Grant, ...] = ()
    internal: bool = False

    def may(self, permission: str, bank: str) -> bool:
        """Whether the caller holds `permission` on `bank`."""
        return permission in self.permissions_on(bank)

    def permissions_on(self, bank: str) -> frozenset[str]:
        """All the caller may do on `bank`. No pattern reaches a PRIVATE bank: it is its owner's alone."""
        if bank.startswith("private:"):
            own = bank == f"private:{self.principal}"
            return frozenset(("read", "write", "forget")) if own else frozenset()
        held: frozenset[str] = frozenset()
        for grant in self.grants:
            if fnmatch.fnmatchcase(bank, grant.pattern):
                held |= grant.permissions
        if bank.startswith("system:"):
            held |= {"read"}
            if "admin" not in held:
                held -= {"write", "forget"}
        return held

    def covers(self, pattern: str, permission: str = "admin") -> bool:
        """Whether the caller holds `permission` on all that `pattern` covers: on `*`, or by the same or a wider glob."""
        return any(
            permission in grant.permissions and _wider(grant.pattern, pattern) for grant in self.grants
        )


def _wider(pattern: str, other: str) -> bool:
    """Whether `pattern` surely covers all that `other` covers: equal, or a prefix with a star of a literal start."""
    if pattern in ("*", other):
        return True
    if pattern.endswith("*") and not set("*?[") & set(pattern[:-1]):
        literal = other[: min((other.index(c) for c in "*?[" if c in other), default=len(other))]
        return literal.startswith(pattern[:-1])
    return False
