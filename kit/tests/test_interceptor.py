"""What every call goes through: limits before access and validation, budgets, and words for who is refused."""

import asyncio
from typing import Any

import grpc
import protovalidate
import pytest
from teamlore.auth.v1 import access_pb2, auth_pb2
from teamlore.compliance.v1 import compliance_pb2
from teamlore.feed.v1 import feed_pb2
from teamlore.sync.v1 import sync_pb2

from kit.access import BankFacts, Caller
from kit.access_state import AccessState
from kit.tests.served import AUTH, BANK, Served, refused


async def test_calls_are_limited_before_access_is_decided_and_before_validation(served: Served) -> None:
    for _ in range(5):
        await served.head()
    reason, seconds = await refused(served.head())
    assert reason == "RATE_LIMITED" and 0 < seconds <= 12
    assert (await refused(served.head(bank="project:other")))[0] == "RATE_LIMITED"
    too_long = feed_pb2.WatchChangesRequest(bank=BANK, cursor="x" * 5000)
    metadata = (("authorization", "Bearer alice"),)
    assert (await refused(served.feed.WatchChanges(too_long, metadata=metadata).read()))[0] == "FIELD_INVALID"
    await served.head("bob")


async def test_denied_calls_count_against_who_makes_them(served: Served) -> None:
    for _ in range(5):
        assert (await refused(served.head("eve", "project:other")))[0] == "PERMISSION_DENIED"
    assert (await refused(served.head("eve", "project:other")))[0] == "RATE_LIMITED"
    assert (await refused(served.head("eve")))[0] == "RATE_LIMITED"
    await served.head("bob")


async def test_a_limited_caller_is_not_told_what_is_wrong_with_its_request(served: Served) -> None:
    request = feed_pb2.RegisterDeviceRequest(bank=BANK, device_id="!")
    metadata = (("authorization", "Bearer alice"),)
    reasons = ["FIELD_INVALID"]
    while reasons[-1] == "FIELD_INVALID" and len(reasons) < 1000:
        reasons.append((await refused(served.feed.RegisterDevice(request, metadata=metadata)))[0])
    assert reasons[-1] == "RATE_LIMITED" and len(reasons) > 100


async def test_a_refused_caller_makes_nobody_look_through_what_it_sent(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, covered = list[int](), list[str]()
    collect, covers = protovalidate.collect_violations, Caller.covers

    def counting(message: Any, **more: Any) -> Any:
        looked.append(message.ByteSize())
        return collect(message, **more)

    def covering(self: Caller, pattern: str, *more: Any) -> bool:
        covered.append(pattern)
        return covers(self, pattern, *more)

    monkeypatch.setattr(protovalidate, "collect_violations", counting)
    monkeypatch.setattr(Caller, "covers", covering)
    metadata = (("authorization", "Bearer eve"),)
    ids = sync_pb2.ForgetRequest(bank="project:other", memory_ids=["a"] * 20_000)
    assert (await refused(served.sync.Forget(ids, metadata=metadata)))[0] == "PERMISSION_DENIED"
    assert looked == [sync_pb2.ForgetRequest(bank="project:other").ByteSize()]
    ids.bank = "b" * 20_000
    assert (await refused(served.sync.Forget(ids, metadata=metadata)))[0] == "FIELD_INVALID"
    grant = access_pb2.Grant(pattern="*", permissions=["read"] * 20_000)
    token = access_pb2.CreateTokenRequest(principal="user:eve", kind="agent", grants=[grant])
    assert (await refused(served.access.CreateToken(token, metadata=metadata)))[0] == "PERMISSION_DENIED"
    assert covered == ["*"] and max(looked) < 100
    token = access_pb2.CreateTokenRequest(grants=[access_pb2.Grant(pattern="*")] * 20_000)
    assert (await refused(served.access.CreateToken(token, metadata=metadata)))[0] == "FIELD_INVALID"
    assert covered == ["*"] and max(looked) < 100
    token = access_pb2.CreateTokenRequest(grants=[access_pb2.Grant(pattern="no pattern")])
    assert (await refused(served.access.CreateToken(token, metadata=metadata)))[0] == "FIELD_INVALID"


async def test_other_services_are_not_limited(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async def facts(self: AccessState, caller: Caller, bank: str) -> BankFacts | None:
        return None

    monkeypatch.setattr(AccessState, "facts", facts)
    for _ in range(8):
        await served.head("internal")
    held = [served.watch("internal") for _ in range(4)]
    for call in held:
        await call.read()


async def test_calls_without_a_credential_share_a_budget_by_address(served: Served) -> None:
    for _ in range(4):
        await served.auth.GetJwks(auth_pb2.GetJwksRequest())
    reason, seconds = await refused(served.auth.GetJwks(auth_pb2.GetJwksRequest()))
    assert reason == "RATE_LIMITED" and 0 < seconds <= 15


async def test_what_others_send_uses_up_no_good_credential_s_budget(served: Served) -> None:
    def exchange(token: str) -> Any:
        return served.auth.ExchangeToken(auth_pb2.ExchangeTokenRequest(token=token))

    answers = [(await refused(exchange(f"tlk_guess{number}")))[0] for number in range(20)]
    assert answers == ["CREDENTIAL_INVALID"] * 4 + ["RATE_LIMITED"] * 16
    for _ in range(100):
        await exchange("tlk_known")
    assert (await refused(exchange("tlk_known")))[0] == "RATE_LIMITED", "one token has a budget too"
    await served.decisions.stop()
    assert await served.counted("access.denied") == {("ExchangeToken", "", "", "CREDENTIAL_INVALID", "", 20)}


async def test_one_credential_has_one_budget_however_its_bytes_are_written(served: Served) -> None:
    call = served.channel.unary_unary(f"/{AUTH}/ExchangeToken")
    known = auth_pb2.ExchangeTokenRequest(token="tlk_known").SerializeToString()
    other = auth_pb2.ExchangeTokenRequest(token="tlk_other").SerializeToString()
    for number in range(50):
        await call(known + b"\xfa\x3f\x04" + number.to_bytes(4, "big"))  # a field that no message has
        await call(other + known)  # of one field written twice the last counts
    assert (await refused(call(known + b"\xfa\x3f\x01x")))[0] == "RATE_LIMITED"


async def test_calls_with_bad_credentials_count_against_their_address(served: Served) -> None:
    answers = [(await refused(served.head("")))[0] for _ in range(6)]
    assert answers == ["CREDENTIAL_MISSING"] * 4 + ["RATE_LIMITED"] * 2
    await served.head()


async def test_too_many_calls_at_once_are_each_told_why(served: Served) -> None:
    async def call() -> str:
        try:
            await served.head("")
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return "OK"

    answers = await asyncio.gather(*(call() for _ in range(4000)))
    assert set(answers) <= {"UNAUTHENTICATED", "RESOURCE_EXHAUSTED"}


async def test_a_call_of_services_alone_says_so(served: Served) -> None:
    request = compliance_pb2.EraseObjectsRequest(bank=BANK)
    call = served.participant.EraseObjects(request, metadata=(("authorization", "Bearer alice"),))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert caught.value.details() == "only another service of this deployment may call this"
