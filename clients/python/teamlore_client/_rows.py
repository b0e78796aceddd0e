"""The rows of the table `memories`: a memory as SQLite holds it, times in microseconds since 1970, lists as JSON."""

import json
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from teamlore_client._memory import Citation, Memory, Scope, Standing
from teamlore_client._sqlite import Row

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
FIELDS = (
    "id, bank, visibility, team_id, client_id, user_id, text, tags, metadata, fact_type, derivation,"
    " occurred_at, created_at, author, version, status, trust, may_be_stale, superseded_by, last_verified,"
    " citations"
)


def micros(moment: datetime) -> int:
    """Microseconds since 1970 in UTC."""
    return (moment - _EPOCH) // _MICROSECOND


def row_of(memory: Memory) -> Row:
    """The values of FIELDS, in their order."""
    return (
        memory.id,
        memory.bank,
        memory.scope.visibility,
        memory.scope.team_id,
        memory.scope.client_id,
        memory.scope.user_id,
        memory.text,
        json.dumps(list(memory.tags), ensure_ascii=False),
        json.dumps(dict(memory.metadata), ensure_ascii=False, sort_keys=True, allow_nan=False),
        memory.fact_type,
        memory.derivation,
        None if memory.occurred_at is None else micros(memory.occurred_at),
        micros(memory.created_at),
        memory.author,
        *standing_row(memory.standing),
        json.dumps([[each.uri, each.excerpt] for each in memory.citations], ensure_ascii=False),
    )


def standing_row(standing: Standing) -> Row:
    """Those of FIELDS that UpdateStatus changes: from the version to when it was last verified."""
    return (
        standing.version,
        standing.status,
        standing.trust,
        int(standing.may_be_stale),
        standing.superseded_by,
        None if standing.last_verified is None else micros(standing.last_verified),
    )


def memory_of(row: Row) -> Memory:
    """The memory of the values of FIELDS."""
    (
        id_,
        bank,
        visibility,
        team,
        client,
        user,
        text,
        tags,
        metadata,
        fact_type,
        derivation,
        occurred,
        created,
        author,
        version,
        status,
        trust,
        stale,
        successor,
        verified,
        citations,
    ) = row
    return Memory(
        id=id_,
        bank=bank,
        scope=Scope(visibility, team, client, user),
        text=text,
        created_at=_EPOCH + created * _MICROSECOND,
        occurred_at=None if occurred is None else _EPOCH + occurred * _MICROSECOND,
        tags=tuple(json.loads(tags)),
        metadata=MappingProxyType(json.loads(metadata)),
        fact_type=fact_type,
        derivation=derivation,
        author=author,
        standing=Standing(
            version,
            status,
            trust,
            bool(stale),
            successor,
            None if verified is None else _EPOCH + verified * _MICROSECOND,
        ),
        citations=tuple(Citation(uri, excerpt) for uri, excerpt in json.loads(citations)),
    )
