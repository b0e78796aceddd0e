"""Devices over the wire: one's own for readers, everybody's for an admin of the bank, and a typed end of their number."""

import uuid

import grpc
import pytest
from teamlore.feed.v1 import feed_pb2

from services.feed.store import DEVICES
from tests.integration.calls import outcome_of
from tests.integration.conftest import RunningStack


async def test_own_devices_for_readers_and_all_for_an_admin(stack: RunningStack) -> None:
    bank = f"project:devices-{uuid.uuid4().hex[:8]}"
    alice = stack.credential(await stack.token("user:device-alice", (bank, "read")))
    bob = stack.credential(await stack.token("user:device-bob", (bank, "read write forget comply")))
    admin = stack.credential(await stack.token("user:device-admin", (bank, "read admin")))
    names = sorted(uuid.uuid4().hex for _ in range(DEVICES + 1))
    async with stack.channel("feed") as channel:
        feed = stack.feed(channel)

        async def refused(call: object) -> str:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call  # type: ignore[misc]
            return outcome_of(caught.value).reason

        async def listed(who: object, size: int = 7) -> list[str]:
            found, token = [], ""
            while True:
                request = feed_pb2.ListDevicesRequest(bank=bank, page_size=size, page_token=token)
                page = await feed.ListDevices(request, metadata=who)
                found += [each.device_id for each in page.devices]
                token = page.next_page_token
                if not token:
                    return found

        def register(name: str, who: object) -> object:
            return feed.RegisterDevice(
                feed_pb2.RegisterDeviceRequest(bank=bank, device_id=name), metadata=who
            )

        def retire(name: str, who: object) -> object:
            return feed.RetireDevice(feed_pb2.RetireDeviceRequest(bank=bank, device_id=name), metadata=who)

        for name in names[:-1]:
            await register(name, alice)
        assert await refused(register(names[-1], alice)) == "QUOTA_EXCEEDED"
        assert await listed(alice) == await listed(admin) == names[:-1] and await listed(bob) == []
        assert await refused(retire(names[0], bob)) == await refused(retire(names[-1], bob)) == "NOT_FOUND"
        await retire(names[0], admin)
        await retire(names[1], alice)
        await register(names[-1], alice)
        page = await feed.ListDevices(feed_pb2.ListDevicesRequest(bank=bank), metadata=alice)
        assert [each.device_id for each in page.devices if each.HasField("retired_at")] == names[:2]
        assert {each.principal for each in page.devices} == {"user:device-alice"}
        token = (
            await feed.ListDevices(feed_pb2.ListDevicesRequest(bank=bank, page_size=1), metadata=alice)
        ).next_page_token
        elsewhere = feed_pb2.ListLiveRequest(bank=bank, page_token=token)
        assert await refused(feed.ListLive(elsewhere, metadata=alice)) == "CURSOR_INVALID"
