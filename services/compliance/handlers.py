"""The calls of compliance: decoded, authenticated, authorised and validated by the interceptor."""

import uuid
from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from teamlore.compliance.v1 import compliance_pb2, compliance_pb2_grpc

from kit.errors import Refusal, field_invalid
from kit.identity import caller
from services.compliance.erasures import Erasure
from services.compliance.store import Hold, Store


class ComplianceHandlers(compliance_pb2_grpc.ComplianceServiceServicer):
    """What officers ask for."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def PlaceHold(
        self, request: compliance_pb2.PlaceHoldRequest, context: Any
    ) -> compliance_pb2.PlaceHoldResponse:
        """Places a hold on a bank."""
        review_at = None
        if request.HasField("review_at"):
            try:
                review_at = request.review_at.ToDatetime(tzinfo=UTC)
            except (ValueError, OverflowError) as error:
                raise field_invalid("review_at", "must be a time between the years 1 and 9999") from error
            if review_at <= datetime.now(UTC):
                raise field_invalid("review_at", "must lie in the future")
        placed = await self._store.place_hold(
            request.bank, uuid.uuid4().hex, request.matter, caller().principal, review_at, request.make_bank
        )
        if placed is None:
            raise Refusal(
                "NOT_FOUND", "there is no such bank; to hold it before its first push, say make_bank"
            )
        return compliance_pb2.PlaceHoldResponse(
            hold=_hold(placed.hold),
            stopped_erasures=placed.stopped,
            unstoppable_erasures=placed.unstoppable,
        )

    async def LiftHold(
        self, request: compliance_pb2.LiftHoldRequest, context: Any
    ) -> compliance_pb2.LiftHoldResponse:
        """Lifts a hold."""
        released = await self._store.lift_hold(request.bank, request.hold_id, caller().principal)
        return compliance_pb2.LiftHoldResponse(released=released)

    async def ListHolds(
        self, request: compliance_pb2.ListHoldsRequest, context: Any
    ) -> compliance_pb2.ListHoldsResponse:
        """Lists the holds of a bank."""
        holds = await self._store.holds(request.bank)
        return compliance_pb2.ListHoldsResponse(holds=[_hold(hold) for hold in holds])

    async def EraseMemories(
        self, request: compliance_pb2.EraseMemoriesRequest, context: Any
    ) -> compliance_pb2.EraseMemoriesResponse:
        """Begins an erasure; the runner takes it from there."""
        erasure_id = uuid.uuid4().hex
        count = await self._store.erase(request.bank, request.memory_ids, caller().principal, erasure_id)
        return compliance_pb2.EraseMemoriesResponse(
            erased_count=count, erasure_id=erasure_id if count else ""
        )

    async def GetErasure(
        self, request: compliance_pb2.GetErasureRequest, context: Any
    ) -> compliance_pb2.GetErasureResponse:
        """Tells how far an erasure is."""
        erasure = await self._store.erasure(request.erasure_id)
        if erasure is None:
            raise Refusal("NOT_FOUND", "there is no such object, or you may not see it")
        return compliance_pb2.GetErasureResponse(erasure=_erasure(erasure))


def _timestamp(value: datetime | None) -> Timestamp | None:
    if value is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(value)
    return stamp


def _hold(hold: Hold) -> compliance_pb2.Hold:
    return compliance_pb2.Hold(
        hold_id=hold.hold_id,
        bank=hold.bank,
        matter=hold.matter,
        placed_at=_timestamp(hold.placed_at),
        review_at=_timestamp(hold.review_at),
        lifted_at=_timestamp(hold.lifted_at),
        placed_by=hold.placed_by,
    )


def _erasure(erasure: Erasure) -> compliance_pb2.Erasure:
    receipt = None
    if erasure.receipt is not None:
        receipt = compliance_pb2.Receipt(
            statement=erasure.receipt.statement,
            signature=erasure.receipt.signature,
            public_key=erasure.receipt.public_key,
        )
    return compliance_pb2.Erasure(
        erasure_id=erasure.erasure_id,
        bank=erasure.bank,
        state=erasure.state,
        memory_count=len(erasure.memory_ids),
        requested_at=_timestamp(erasure.requested_at),
        server_done_at=_timestamp(erasure.server_done_at),
        through_seq=erasure.through_seq,
        confirmed_devices=erasure.confirmed,
        unconfirmed_devices=erasure.unconfirmed,
        receipt=receipt,
        stopped_by_hold=erasure.stopped,
        retired_devices=[
            compliance_pb2.RetiredDevice(device_id=each, retired_at=_timestamp(at)) for each, at in erasure.retired
        ],
    )
