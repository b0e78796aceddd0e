"""Whatever moves a bank's head hints at it after its commit, so that watchers need not wait for their poll."""

import asyncio

import asyncpg
from teamlore.compliance.v1 import compliance_pb2, compliance_pb2_grpc
from teamlore.sync.v1 import sync_pb2

from kit.hints import CHANNEL
from tests.integration.conftest import RunningStack
from tests.integration.test_walking_slice import record


async def test_a_push_a_forget_and_both_ways_to_erase_hint_at_their_bank(stack: RunningStack) -> None:
    bank = "project:hints-1a2b3c4d"
    olga = stack.credential(await stack.token("user:olga", ("project:*", "read write forget comply")))
    heard: asyncio.Queue[str] = asyncio.Queue()
    listener = await asyncpg.connect(stack.facts.database_url)
    await listener.add_listener(CHANNEL, lambda *call: heard.put_nowait(str(call[3])))

    async def hinted() -> None:
        async with asyncio.timeout(10):
            while await heard.get() != bank:
                pass

    first, second, third = record("One."), record("Another one."), record("A third of them.")
    try:
        async with stack.channel("sync") as channel, stack.channel("compliance") as officer:
            sync = stack.sync(channel)
            await sync.Push(sync_pb2.PushRequest(bank=bank, records=[first, second, third]), metadata=olga)
            await hinted()
            await sync.Forget(sync_pb2.ForgetRequest(bank=bank, memory_ids=[first.id]), metadata=olga)
            await hinted()
            erase = sync_pb2.ForgetRequest(bank=bank, memory_ids=[second.id], erase=True)
            await sync.Forget(erase, metadata=olga)
            await hinted()
            stub = compliance_pb2_grpc.ComplianceServiceStub(officer)
            await stub.EraseMemories(
                compliance_pb2.EraseMemoriesRequest(bank=bank, memory_ids=[third.id]), metadata=olga
            )
            await hinted()
    finally:
        await listener.close()
