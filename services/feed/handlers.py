"""The calls of feed: decoded, authenticated, authorised and validated by the interceptor."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from teamlore.feed.v1 import feed_pb2, feed_pb2_grpc

from kit.errors import Refusal
from kit.foundation import Drain
from kit.identity import Authenticator, caller
from services.feed import wire
from services.feed.cursors import Cursor, CursorCodec
from services.feed.heads import Heads
from services.feed.store import DEVICES, Head, Page, Store
from services.feed.watching import follow

DEFAULT_LIMIT, LARGEST_LIMIT = 100, 1000
# gRPC refuses messages over 4 MiB.
LARGEST_BATCH_BYTES = 4_000_000
DEFAULT_PAGE, LARGEST_PAGE = 500, 1000


class FeedHandlers(feed_pb2_grpc.FeedServiceServicer):
    """Every change of a bank, in order."""

    def __init__(
        self, store: Store, codec: CursorCodec, heads: Heads, authenticator: Authenticator, drain: Drain
    ) -> None:
        self._store = store
        self._codec = codec
        self._heads = heads
        self._authenticator = authenticator
        self._drain = drain

    def _start(self, bank: str, text: str) -> Cursor | None:
        return self._codec.read(bank, text) if text else None

    # Answers that carry changes are bytes already, which the interceptor passes through; the stubs know messages alone.
    async def ListChanges(  # type: ignore[override]
        self, request: feed_pb2.ListChangesRequest, context: Any
    ) -> bytes:
        """One batch after a cursor: the bytes of a ListChangesResponse."""
        limit = DEFAULT_LIMIT if request.limit == 0 else min(max(request.limit, 1), LARGEST_LIMIT)
        start = self._start(request.bank, request.cursor)
        page = await self._store.page(request.bank, start, limit, LARGEST_BATCH_BYTES)
        rest = feed_pb2.ListChangesResponse(
            after_seq=page.start.seq,
            through_seq=page.end.seq,
            next_cursor=self._codec.write(request.bank, page.end),
            has_more=page.more,
        )
        return page.changes + rest.SerializeToString()

    async def WatchChanges(  # type: ignore[override]
        self, request: feed_pb2.WatchChangesRequest, context: Any
    ) -> AsyncIterator[bytes | feed_pb2.WatchChangesResponse]:
        """Changes as they are committed: the bytes of a WatchChangesResponse for each batch."""
        who, bank = caller(), request.bank

        async def admitted() -> None:
            await self._authenticator.access.require(await self._authenticator.renew(who), "read", bank)

        start = self._start(bank, request.cursor)
        async with self._store.reading_ahead(bank, LARGEST_LIMIT) as ahead:

            async def read(after: Cursor | None) -> Page:
                return await self._heads.shared(
                    bank, after, lambda: self._store.page(bank, after, LARGEST_LIMIT, LARGEST_BATCH_BYTES, ahead)
                )

            with self._heads.watching(bank) as watch:
                async for event in follow(start, watch, read, admitted, self._drain.started.is_set):
                    yield self._message(bank, event)

    def _message(self, bank: str, event: Page | Cursor) -> bytes | feed_pb2.WatchChangesResponse:
        """A page or a bookmark of a stream, for the wire."""
        if isinstance(event, Cursor):
            mark = feed_pb2.Bookmark(seq=event.seq, cursor=self._codec.write(bank, event))
            return feed_pb2.WatchChangesResponse(bookmark=mark)
        rest = feed_pb2.ChangeBatch(
            after_seq=event.start.seq,
            through_seq=event.end.seq,
            next_cursor=self._codec.write(bank, event.end),
        )
        return wire.within(event.changes + rest.SerializeToString())

    async def GetHead(self, request: feed_pb2.GetHeadRequest, context: Any) -> feed_pb2.GetHeadResponse:
        """Where the bank stands."""
        head = await self._store.head(request.bank)
        return feed_pb2.GetHeadResponse(
            head=head.head, horizon=head.horizon, cursor=self._codec.write(request.bank, _at(head))
        )

    async def GetDigest(self, request: feed_pb2.GetDigestRequest, context: Any) -> feed_pb2.GetDigestResponse:
        """Count and sum over live memories."""
        head = await self._store.head(request.bank)
        return feed_pb2.GetDigestResponse(seq=head.head, count=head.live, sum=head.digest)

    async def ListLive(  # type: ignore[override]
        self, request: feed_pb2.ListLiveRequest, context: Any
    ) -> bytes:
        """One page of what is, or was, live: the bytes of a ListLiveResponse."""
        bank, size = request.bank, min(request.page_size or DEFAULT_PAGE, LARGEST_PAGE)
        listing = f"live at {request.as_of}" if request.as_of else "live"
        after = self._codec.read_page(bank, request.page_token, listing) if request.page_token else ""
        memories, last = await self._store.live(bank, after, size, LARGEST_BATCH_BYTES, request.as_of)
        token = self._codec.write_page(bank, last, listing) if last else ""
        return memories + feed_pb2.ListLiveResponse(next_page_token=token).SerializeToString()

    async def RegisterDevice(
        self, request: feed_pb2.RegisterDeviceRequest, context: Any
    ) -> feed_pb2.RegisterDeviceResponse:
        """Makes a device known as a mirror."""
        answer = await self._store.register_device(request.bank, request.device_id, caller().principal)
        if answer == "foreign":
            raise Refusal("NOT_FOUND", "there is no such device of yours")
        if answer == "full":
            raise Refusal(
                "QUOTA_EXCEEDED",
                f"you have {DEVICES} devices in this bank; retire one that you no longer use with RetireDevice",
            )
        return feed_pb2.RegisterDeviceResponse()

    async def _whose(self, bank: str) -> str | None:
        """Whose devices the caller may see and retire; None for everybody's."""
        who = caller()
        admin = who.internal or who.may("admin", bank, await self._authenticator.access.facts(who, bank))
        return None if admin else who.principal

    async def ListDevices(
        self, request: feed_pb2.ListDevicesRequest, context: Any
    ) -> feed_pb2.ListDevicesResponse:
        """One page of devices by id."""
        bank, size = request.bank, min(request.page_size or DEFAULT_LIMIT, LARGEST_LIMIT)
        after = self._codec.read_page(bank, request.page_token, "devices") if request.page_token else ""
        found = await self._store.devices(bank, await self._whose(bank), after, size)
        more = len(found) == size
        return feed_pb2.ListDevicesResponse(
            devices=[
                feed_pb2.Device(
                    device_id=each.device_id,
                    principal=each.principal,
                    registered_at=_timestamp(each.registered_at),
                    last_seen_at=_timestamp(each.last_seen_at),
                    acked_seq=each.acked_seq,
                    retired_at=_timestamp(each.retired_at),
                )
                for each in found
            ],
            next_page_token=self._codec.write_page(bank, found[-1].device_id, "devices") if more else "",
        )

    async def RetireDevice(
        self, request: feed_pb2.RetireDeviceRequest, context: Any
    ) -> feed_pb2.RetireDeviceResponse:
        """Retires a device, so that nobody waits for its word."""
        whose = await self._whose(request.bank)
        if not await self._store.retire_device(request.bank, request.device_id, whose):
            raise Refusal("NOT_FOUND", "there is no such device that you may retire")
        return feed_pb2.RetireDeviceResponse()

    async def AckErasures(
        self, request: feed_pb2.AckErasuresRequest, context: Any
    ) -> feed_pb2.AckErasuresResponse:
        """Records what a device has purged."""
        if not await self._store.ack_erasures(
            request.bank, request.device_id, caller().principal, request.through_seq
        ):
            raise Refusal("NOT_FOUND", "there is no such device of yours")
        return feed_pb2.AckErasuresResponse()


def _at(head: Head) -> Cursor:
    return Cursor(head.epoch, head.head, head.nonce)


def _timestamp(moment: datetime | None) -> Timestamp | None:
    if moment is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp
