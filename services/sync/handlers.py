"""The calls of sync: decoded, authenticated, authorised and validated by the interceptor."""

import asyncio
import uuid
from typing import Any

from teamlore.compliance.v1 import compliance_pb2, compliance_pb2_grpc
from teamlore.sync.v1 import sync_pb2, sync_pb2_grpc

from kit.identity import caller
from kit.sealing import KeyStore, key_alarm
from services.sync.pushing import Pusher
from services.sync.store import Store


class SyncHandlers(sync_pb2_grpc.SyncServiceServicer):
    """What laptops write."""

    def __init__(self, store: Store, pusher: Pusher) -> None:
        self._store = store
        self._pusher = pusher

    async def Push(self, request: sync_pb2.PushRequest, context: Any) -> sync_pb2.PushResponse:
        """Stores records; one call of the rate limit, whatever the count."""
        answers, skipped = await self._pusher.push(request.bank, caller().principal, request.records)
        return sync_pb2.PushResponse(
            results=[
                sync_pb2.PushResult(id=a.id, status=a.status, reason=a.reason, duplicate_of=a.duplicate_of)
                for a in answers
            ],
            dedup_skipped=skipped,
        )

    async def Forget(self, request: sync_pb2.ForgetRequest, context: Any) -> sync_pb2.ForgetResponse:
        """Hides or erases memories."""
        if not request.erase:
            return sync_pb2.ForgetResponse(
                deleted_count=await self._store.forget(request.bank, request.memory_ids)
            )
        done = await self._store.erase(request.bank, request.memory_ids, caller().principal, uuid.uuid4().hex)
        return sync_pb2.ForgetResponse(
            deleted_count=done.deleted, erased_count=done.erased, erasure_id=done.erasure_id
        )


class ParticipantHandlers(compliance_pb2_grpc.ErasureParticipantServiceServicer):
    """Sync's part in an erasure: the keys."""

    def __init__(self, store: Store, keys: KeyStore) -> None:
        self._store = store
        self._keys = keys
        self._one_at_a_time = asyncio.Lock()

    async def EraseObjects(
        self, request: compliance_pb2.EraseObjectsRequest, context: Any
    ) -> compliance_pb2.EraseObjectsResponse:
        """Zeroes the keys of buried memories, then marks them as destroyed; one that is not there stays open."""
        open_slots = await self._store.keys_to_destroy(request.erasure_id, request.bank, request.memory_ids)
        count = 0
        if open_slots:
            async with self._one_at_a_time:
                done = await asyncio.to_thread(self._keys.destroy, open_slots.values())
            missing = [(memory_id, slot) for memory_id, slot in open_slots.items() if slot in done.missing]
            destroyed = [memory_id for memory_id, slot in open_slots.items() if slot not in done.missing]
            if destroyed:
                count = await self._store.finish_key_destruction(request.bank, request.erasure_id, destroyed)
            if missing:
                raise key_alarm(f"erasure {request.erasure_id} cannot destroy a key", request.bank, missing)
        return compliance_pb2.EraseObjectsResponse(erased_count=count)
