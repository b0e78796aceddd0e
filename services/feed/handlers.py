"""The calls of feed: decoded, authenticated, authorised and validated by the interceptor."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from teamlore.feed.v1 import feed_pb2, feed_pb2_grpc

from kit.errors import Refusal
from kit.foundation import Drain
from kit.identity import Authenticator, caller
from services.feed.cursors import Cursor, CursorCodec, judge
from services.feed.heads import Heads
from services.feed.store import Head, Page, Step, Store
from services.feed.watching import Batch, follow

DEFAULT_LIMIT, LARGEST_LIMIT, WATCH_PAGE = 100, 1000, 500
LARGEST_BATCH_BYTES = 2_500_000
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

    async def _resume(self, bank: str, text: str) -> Cursor:
        if not text:
            head = await self._store.head(bank)
            start = Cursor(head.epoch, 0, 0)
            if head.horizon > 0:
                judge(start, await self._store.history(bank, 0))
            return start
        cursor = self._codec.read(bank, text)
        judge(cursor, await self._store.history(bank, cursor.seq))
        return cursor

    async def ListChanges(
        self, request: feed_pb2.ListChangesRequest, context: Any
    ) -> feed_pb2.ListChangesResponse:
        """One batch after a cursor."""
        limit = DEFAULT_LIMIT if request.limit == 0 else min(max(request.limit, 1), LARGEST_LIMIT)
        cursor = await self._resume(request.bank, request.cursor)
        page = await self._store.page(request.bank, cursor, limit, LARGEST_BATCH_BYTES)
        return feed_pb2.ListChangesResponse(
            changes=[_change(step) for step in page.steps],
            after_seq=cursor.seq,
            through_seq=page.through,
            next_cursor=self._codec.write(request.bank, Cursor(cursor.epoch, page.through, page.nonce)),
            has_more=page.more,
        )

    async def WatchChanges(
        self, request: feed_pb2.WatchChangesRequest, context: Any
    ) -> AsyncIterator[feed_pb2.WatchChangesResponse]:
        """Changes as they are committed."""
        who, bank = caller(), request.bank
        start = await self._resume(bank, request.cursor)

        async def admitted() -> None:
            await self._authenticator.access.require(await self._authenticator.renew(who), "read", bank)

        async def read(cursor: Cursor) -> Page:
            return await self._store.page(bank, cursor, WATCH_PAGE, LARGEST_BATCH_BYTES)

        with self._heads.watching(bank) as watch:
            async for event in follow(start, watch, read, admitted, self._drain.started.is_set):
                if isinstance(event, Batch):
                    after, page = event.after, event.page
                    batch = feed_pb2.ChangeBatch(
                        changes=[_change(step) for step in page.steps],
                        after_seq=after,
                        through_seq=page.through,
                        next_cursor=self._codec.write(bank, Cursor(start.epoch, page.through, page.nonce)),
                    )
                    yield feed_pb2.WatchChangesResponse(batch=batch)
                else:
                    mark = feed_pb2.Bookmark(
                        seq=event.cursor.seq, cursor=self._codec.write(bank, event.cursor)
                    )
                    yield feed_pb2.WatchChangesResponse(bookmark=mark)

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

    async def ListLive(self, request: feed_pb2.ListLiveRequest, context: Any) -> feed_pb2.ListLiveResponse:
        """One page of live memories."""
        size = min(request.page_size or DEFAULT_PAGE, LARGEST_PAGE)
        after = self._codec.read_page(request.bank, request.page_token) if request.page_token else ""
        steps, last = await self._store.live(request.bank, after, size, LARGEST_BATCH_BYTES)
        return feed_pb2.ListLiveResponse(
            memories=[_change(step) for step in steps],
            next_page_token=self._codec.write_page(request.bank, last) if last else "",
        )

    async def RegisterDevice(
        self, request: feed_pb2.RegisterDeviceRequest, context: Any
    ) -> feed_pb2.RegisterDeviceResponse:
        """Makes a device known as a mirror."""
        if not await self._store.register_device(request.bank, request.device_id, caller().principal):
            raise Refusal("NOT_FOUND", "there is no such device of yours")
        return feed_pb2.RegisterDeviceResponse()

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


def _timestamp(value: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(value)
    return stamp


def _change(step: Step) -> feed_pb2.Change:
    memory = step.memory
    change = feed_pb2.Change(id=step.memory_id, seq=step.seq, changed_at=_timestamp(step.changed_at))
    if memory is None:
        change.deleted = True
        return change
    # The content's field numbers are the change's own, so its bytes are read straight in.
    change.MergeFromString(memory.content)
    change.retained_at.FromDatetime(memory.retained_at)
    if memory.occurred_at is not None:
        change.occurred_at.FromDatetime(memory.occurred_at)
    change.author, change.lane, change.derivation = memory.author, memory.lane, memory.derivation
    change.fact_type, change.status, change.version = memory.fact_type, memory.status, memory.version
    change.trust, change.may_be_stale, change.superseded_by = (
        memory.trust, memory.may_be_stale, memory.superseded_by,
    )  # fmt: skip
    if memory.last_verified is not None:
        change.last_verified.FromDatetime(memory.last_verified)
    return change
