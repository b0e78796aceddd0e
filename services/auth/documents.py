"""An access document against what stands: what is wrong with it, and what it changes, in a fixed order."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kit.access import Caller
from kit.errors import Refusal, Violation
from services.auth.banks import NO_LAYER, Bank, BankChange, Policy, known_layer
from services.auth.rules import Client, Group, Member, Rule, Team, check_rule, not_found, ordered

MOST_VIOLATIONS = 20


@dataclass(frozen=True)
class Document:
    """What a team keeps in its repository, in the order in which it was written."""

    default_access: str | None = None
    groups: tuple[Group, ...] = ()
    rules: tuple[Rule, ...] = ()
    teams: tuple[Team, ...] = ()
    banks: tuple[tuple[BankChange, Policy], ...] = ()
    sections: frozenset[str] = frozenset()
    """Which of `groups` and `grants` stand in it although they may be empty."""

    @property
    def says_groups(self) -> bool:
        """Whether it names all groups that documents manage."""
        return bool(self.groups) or "groups" in self.sections

    @property
    def says_grants(self) -> bool:
        """Whether it names all grants that documents manage."""
        return bool(self.rules) or "grants" in self.sections


@dataclass(frozen=True)
class State:
    """What stands of that: all groups and grants, and the Teams and banks that the document names."""

    default_access: str
    groups: Mapping[str, frozenset[tuple[str, str]]]
    """Members with their source, `call` or `file`, by group."""
    rules: Mapping[tuple[str, str, str], Rule]
    teams: Mapping[str, Team]
    banks: Mapping[str, Bank]


@dataclass(frozen=True)
class Retired:
    """A grant that goes."""

    rule: Rule


@dataclass(frozen=True)
class PolicyChange:
    """What to set of a bank's policy."""

    bank: str
    policy: Policy


Value = str | Group | Rule | Retired | Team | Member | Client | BankChange | PolicyChange


@dataclass(frozen=True)
class Change:
    """One line of the difference, and what to write for it."""

    kind: str
    action: str
    name: str
    before: str
    after: str
    value: Value = field(compare=False)


def check(who: Caller, document: Document, state: State) -> None:
    """Raises Refusal that names every field which breaks a rule of the single calls, or the first that is not allowed."""
    found = [*_repeated(document), *_wrong_teams(document), *_wrong_banks(document)]
    for index, rule in enumerate(document.rules):
        found += _allowed(who, rule, f"document.grants[{index}]")
    _check_joiners(who, document, state)
    if found:
        first = found[0]
        raise Refusal(
            "FIELD_INVALID", f"{first.field}: {first.description}", violations=found[:MOST_VIOLATIONS]
        )
    clients = {client.bank for team in document.teams for client in team.clients}
    for index, (bank, _) in enumerate(document.banks):
        standing = state.banks[bank.bank]
        if standing.layer == "client" and standing.client is None and bank.bank not in clients:
            raise not_found(f"document.banks[{index}].bank", "client")


def _allowed(who: Caller, rule: Rule, path: str) -> Sequence[Violation]:
    """What is wrong with a grant or a deny. Raises Refusal PERMISSION_DENIED that names it where `who` may not set it."""
    try:
        check_rule(who, rule, path)
    except Refusal as refusal:
        if refusal.reason == "FIELD_INVALID":
            return refusal.violations
        metadata = {**refusal.metadata, "field": path}
        raise Refusal(refusal.reason, f"{path}: {refusal.message}", metadata=metadata) from refusal
    return ()


def _check_joiners(who: Caller, document: Document, state: State) -> None:
    """Who joins a group gets its comply, which only who holds it may hand out."""
    allows: dict[str, list[Rule]] = {}
    for rule in state.rules.values():
        if rule.effect == "allow":
            allows.setdefault(rule.subject, []).append(rule)
    for index, group in enumerate(document.groups):
        if group.members - {member for member, _ in state.groups.get(group.name, ())}:
            for rule in allows.get(group.name, ()):
                _allowed(who, rule, f"document.groups[{index}]")


def plan(document: Document, state: State) -> list[Change]:
    """What makes `state` what `document` says. What stands already gives no change."""
    return [
        *_default(document, state),
        *(_groups(document, state) if document.says_groups else ()),
        *(_rules(document, state) if document.says_grants else ()),
        *_teams(document, state),
        *_banks(document, state),
    ]


def left_alone(document: Document, state: State) -> tuple[int, int]:
    """How many groups and grants that documents manage stay because this one has no such section."""
    return (
        0 if document.says_groups else len(_managed_groups(state)),
        0 if document.says_grants else len(_managed_rules(state)),
    )


def check_unmanaged(managed: bool) -> None:
    """Raises Refusal ACCESS_MANAGED where a call would change what a document manages: the next apply would undo it."""
    if managed:
        raise Refusal(
            "ACCESS_MANAGED",
            "managed by access.yaml: change it there and apply that; to shut somebody out at once, set a deny or suspend",
        )


def rule_change(wanted: Rule, standing: Rule | None) -> Change | None:
    """The change that sets one grant; None where the same stands."""
    name = _rule_name(wanted)
    after = _rule_words(wanted)
    if standing is None:
        return Change("grant", "add", name, "", after, wanted)
    if (standing.permissions, standing.source) == (wanted.permissions, wanted.source):
        return None
    return Change("grant", "change", name, _rule_words(standing), after, wanted)


def member_change(wanted: Member, standing: Member | None) -> Change | None:
    """The change that sets one membership; None where it stands, or one is removed that never was."""
    name = f"{wanted.principal} in {wanted.team_id}"
    if standing is None:
        if wanted.status == "removed":
            return None
        return Change("membership", "add", name, "", _member_words(wanted), wanted)
    if standing == wanted:
        return None
    action = "remove" if wanted.status == "removed" else "change"
    after = "" if action == "remove" else _member_words(wanted)
    return Change("membership", action, name, _member_words(standing), after, wanted)


def client_change(wanted: Client, standing: Client | None) -> Change | None:
    """The change that sets one client; None where it stands."""
    if standing is None:
        return Change("client", "add", wanted.bank, "", _archived_word(wanted.archived), wanted)
    if standing == wanted:
        return None
    before, after = _archived_word(standing.archived), _archived_word(wanted.archived)
    return Change("client", "change", wanted.bank, before, after, wanted)


def team_change(wanted: Team, standing: Team | None) -> Change | None:
    """The change that sets a Team's name and use; None where they stand."""
    after = f"{wanted.name}, {_archived_word(wanted.archived)}"
    if standing is None:
        return Change("team", "add", wanted.team_id, "", after, wanted)
    if (standing.name, standing.archived) == (wanted.name, wanted.archived):
        return None
    before = f"{standing.name}, {_archived_word(standing.archived)}"
    return Change("team", "change", wanted.team_id, before, after, wanted)


def _repeated(document: Document) -> Iterator[Violation]:
    named: Sequence[tuple[str, Sequence[object]]] = (
        ("document.groups", [group.name for group in document.groups]),
        ("document.grants", [rule.key for rule in document.rules]),
        ("document.teams", [team.team_id for team in document.teams]),
        ("document.banks", [bank.bank for bank, _ in document.banks]),
        *(
            (f"document.teams[{i}].members", [member.principal for member in team.members])
            for i, team in enumerate(document.teams)
        ),
        *(
            (f"document.teams[{i}].clients", [client.client_id for client in team.clients])
            for i, team in enumerate(document.teams)
        ),
    )
    for path, keys in named:
        seen: set[object] = set()
        for index, key in enumerate(keys):
            if key in seen:
                yield Violation(f"{path}[{index}]", "stands twice in the document")
            seen.add(key)


def _wrong_teams(document: Document) -> Iterator[Violation]:
    for i, team in enumerate(document.teams):
        if team.team_id != team.team_id.lower():
            yield Violation(f"document.teams[{i}].team_id", "must be in lower case")
        if not team.name:
            yield Violation(f"document.teams[{i}].name", "must not be empty")
        for j, member in enumerate(team.members):
            if member.team_id != team.team_id:
                yield Violation(f"document.teams[{i}].members[{j}].team_id", "must be that of the Team")


def _wrong_banks(document: Document) -> Iterator[Violation]:
    for i, (bank, _) in enumerate(document.banks):
        layer = known_layer(bank.bank)
        if layer is None:
            yield Violation(f"document.banks[{i}].bank", NO_LAYER)
        if layer == "private":
            yield Violation(f"document.banks[{i}].bank", "a PRIVATE bank is its owner's alone")


def _default(document: Document, state: State) -> Iterator[Change]:
    wanted = document.default_access
    if wanted is not None and wanted != state.default_access:
        yield Change("default", "change", "default_access", state.default_access, wanted, wanted)


def _managed_groups(state: State) -> set[str]:
    return {name for name, rows in state.groups.items() if any(source == "file" for _, source in rows)}


def _managed_rules(state: State) -> set[tuple[str, str, str]]:
    return {key for key, rule in state.rules.items() if rule.source == "file"}


def _groups(document: Document, state: State) -> Iterator[Change]:
    wanted = {group.name: group for group in document.groups}
    for name in sorted(wanted.keys() | _managed_groups(state)):
        rows = state.groups.get(name, frozenset())
        if name in wanted:
            members, source = wanted[name].members, "file"
        else:
            # What a call added beside the document is hand-made, and stays.
            members, source = frozenset(who for who, by in rows if by == "call"), "call"
        if rows == {(who, source) for who in members}:
            continue
        action = "change" if rows and members else "add" if members else "remove"
        before, after = _group_words(rows), _group_words({(who, source) for who in members})
        yield Change("group", action, name, before, after, Group(name, members, source))


def _rules(document: Document, state: State) -> Iterator[Change]:
    wanted = {rule.key: rule for rule in document.rules}
    for key in sorted(wanted.keys() | _managed_rules(state)):
        standing = state.rules.get(key)
        change = None
        if key in wanted:
            change = rule_change(wanted[key], standing)
        elif standing is not None:
            change = Change(
                "grant", "remove", _rule_name(standing), _rule_words(standing), "", Retired(standing)
            )
        if change is not None:
            yield change


def _teams(document: Document, state: State) -> Iterator[Change]:
    for team in sorted(document.teams, key=lambda team: team.team_id):
        standing = state.teams.get(team.team_id)
        changes = [team_change(team, standing)]
        members = {member.principal: member for member in standing.members} if standing else {}
        clients = {client.client_id: client for client in standing.clients} if standing else {}
        named = {member.principal: member for member in team.members}
        for principal in sorted(members.keys() | named.keys()):
            now = members.get(principal)
            left = replace(now, status="removed") if now is not None else None
            member = named.get(principal, left)
            if member is not None:
                changes.append(member_change(member, now))
        for client in sorted(team.clients, key=lambda client: client.client_id):
            changes.append(client_change(client, clients.get(client.client_id)))
        yield from (change for change in changes if change is not None)


def _banks(document: Document, state: State) -> Iterator[Change]:
    for bank, policy in sorted(document.banks, key=lambda pair: pair[0].bank):
        standing = state.banks[bank.bank]
        wanted = replace(
            standing,
            name=standing.name if bank.name is None else bank.name,
            owner=standing.owner if bank.owner is None else bank.owner,
        )
        if standing.created_at is None:
            yield Change("bank", "add", bank.bank, "", _bank_words(wanted), bank)
        elif wanted != standing:
            yield Change("bank", "change", bank.bank, _bank_words(standing), _bank_words(wanted), bank)
        merged = policy.over(standing.policy)
        if merged != standing.policy:
            before, after = standing.policy.words(), merged.words()
            yield Change("policy", "change", bank.bank, before, after, PolicyChange(bank.bank, policy))


def _rule_name(rule: Rule) -> str:
    return f"{rule.subject} {rule.pattern}"


def _rule_words(rule: Rule) -> str:
    return f"{rule.effect} {', '.join(ordered(rule.permissions))}{_by_hand(rule.source == 'call')}"


def _group_words(rows: Collection[tuple[str, str]]) -> str:
    names = ", ".join(sorted({who for who, _ in rows}))
    return names + _by_hand(any(source == "call" for _, source in rows))


def _by_hand(made: bool) -> str:
    return " (by a call)" if made else ""


def _member_words(member: Member) -> str:
    return f"{member.role}, {member.status}"


def _archived_word(archived: bool) -> str:
    return "archived" if archived else "active"


def _bank_words(bank: Bank) -> str:
    return (
        ", ".join(f"{word} {value}" for word, value in (("name", bank.name), ("owner", bank.owner)) if value)
        or "a bank"
    )
