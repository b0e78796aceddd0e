"""The calls of sync: decoded, authenticated, authorised and validated by the interceptor."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

from teamlore.compliance.v1 import compliance_pb2, compliance_pb2_grpc
from teamlore.sync.v1 import sync_pb2, sync_pb2_grpc

from kit.errors import Refusal, field_invalid
from kit.identity import caller
from kit.sealing import KeyStore, key_alarm
from services.sync import standing
from services.sync.pushing import UNFIT_NAME, Answer, Pusher
from services.sync.store import Store


class SyncHandlers(sync_pb2_grpc.SyncServiceServicer):
    """What laptops write."""

    def __init__(self, store: Store, keys: KeyStore, pusher: Pusher) -> None:
        self._store = store
        self._keys = keys
        self._pusher = pusher

    async def Push(self, request: sync_pb2.PushRequest, context: Any) -> sync_pb2.PushResponse:
        """Stores records; one call of the rate limit, whatever the count."""
        answers, skipped = await self._pusher.push(request.bank, caller().principal, request.records)
        return sync_pb2.PushResponse(results=[_result(answer) for answer in answers], dedup_skipped=skipped)

    async def PushStream(
        self, requests: AsyncIterator[sync_pb2.PushStreamRequest], context: Any
    ) -> AsyncIterator[sync_pb2.PushStreamResponse]:
        """Stores batch after batch: the next one is read when the answer to the last is on its way."""
        bank, last = "", -1
        async for request in requests:
            bank = bank or request.bank
            if not bank:
                raise field_invalid("bank", "the first message names the bank")
            if request.sequence <= last:
                raise field_invalid("sequence", "must be higher than that of the batch before")
            last = request.sequence
            answers, skipped = await self._pusher.push(bank, caller().principal, request.records)
            yield sync_pb2.PushStreamResponse(
                sequence=last, results=[_result(answer) for answer in answers], dedup_skipped=skipped
            )

    async def GetMemories(
        self, request: sync_pb2.GetMemoriesRequest, context: Any
    ) -> sync_pb2.GetMemoriesResponse:
        """Live memories by their ids, with what goes together with them where that is asked."""
        if not request.together:
            return await standing.opened(self._store, self._keys, request.bank, request.memory_ids)
        ids = await self._store.together(request.bank, request.memory_ids)
        answer = await standing.opened(self._store, self._keys, request.bank, ids[: standing.MOST])
        answer.remaining_ids.extend(ids[standing.MOST :])
        return answer

    async def UpdateStatus(
        self, request: sync_pb2.UpdateStatusRequest, context: Any
    ) -> sync_pb2.UpdateStatusResponse:
        """Changes what is held of a memory, where the caller has seen the newest."""
        change = standing.change_of(request, caller().person_present)
        policy = await self._store.policy(request.bank)
        if policy is not None and policy.archived:
            raise Refusal("BANK_ARCHIVED", "the bank is archived; nothing in it changes")
        if change.trust in standing.VOUCHED:
            found = await standing.opened(self._store, self._keys, request.bank, [request.id])
            standing.require_source(found.memories, request.version)
        return standing.answered(await self._store.status(request.bank, request.id, request.version, change))

    async def Forget(self, request: sync_pb2.ForgetRequest, context: Any) -> sync_pb2.ForgetResponse:
        """Hides or erases memories."""
        bank, ids = request.bank, request.memory_ids
        # Ids are buried under the bank's name also where nobody has made it yet.
        if self._pusher.is_secret(bank) and await self._store.policy(bank) is None:
            raise field_invalid("bank", UNFIT_NAME)
        await self._pusher.require_fit_ids(bank, ids)
        if not request.erase:
            return sync_pb2.ForgetResponse(deleted_count=await self._store.forget(bank, ids))
        done = await self._store.erase(bank, ids, caller().principal, uuid.uuid4().hex)
        return sync_pb2.ForgetResponse(
            deleted_count=done.deleted, erased_count=done.erased, erasure_id=done.erasure_id
        )


def _result(answer: Answer) -> sync_pb2.PushResult:
    return sync_pb2.PushResult(
        id=answer.id, status=answer.status, reason=answer.reason, duplicate_of=answer.duplicate_of
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
