"""Qdrant's gRPC services Qdrant, Collections and Points, as far as the index needs them.

Each method reads its message, calls a shard and answers; everything else of the three services is answered
with UNIMPLEMENTED and its name. `wait=false` on an upsert changes nothing: it is on disk all the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Any, Final, NoReturn

import grpc
import qdrant_edge as edge
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from qdrant_client import grpc as wire
from qdrant_client.grpc import collections_service_pb2, points_service_pb2, qdrant_pb2

from services.index.engine.complaints import Complaints
from services.index.engine.shards import Invalid, Missing, NoSpace, Refusal, Shards, Spec, Taken, Unsupported
from services.index.engine.wire import (
    edge_filter,
    edge_point,
    edge_queries,
    from_payload,
    id_message,
    only,
    optional_filter,
    page_size,
    payload_selector,
    point_id,
    retrieved_point,
    scored_point,
    to_payload,
    vector_selector,
)

Call = Callable[[Any], Awaitable[Message]]
Context = grpc.aio.ServicerContext[Any, Any]

_log = logging.getLogger(__name__)
_complaints = Complaints()

_CODES: Final[Mapping[type[Refusal], grpc.StatusCode]] = {
    Invalid: grpc.StatusCode.INVALID_ARGUMENT,
    Unsupported: grpc.StatusCode.UNIMPLEMENTED,
    Missing: grpc.StatusCode.NOT_FOUND,
    Taken: grpc.StatusCode.ALREADY_EXISTS,
    NoSpace: grpc.StatusCode.UNAVAILABLE,
}
_INDEX_TYPES: Final = {
    wire.FieldType.FieldTypeKeyword: (edge.PayloadSchemaType.Keyword, wire.PayloadSchemaType.Keyword),
    wire.FieldType.FieldTypeBool: (edge.PayloadSchemaType.Bool, wire.PayloadSchemaType.Bool),
}
_SCHEMA_ON_WIRE: Final = dict(_INDEX_TYPES.values())
#: Options that tune speed or a cluster and change no answer of this engine; accepted, so that one and the
#: same call makes the collection on a real server.
_TUNING: Final = (
    *("hnsw_config", "wal_config", "optimizers_config", "shard_number", "on_disk_payload", "timeout"),
    *("replication_factor", "write_consistency_factor", "payload", "id_tracker"),
)


class Collections:
    """The service qdrant.Collections."""

    def __init__(self, shards: Shards) -> None:
        """Serve the collections of `shards`."""
        self._shards = shards

    async def create(self, request: wire.CreateCollection) -> Message:
        """Make a collection: one unnamed dense vector, sparse ones by name, or both."""
        only(request, "collection_name", "vectors_config", "sparse_vectors_config", "metadata", *_TUNING)
        size, distance = _dense(request.vectors_config)
        for sparse in request.sparse_vectors_config.map.values():
            only(sparse)
        names = tuple(sorted(request.sparse_vectors_config.map))
        if "" in names:
            raise Invalid("a sparse vector needs a name")
        spec = Spec(size, distance, names, from_payload(request.metadata))
        await self._shards.create(request.collection_name, spec)
        return wire.CollectionOperationResponse(result=True)

    async def delete(self, request: wire.DeleteCollection) -> Message:
        """Delete a collection with all its files; `result` is false when there was none."""
        only(request, "collection_name", "timeout")
        return wire.CollectionOperationResponse(result=await self._shards.delete(request.collection_name))

    async def exists(self, request: wire.CollectionExistsRequest) -> Message:
        """Say whether a collection exists."""
        only(request, "collection_name")
        exists = request.collection_name in self._shards.names()
        return wire.CollectionExistsResponse(result=wire.CollectionExists(exists=exists))

    async def list_all(self, request: wire.ListCollectionsRequest) -> Message:
        """List all collections by name."""
        only(request)
        named = [wire.CollectionDescription(name=name) for name in self._shards.names()]
        return wire.ListCollectionsResponse(collections=named)

    async def get(self, request: wire.GetCollectionInfoRequest) -> Message:
        """Describe a collection: what it stores, how many points, which payload fields are indexed."""
        only(request, "collection_name")
        shard = self._shards.get(request.collection_name)
        info = await shard.read(lambda one: one.info())
        spec = shard.spec
        dense = None
        if spec.size:
            params = wire.VectorParams(size=spec.size, distance=wire.Distance.Value(spec.distance))
            dense = wire.VectorsConfig(params=params)
        sparse = wire.SparseVectorConfig(map={name: wire.SparseVectorParams() for name in spec.sparse})
        stored = wire.CollectionParams(
            shard_number=1,
            replication_factor=1,
            write_consistency_factor=1,
            vectors_config=dense,
            sparse_vectors_config=sparse if spec.sparse else None,
        )
        schema = {
            name: wire.PayloadSchemaInfo(data_type=_SCHEMA_ON_WIRE[index.data_type], points=index.points)
            for name, index in info.payload_schema.items()
        }
        result = wire.CollectionInfo(
            status=wire.CollectionStatus.Green,
            optimizer_status=wire.OptimizerStatus(ok=True),
            segments_count=info.segments_count,
            points_count=info.points_count,
            indexed_vectors_count=info.indexed_vectors_count,
            payload_schema=schema,
            config=wire.CollectionConfig(
                params=stored,
                hnsw_config=wire.HnswConfigDiff(m=0, ef_construct=4, full_scan_threshold=10),
                optimizer_config=wire.OptimizersConfigDiff(
                    deleted_threshold=1e-9, vacuum_min_vector_number=1, default_segment_number=1
                ),
                wal_config=wire.WalConfigDiff(wal_capacity_mb=0, wal_segments_ahead=0),
                metadata=to_payload(spec.metadata),
            ),
        )
        return wire.GetCollectionInfoResponse(result=result)


def _dense(config: wire.VectorsConfig) -> tuple[int, str]:
    """Length and distance of the dense vector; 0 and nothing when there is none. Raises Invalid and Unsupported."""
    only(config, "params", "params_map")
    only(config.params_map)
    if not config.HasField("params"):
        return 0, ""
    params = config.params
    only(params, "size", "distance", "hnsw_config", "on_disk", "memory", "datatype")
    if params.HasField("datatype") and params.datatype != wire.Datatype.Float32:
        raise Unsupported("the vector engine stores float32 vectors only")
    if params.distance == wire.Distance.UnknownDistance:
        raise Invalid("the distance of the dense vector is missing")
    if not params.size:
        raise Invalid("a dense vector has 1 to 65536 dimensions")
    return params.size, wire.Distance.Name(params.distance)


class Points:
    """The service qdrant.Points."""

    def __init__(self, shards: Shards) -> None:
        """Serve the points of `shards`."""
        self._shards = shards

    async def upsert(self, request: wire.UpsertPoints) -> Message:
        """Store points, replacing those with the same ids; all or none, and on disk when this answers."""
        only(request, "collection_name", "wait", "points", "ordering", "timeout")
        shard = self._shards.get(request.collection_name)
        points = [edge_point(one, shard.spec) for one in request.points]
        if points:
            await shard.write(edge.UpdateOperation.upsert_points(points))
        return _updated(wire.UpdateStatus.Completed)

    async def delete(self, request: wire.DeletePoints) -> Message:
        """Delete points by ids or by filter; with `wait`, answer only when no file holds their vectors."""
        only(request, "collection_name", "wait", "points", "ordering", "timeout")
        shard = self._shards.get(request.collection_name)
        match request.points.WhichOneof("points_selector_one_of"):
            case "points":
                ids = [point_id(one) for one in request.points.points.ids]
                operation = edge.UpdateOperation.delete_points(list(ids))
            case "filter" if request.points.filter.ListFields():
                operation = edge.UpdateOperation.delete_points_by_filter(edge_filter(request.points.filter))
            case "filter":
                raise Invalid("an empty filter would delete every point: delete the collection instead")
            case _:
                raise Invalid("say by ids or by filter which points to delete")
        await shard.delete(operation, wait=request.wait)
        return _updated(wire.UpdateStatus.Completed if request.wait else wire.UpdateStatus.Acknowledged)

    async def query(self, request: wire.QueryPoints) -> Message:
        """The nearest points to a vector, best first."""
        shard = self._shards.get(request.collection_name)
        [query] = edge_queries([request], shard.spec)
        found = await shard.read(lambda one: one.query(query))
        return wire.QueryResponse(result=[scored_point(one) for one in found])

    async def query_batch(self, request: wire.QueryBatchPoints) -> Message:
        """Several queries in one pass; one result a query, in order."""
        only(request, "collection_name", "query_points", "read_consistency", "timeout")
        shard = self._shards.get(request.collection_name)
        for one in request.query_points:
            if one.collection_name not in ("", request.collection_name):
                raise Invalid("all queries of a batch go to the batch's collection")
        batch = edge.QueryBatchRequest(edge_queries(request.query_points, shard.spec))
        found = await shard.read(lambda one: one.query_batch(batch)) if request.query_points else []
        results = [wire.BatchResult(result=[scored_point(one) for one in hits]) for hits in found]
        return wire.QueryBatchResponse(result=results)

    async def get(self, request: wire.GetPoints) -> Message:
        """The points with the given ids; ids that are not there are left out."""
        only(request, "collection_name", "ids", "with_payload", "with_vectors", "read_consistency", "timeout")
        shard = self._shards.get(request.collection_name)
        ids = [point_id(one) for one in request.ids]
        payload = payload_selector(request.with_payload, default=True)
        vectors = vector_selector(request.with_vectors)
        found = await shard.read(lambda one: one.retrieve(list(ids), payload, vectors))
        return wire.GetResponse(result=[retrieved_point(one) for one in found])

    async def count(self, request: wire.CountPoints) -> Message:
        """How many points match; always exact."""
        only(request, "collection_name", "filter", "exact", "read_consistency", "timeout")
        shard = self._shards.get(request.collection_name)
        wanted = optional_filter(request.filter, request.HasField("filter"))
        count = await shard.read(lambda one: one.count(edge.CountRequest(filter=wanted)))
        return wire.CountResponse(result=wire.CountResult(count=count))

    async def scroll(self, request: wire.ScrollPoints) -> Message:
        """Points in the order of their ids, from `offset` on."""
        only(
            request,
            *("collection_name", "filter", "offset", "limit", "with_payload", "with_vectors"),
            *("read_consistency", "timeout"),
        )
        shard = self._shards.get(request.collection_name)
        page = edge.ScrollRequest(
            offset=point_id(request.offset) if request.HasField("offset") else None,
            limit=page_size(request.limit, request.HasField("limit")),
            filter=optional_filter(request.filter, request.HasField("filter")),
            with_payload=payload_selector(request.with_payload, default=True),
            with_vector=vector_selector(request.with_vectors),
        )
        found, following = await shard.read(lambda one: one.scroll(page))
        return wire.ScrollResponse(
            result=[retrieved_point(one) for one in found],
            next_page_offset=None if following is None else id_message(following),
        )

    async def create_field_index(self, request: wire.CreateFieldIndexCollection) -> Message:
        """Index a payload field as keyword or bool; one that is indexed already, as `bank` is, stays so."""
        only(
            request,
            *("collection_name", "wait", "field_name", "field_type", "field_index_params", "ordering"),
            "timeout",
        )
        only(request.field_index_params, "keyword_index_params", "bool_index_params")
        keyword = request.field_index_params.keyword_index_params
        only(keyword, "is_tenant", "on_disk", "enable_hnsw", "memory")
        if request.field_type not in _INDEX_TYPES:
            raise Unsupported("the vector engine indexes keyword and bool fields only")
        shard = self._shards.get(request.collection_name)
        kind, _ = _INDEX_TYPES[request.field_type]
        present = (await shard.read(lambda one: one.info())).payload_schema.get(request.field_name)
        if present is not None and present.data_type != kind:
            raise Invalid(f"{request.field_name!r} is indexed already, as another type")
        if present is None:
            params = edge.KeywordIndexParams(is_tenant=keyword.is_tenant)
            schema = params if kind == edge.PayloadSchemaType.Keyword else kind
            await shard.write(edge.UpdateOperation.create_field_index(request.field_name, schema))
        return _updated(wire.UpdateStatus.Completed)


async def health_check(request: wire.HealthCheckRequest) -> Message:
    """The service qdrant.Qdrant: name and version of the engine."""
    only(request)
    return wire.HealthCheckReply(title="teamlore vector engine", version=version("qdrant-edge-py"))


def _updated(status: wire.UpdateStatus.ValueType) -> wire.PointsOperationResponse:
    return wire.PointsOperationResponse(result=wire.UpdateResult(operation_id=0, status=status))


def services(shards: Shards) -> list[grpc.GenericRpcHandler]:
    """The three services over `shards`, ready for `Server.add_generic_rpc_handlers`."""
    collections, points = Collections(shards), Points(shards)
    return [
        _service(qdrant_pb2.DESCRIPTOR.services_by_name["Qdrant"], {"HealthCheck": health_check}),
        _service(
            collections_service_pb2.DESCRIPTOR.services_by_name["Collections"],
            {
                "Create": collections.create,
                "Delete": collections.delete,
                "CollectionExists": collections.exists,
                "List": collections.list_all,
                "Get": collections.get,
            },
        ),
        _service(
            points_service_pb2.DESCRIPTOR.services_by_name["Points"],
            {
                "Upsert": points.upsert,
                "Delete": points.delete,
                "Query": points.query,
                "QueryBatch": points.query_batch,
                "Get": points.get,
                "Count": points.count,
                "Scroll": points.scroll,
                "CreateFieldIndex": points.create_field_index,
            },
        ),
    ]


def _service(service: ServiceDescriptor, calls: Mapping[str, Call]) -> grpc.GenericRpcHandler:
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        method.name: grpc.unary_unary_rpc_method_handler(_answer(method, calls.get(method.name)))
        for method in service.methods
    }
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _answer(method: MethodDescriptor, call: Call | None) -> Callable[[bytes, Context], Awaitable[bytes]]:
    """Decode, call, encode; turn each refusal into its status. The bytes are decoded here, so that bad ones
    are INVALID_ARGUMENT and not UNKNOWN."""
    request_class = GetMessageClass(method.input_type)

    async def answer(raw: bytes, context: Context) -> bytes:
        started = time.perf_counter()
        try:
            if call is None:
                raise Unsupported(f"the vector engine does not serve {method.full_name}")
            response: Any = await call(request_class.FromString(raw))
        except Refusal as refusal:
            await _abort(context, _CODES[type(refusal)], str(refusal))
        except DecodeError:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, f"not a {method.input_type.full_name}")
        except Exception as error:  # the outermost frame: a bug is INTERNAL and stands in the log
            failure = f"{method.full_name} failed: {type(error).__name__}"
            new = not _complaints.known(failure)
            if count := _complaints.due(failure):
                _log.error("%s; times since it was last said: %d", failure, count, exc_info=new)
            await _abort(
                context, grpc.StatusCode.INTERNAL, f"{method.full_name} failed; see the engine's log"
            )
        if "time" in response.DESCRIPTOR.fields_by_name:
            response.time = time.perf_counter() - started
        return bytes(response.SerializeToString())

    return answer


async def _abort(context: Context, code: grpc.StatusCode, text: str) -> NoReturn:
    await context.abort(code, text)
