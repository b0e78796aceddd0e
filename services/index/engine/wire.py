"""Between Qdrant's protobuf messages and the engine's own objects.

Every message is read through `only`, which refuses the fields that are not read here: a field that a newer
client sets is answered with UNIMPLEMENTED, never ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

import numpy as np
import qdrant_edge as edge
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from qdrant_client import grpc as wire

from services.index.engine.shards import DENSE, Invalid, Spec, Unsupported

Id = int | UUID


def only(message: Message, *read: str) -> None:
    """Raise Unsupported when `message` has a field set that is not among those `read`."""
    for field, _ in message.ListFields():
        if field.name not in read:
            raise Unsupported(f"the vector engine does not support {message.DESCRIPTOR.name}.{field.name}")
    if len(UnknownFieldSet(message)):
        raise Unsupported(f"the vector engine does not know all fields of this {message.DESCRIPTOR.name}")


def point_id(message: wire.PointId) -> Id:
    """A UUID or an unsigned number. Raises Invalid."""
    match message.WhichOneof("point_id_options"):
        case "num":
            return message.num
        case "uuid":
            try:
                return UUID(message.uuid)
            except ValueError:
                raise Invalid("a point id is a UUID or an unsigned number") from None
    raise Invalid("a point id is missing")


def id_message(identity: Any) -> wire.PointId:
    """The engine's id on the wire."""
    return wire.PointId(num=identity) if isinstance(identity, int) else wire.PointId(uuid=str(identity))


def from_value(value: wire.Value) -> Any:
    """A payload value as plain Python. Raises Invalid for NaN and infinities, which JSON has no words for."""
    match value.WhichOneof("kind"):
        case "struct_value":
            return {name: from_value(one) for name, one in value.struct_value.fields.items()}
        case "list_value":
            return [from_value(one) for one in value.list_value.values]
        case "double_value" if not math.isfinite(value.double_value):
            raise Invalid("a payload number is not finite")
        case None | "null_value":
            return None
        case kind:
            return getattr(value, kind)


def to_value(value: Any) -> wire.Value:
    """Plain Python (what JSON can say) as a payload value."""
    match value:
        case None:
            return wire.Value(null_value=wire.NullValue.NULL_VALUE)
        case bool():
            return wire.Value(bool_value=value)
        case int():
            return wire.Value(integer_value=value)
        case float():
            return wire.Value(double_value=value)
        case str():
            return wire.Value(string_value=value)
        case list():
            return wire.Value(list_value=wire.ListValue(values=[to_value(one) for one in value]))
    return wire.Value(struct_value=wire.Struct(fields=to_payload(value)))


def to_payload(payload: Mapping[str, Any] | None) -> dict[str, wire.Value]:
    """A payload on the wire; none is an empty one."""
    return {name: to_value(one) for name, one in (payload or {}).items()}


def from_payload(payload: Mapping[str, wire.Value]) -> dict[str, Any]:
    """A payload as plain Python. Raises Invalid as `from_value` does."""
    return {name: from_value(one) for name, one in payload.items()}


def edge_filter(message: wire.Filter) -> edge.Filter:
    """The engine's filter. Raises Unsupported for conditions other than match, has_id and nested filters."""
    only(message, "must", "should", "must_not")
    return edge.Filter(
        must=[_condition(one) for one in message.must] or None,
        should=[_condition(one) for one in message.should] or None,
        must_not=[_condition(one) for one in message.must_not] or None,
    )


def optional_filter(message: wire.Filter, present: bool) -> edge.Filter | None:
    """The engine's filter, or None when the request has none."""
    return edge_filter(message) if present else None


def _condition(message: wire.Condition) -> edge.FieldCondition | edge.HasIdCondition | edge.Filter:
    only(message, "field", "has_id", "filter")
    match message.WhichOneof("condition_one_of"):
        case "field":
            return _field_condition(message.field)
        case "has_id":
            return edge.HasIdCondition({point_id(one) for one in message.has_id.has_id})
        case "filter":
            return edge_filter(message.filter)
    raise Invalid("a filter holds an empty condition")


def _field_condition(message: wire.FieldCondition) -> edge.FieldCondition:
    only(message, "key", "match")
    only(message.match, "keyword", "keywords", "boolean")
    matches: edge.MatchValue | edge.MatchAny
    match message.match.WhichOneof("match_value"):
        case "keyword":
            matches = edge.MatchValue(message.match.keyword)
        case "keywords":
            matches = edge.MatchAny(list(message.match.keywords.strings))
        case "boolean":
            # Python's own bool is an int to the engine: True would match the number 1 and no boolean at all.
            matches = edge.MatchValue(np.bool_(message.match.boolean))  # type: ignore[arg-type]
        case _:
            raise Invalid(f"the condition on {message.key!r} matches nothing in particular")
    try:
        return edge.FieldCondition(key=message.key, match=matches)
    except Exception as error:  # the engine's own class, raised for what is no path into a payload
        raise Invalid(f"{message.key!r} is not a payload field: {error}") from error


def _dense(numbers: Iterable[float], spec: Spec) -> list[float]:
    vector = list(numbers)
    if len(vector) != spec.size:
        raise Invalid(f"the dense vector has {len(vector)} dimensions, the collection {spec.size}")
    if not all(map(math.isfinite, vector)):
        raise Invalid("a vector holds a number that is not finite")
    return vector


def _sparse(message: wire.SparseVector, name: str, spec: Spec) -> edge.SparseVector:
    if name not in spec.sparse:
        raise Invalid(f"the collection has no sparse vector {name!r}")
    indices, values = list(message.indices), list(message.values)
    if len(indices) != len(values) or len(set(indices)) != len(indices):
        raise Invalid("a sparse vector needs one value for each index and no index twice")
    if not all(map(math.isfinite, values)):
        raise Invalid("a vector holds a number that is not finite")
    return edge.SparseVector(indices, values)


def _vector(message: wire.Vector, name: str, spec: Spec) -> list[float] | edge.SparseVector:
    only(message, "data", "dense", "sparse")
    if message.HasField("sparse"):
        return _sparse(message.sparse, name, spec)
    if name != DENSE or not spec.size:
        raise Invalid(f"the collection has no dense vector {name!r}")
    return _dense(message.dense.data if message.HasField("dense") else message.data, spec)


def edge_point(message: wire.PointStruct, spec: Spec) -> edge.Point:
    """A point to store. Raises Invalid when its vectors are not those of the collection."""
    only(message, "id", "payload", "vectors")
    if message.vectors.HasField("vectors"):
        vectors = {name: _vector(one, name, spec) for name, one in message.vectors.vectors.vectors.items()}
    else:
        vectors = {DENSE: _vector(message.vectors.vector, DENSE, spec)}
    if not vectors:
        raise Invalid("a point needs a vector")
    return edge.Point(point_id(message.id), vectors, from_payload(message.payload))  # type: ignore[arg-type]  # dict is invariant


def edge_queries(messages: Iterable[wire.QueryPoints], spec: Spec) -> list[edge.QueryRequest]:
    """Queries of one batch. One after the other mostly has the same filter, which is then made once."""
    queries: list[edge.QueryRequest] = []
    before, made = None, None
    for message in messages:
        if before is None or message.HasField("filter") != before.HasField("filter") or message.filter != before.filter:
            made = optional_filter(message.filter, message.HasField("filter"))
        queries.append(edge_query(message, spec, made))
        before = message
    return queries


def edge_query(message: wire.QueryPoints, spec: Spec, filter_: edge.Filter | None) -> edge.QueryRequest:
    """A nearest query, dense or sparse, with its filter; always exact, so that `params` for the graph change nothing."""
    only(
        message,
        *("collection_name", "query", "using", "filter", "params", "score_threshold", "limit", "offset"),
        *("with_payload", "with_vectors", "read_consistency", "timeout"),
    )
    only(message.params, "exact", "hnsw_ef")
    only(message.query, "nearest")
    only(message.query.nearest, "dense", "sparse")
    nearest: list[float] | edge.SparseVector
    match message.query.nearest.WhichOneof("variant"):
        case "dense" if message.using == DENSE and spec.size:
            nearest = _dense(message.query.nearest.dense.data, spec)
        case "dense":
            raise Invalid(f"the collection has no dense vector {message.using!r}")
        case "sparse":
            nearest = _sparse(message.query.nearest.sparse, message.using, spec)
        case _:
            raise Unsupported("the vector engine needs query.nearest with a vector")
    return edge.QueryRequest(
        limit=page_size(message.limit, message.HasField("limit")),
        offset=message.offset,
        query=edge.Query.Nearest(nearest, using=message.using or None),
        filter=filter_,
        score_threshold=message.score_threshold if message.HasField("score_threshold") else None,
        with_payload=payload_selector(message.with_payload, default=False),
        with_vector=vector_selector(message.with_vectors),
    )


def page_size(limit: int, present: bool) -> int:
    """The limit of a query or scroll; 10 when it is absent, as in Qdrant. Raises Invalid for 0."""
    if present and limit < 1:
        raise Invalid("limit must be at least 1")
    return limit if present else 10


def payload_selector(message: wire.WithPayloadSelector, *, default: bool) -> bool | list[str]:
    """All, nothing or the named fields of the payload."""
    only(message, "enable", "include")
    match message.WhichOneof("selector_options"):
        case "enable":
            return message.enable
        case "include":
            return list(message.include.fields)
    return default


def vector_selector(message: wire.WithVectorsSelector) -> bool | list[str]:
    """All, none or the named vectors; none by default."""
    if message.HasField("include"):
        return list(message.include.names)
    return message.enable


def _vectors_output(vector: Any) -> wire.VectorsOutput | None:
    """The engine's vectors on the wire; None when none were asked for."""
    if not vector:
        return None
    if not isinstance(vector, dict):
        vector = {DENSE: vector}
    named = {name: _vector_output(one) for name, one in vector.items()}
    if set(named) == {DENSE}:
        return wire.VectorsOutput(vector=named[DENSE])
    return wire.VectorsOutput(vectors=wire.NamedVectorsOutput(vectors=named))


def _vector_output(vector: Any) -> wire.VectorOutput:
    if isinstance(vector, edge.SparseVector):
        return wire.VectorOutput(sparse=wire.SparseVector(indices=vector.indices, values=vector.values))
    return wire.VectorOutput(dense=wire.DenseVector(data=vector))


def scored_point(found: edge.ScoredPoint) -> wire.ScoredPoint:
    """One hit on the wire."""
    return wire.ScoredPoint(
        id=id_message(found.id),
        score=found.score,
        version=found.version,
        payload=to_payload(found.payload),
        vectors=_vectors_output(found.vector),
    )


def retrieved_point(found: edge.Record) -> wire.RetrievedPoint:
    """One stored point on the wire."""
    return wire.RetrievedPoint(
        id=id_message(found.id), payload=to_payload(found.payload), vectors=_vectors_output(found.vector)
    )
