"""Rows of access as one transaction reads and writes them; which of them, and who may, is said by `access_store`."""

from collections.abc import Collection, Sequence

from kit.access import Caller, Grant
from kit.database import Database, Record, Transaction
from kit.errors import field_invalid
from services.auth.banks import DEFAULTS, Bank, BankChange, Policy, known_layer
from services.auth.documents import Change, Document, PolicyChange, Retired, State
from services.auth.rules import Client, Group, Member, Rule, Team, not_found, ordered
from services.auth.store import administers, has_admin
from services.auth.tokens import Token


async def made_by(tx: Transaction, principal: str) -> tuple[Token, ...]:
    """The tokens that a principal made for others or itself."""
    ids = [row["token_id"] for row in await tx.fetch("made_token_ids", principal)]
    return tuple(token(row) for row in await tx.fetch("tokens_by_id", ids))


async def commit(tx: Transaction, bank: str, objects: int) -> None:
    """Tells every service that access changed, and the audit row how many objects."""
    await tx.fetch("bump_access")
    tx.changed(bank, objects)


async def require_admin(tx: Transaction, who: Caller, field: str) -> None:
    """Raises Refusal FIELD_INVALID where the transaction would leave the deployment without an admin who can call."""
    if who.expires_at is None and await administers(tx, who.behalf_token_id or who.token_id):
        return
    if await has_admin(tx, lasting=True):
        return
    raise field_invalid(field, "would leave no admin of the deployment")


async def write_all(
    tx: Transaction, changes: Sequence[Change], who: Caller, field: str, bank: str = "", dry_run: bool = False
) -> bool:
    """Writes changes, in sets where there may be thousands; false where there is none."""
    if not changes:
        return False
    values = [change.value for change in changes]
    for value in values:
        if isinstance(value, str):
            await tx.fetch("set_default_access", value)
    await _write_groups(tx, [value for value in values if isinstance(value, Group)])
    await _write_rules(tx, [value for value in values if isinstance(value, Rule)], who)
    retired = [value.rule.key for value in values if isinstance(value, Retired)]
    await tx.fetch("retire_rules", *_columns(retired, 3))
    for value in values:
        if isinstance(value, Team):
            await tx.fetch("put_team", value.team_id, value.name, value.archived)
    members = [
        (value.team_id, value.principal, value.role, value.status)
        for value in values
        if isinstance(value, Member)
    ]
    await tx.fetch("put_members", *_columns(members, 4))
    clients = [value for value in values if isinstance(value, Client)]
    await tx.fetch("put_clients", *_columns([(c.team_id, c.client_id, c.archived) for c in clients], 3))
    banks = [BankChange(client.bank) for client in clients]
    banks += [value for value in values if isinstance(value, BankChange)]
    for change in banks:
        await tx.fetch("put_bank", change.bank, change.name, change.owner, who.principal)
    for value in values:
        if isinstance(value, PolicyChange):
            await put_policy(tx, value.bank, value.policy)
    if who.covers("*"):
        await require_admin(tx, who, field)
    if not dry_run:
        await commit(tx, bank, len(changes))
    return True


async def _write_groups(tx: Transaction, groups: Sequence[Group]) -> None:
    await tx.fetch("clear_groups", [group.name for group in groups])
    rows = [(group.name, member, group.source) for group in groups for member in sorted(group.members)]
    await tx.fetch("insert_members", *_columns(rows, 3))
    if groups:
        await tx.fetch("end_token_groups", [group.name for group in groups])


async def _write_rules(tx: Transaction, rules: Sequence[Rule], who: Caller) -> None:
    rows = [(*rule.key, ",".join(ordered(rule.permissions)), rule.source) for rule in rules]
    await tx.fetch("put_rules", *_columns(rows, 5), who.principal)


async def put_policy(tx: Transaction, bank: str, policy: Policy) -> bool | None:
    """Sets what a policy names; true where that changed something, None for an absent bank."""
    changed: bool | None = await tx.value(
        "put_policy",
        bank,
        policy.barrier,
        policy.near_duplicates,
        policy.near_duplicate_threshold,
        policy.classification,
        policy.team_memory,
        policy.min_lane,
        policy.publish_requires_review,
        policy.pii,
    )
    return changed


def _columns(rows: Sequence[tuple[object, ...]], width: int) -> list[list[object]]:
    return [[row[column] for row in rows] for column in range(width)]


async def state(tx: Transaction, document: Document) -> State:
    """What stands of all that a document may name."""
    default = await tx.row("lock_access")
    assert default is not None
    groups: dict[str, set[tuple[str, str]]] = {}
    for row in await tx.fetch("managed_group_rows"):
        groups.setdefault(row["group_name"], set()).add((row["principal"], row["source"]))
    rules = [rule(row) for row in await tx.fetch("all_rules")]
    standing = await teams(tx, [team.team_id for team in document.teams])
    return State(
        default["default_access"],
        {name: frozenset(rows) for name, rows in groups.items()},
        {one.key: one for one in rules},
        {one.team_id: one for one in standing},
        await banks(tx, [change.bank for change, _ in document.banks]),
    )


async def team(tx: Transaction, team_id: str) -> Team | None:
    """One Team with its members and clients; None for an absent one."""
    return next(iter(await teams(tx, [team_id])), None)


async def teams(source: Transaction | Database, ids: Collection[str]) -> list[Team]:
    """Teams with their members and clients, absent ones left out."""
    wanted = sorted(set(ids))
    members: dict[str, list[Member]] = {}
    clients: dict[str, list[Client]] = {}
    for row in await source.fetch("members_of", wanted):
        members.setdefault(row["team_id"], []).append(Member(**row))
    for row in await source.fetch("clients_of", wanted):
        clients.setdefault(row["team_id"], []).append(Client(**row))
    return [
        Team(
            **row,
            members=tuple(members.get(row["team_id"], ())),
            clients=tuple(clients.get(row["team_id"], ())),
        )
        for row in await source.fetch("teams_by_id", wanted)
    ]


async def banks(tx: Transaction, ids: Collection[str]) -> dict[str, Bank]:
    """Banks by id; one that is absent has no time of making."""
    return {row["bank"]: bank(row) for row in await tx.fetch("banks_by_id", sorted(set(ids)))}


async def standing_bank(tx: Transaction, bank: str) -> Bank:
    """A bank that is there. Raises Refusal NOT_FOUND."""
    found = (await banks(tx, [bank]))[bank]
    if found.created_at is None:
        raise not_found("bank", "bank")
    return found


def bank(row: Record) -> Bank:
    """A bank of its row."""
    if row["created_at"] is None:
        return Bank(row["bank"], known_layer(row["bank"]) or "", client=row["client"])
    policy = Policy(**{name: row[name] for name in DEFAULTS.__dataclass_fields__})
    return Bank(
        row["bank"], row["layer"], row["name"], row["owner"], row["archived"], policy, row["created_at"], row["client"]
    )  # fmt: skip


def grant(row: Record) -> Grant:
    """A grant of its row."""
    return Grant(row["pattern"], frozenset(row["permissions"]))


def rule(row: Record) -> Rule:
    """A rule of its row."""
    return Rule(row["subject"], row["pattern"], row["effect"], frozenset(row["permissions"]), row["source"])


def token(row: Record) -> Token:
    """A token of its row; never its secret, which no row has."""
    grants = tuple(
        Grant(pattern, frozenset(words.split(",")))
        for pattern, words in zip(row["patterns"], row["words"], strict=True)
    )
    return Token(
        row["token_id"], row["principal"], row["kind"], grants, tuple(row["groups"]), row["note"], row["created_by"],
        row["created_at"], row["expires_at"], row["last_used_at"], row["revoked_at"], row["personal"], row["session"],
    )  # fmt: skip
