"""Between the messages of the contract and the frozen forms of the rules."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from teamlore.auth.v1 import access_pb2, auth_pb2

from kit.access import PERMISSIONS, BankFacts, Caller, Grant
from kit.errors import field_invalid
from kit.identity import UTC
from services.auth import banks, documents, pages, rules, tokens

Shown = TypeVar("Shown", bound=Message)


def stamp(value: datetime | float | None) -> Timestamp | None:
    """A time, or Unix seconds, as a Timestamp; None stays None."""
    if value is None:
        return None
    made = Timestamp()
    if isinstance(value, datetime):
        made.FromDatetime(value)
    else:
        made.FromMicroseconds(int(value * 1_000_000))
    return made


def time_of(message: Any, field: str) -> datetime | None:
    """The time in a field; None where it is absent. Raises Refusal FIELD_INVALID for one that no calendar has."""
    if not message.HasField(field):
        return None
    try:
        found: datetime = getattr(message, field).ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise field_invalid(field, "must be a time between the years 1 and 9999") from error
    return found


def page(made: Sequence[tuple[Shown, Sequence[str]]], size: int) -> tuple[list[Shown], Sequence[str]]:
    """The messages that fit, and the key to go on after; each comes with its key. No key where all fit."""
    count = pages.fitting([message.ByteSize() for message, _ in made], size or pages.DEFAULT_SIZE)
    return [message for message, _ in made[:count]], made[count - 1][1] if count < len(made) else ()


def grants_of(messages: Iterable[access_pb2.Grant]) -> tuple[Grant, ...]:
    """What a token is to do."""
    return tuple(Grant(message.pattern, frozenset(message.permissions)) for message in messages)


def token(found: tokens.Token) -> access_pb2.Token:
    """A token without its secret."""
    return access_pb2.Token(
        token_id=found.token_id,
        principal=found.principal,
        kind=found.kind,
        grants=[
            access_pb2.Grant(pattern=grant.pattern, permissions=rules.ordered(grant.permissions))
            for grant in found.grants
        ],
        groups=found.groups,
        note=found.note,
        created_by=found.created_by,
        created_at=stamp(found.created_at),
        expires_at=stamp(found.expires_at),
        last_used_at=stamp(found.last_used_at),
        revoked_at=stamp(found.revoked_at),
        personal=found.personal,
        session=found.session,
    )


def rule_of(message: access_pb2.AccessGrant, source: str = "call") -> rules.Rule:
    """A grant or a deny."""
    words = frozenset(message.permissions)
    return rules.Rule(message.subject, message.pattern, message.effect, words, source)


def rule(found: rules.Rule) -> access_pb2.AccessGrant:
    """A grant or a deny as a message."""
    return access_pb2.AccessGrant(
        subject=found.subject,
        pattern=found.pattern,
        effect=found.effect,
        permissions=rules.ordered(found.permissions),
    )


def membership(found: rules.Member) -> access_pb2.Membership:
    """A part in a Team as a message."""
    return access_pb2.Membership(
        team_id=found.team_id, principal=found.principal, role=found.role, status=found.status
    )


def team(found: rules.Team) -> access_pb2.Team:
    """A Team as a message."""
    return access_pb2.Team(
        team_id=found.team_id,
        name=found.name,
        archived=found.archived,
        members=[membership(member) for member in found.members],
        clients=[
            access_pb2.TeamClient(client_id=client.client_id, archived=client.archived)
            for client in found.clients
        ],
    )


def policy_of(message: access_pb2.Policy) -> banks.Policy:
    """What a message sets of a policy."""
    return banks.Policy(**{field.name: value for field, value in message.ListFields()})


def policy(found: banks.Policy) -> access_pb2.Policy:
    """A whole policy as a message; without a barrier where sync's setting counts."""
    return access_pb2.Policy(
        barrier=found.barrier,
        near_duplicates=found.near_duplicates,
        near_duplicate_threshold=found.near_duplicate_threshold,
        classification=found.classification,
        team_memory=found.team_memory,
        min_lane=found.min_lane,
        publish_requires_review=found.publish_requires_review,
        pii=found.pii,
    )


def bank(found: banks.Bank) -> access_pb2.Bank:
    """A bank as a message."""
    return access_pb2.Bank(
        bank=found.bank,
        layer=found.layer,
        name=found.name,
        owner=banks.owner_of(found),
        archived=found.archived,
        policy=policy(found.policy),
        created_at=stamp(found.created_at),
    )


def document_of(message: access_pb2.AccessDocument) -> documents.Document:
    """An access document; what it manages is of the source `file`."""
    return documents.Document(
        message.default_access if message.HasField("default_access") else None,
        tuple(rules.Group(group.group, frozenset(group.members), "file") for group in message.groups),
        tuple(rule_of(grant, "file") for grant in message.grants),
        tuple(_team_of(part) for part in message.teams),
        tuple(
            (
                banks.BankChange(part.bank, part.name or None, part.owner or None),
                policy_of(part.policy),
            )
            for part in message.banks
        ),
        frozenset(message.sections),
    )


def _team_of(message: access_pb2.Team) -> rules.Team:
    return rules.Team(
        message.team_id,
        message.name,
        message.archived,
        tuple(
            rules.Member(member.team_id or message.team_id, member.principal, member.role, member.status)
            for member in message.members
        ),
        tuple(rules.Client(message.team_id, client.client_id, client.archived) for client in message.clients),
    )


def difference(change: documents.Change) -> access_pb2.AccessDifference:
    """One line of the difference."""
    return access_pb2.AccessDifference(
        kind=change.kind, action=change.action, name=change.name, before=change.before, after=change.after
    )


def narrowed(who: Caller, bank: str, asking: Caller) -> Caller:
    """The other as an admin of the bank alone may see it: without groups, and no rule named that reaches further."""

    def seen(grants: Sequence[Grant]) -> tuple[Grant, ...]:
        return tuple(
            grant if grant.pattern == bank or asking.covers(grant.pattern) else replace(grant, source="")
            for grant in grants
        )

    return replace(who, groups=(), grants=seen(who.grants), denies=seen(who.denies))


def explanation(
    who: Caller, target: str, facts: BankFacts | None, refused: str
) -> list[auth_pb2.PermissionExplanation]:
    """Each permission on the bank: whether it is held, what gives it and what takes it."""
    given, taken = who.given(target, facts), who.taken(target)
    held = frozenset() if refused else who.permissions_on(target, facts)
    suspension = [f"suspension of {who.principal}"] if refused else []
    return [
        auth_pb2.PermissionExplanation(
            permission=word,
            held=word in held,
            given_by=[source for source in given[word] if source],
            taken_by=[source for source in (*taken[word], *suspension) if source],
        )
        for word in PERMISSIONS
    ]
