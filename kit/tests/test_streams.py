"""Streams: counted until they end, judged message by message, read no faster than served, cut where nobody reads."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from teamlore.auth.v1 import auth_pb2
from teamlore.feed.v1 import feed_pb2
from teamlore.sync.v1 import sync_pb2

from kit import interceptor, limits
from kit.tests.served import BANK, EXCHANGE, HEAD, WATCH, Feed, Served, refused, told


async def test_streams_are_counted_apart_and_until_they_end(served: Served) -> None:
    first, second = served.watch(), served.watch()
    for call in (first, second):
        await call.read()
    reason, seconds = await refused(served.watch().read())
    assert reason == "RATE_LIMITED" and seconds > 0
    await served.head()
    other = served.watch("bob")
    await other.read()
    first.cancel()
    for _ in range(100):
        third = served.watch()
        try:
            await third.read()
            break
        except grpc.aio.AioRpcError:
            await asyncio.sleep(0.02)
    else:
        raise AssertionError("the ended stream still counts")


async def test_a_reader_that_does_not_read_is_cut_and_never_buffered_for(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interceptor, "SLOW_SECONDS", 1.0)
    monkeypatch.setattr(Feed, "flooded", 0)
    stream, quick = served.watch(bank="project:serve-flood"), served.watch("bob")
    await stream.read()
    await quick.read()
    for number in range(50):
        await asyncio.sleep(0.05)
        await served.head(f"caller-{number}")
    # Messages of a megabyte: what the two ends' windows and buffers hold, and then it stood still.
    assert 0 < Feed.flooded <= 16
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        while True:
            await stream.read()
    assert told(caught.value)[0] == "SLOW_CONSUMER"
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    quick.cancel()


def batch(sequence: int, bank: str = "", records: int = 1, text: str = "x") -> sync_pb2.PushStreamRequest:
    records_ = [sync_pb2.Record(id=f"memory-{n}", text=text) for n in range(records)]
    return sync_pb2.PushStreamRequest(bank=bank, sequence=sequence, records=records_)


async def talk(served: Served, *requests: Any, name: str = "alice") -> tuple[list[int], str]:
    """The sequences that were answered, and how the stream ended."""

    async def sent() -> AsyncIterator[Any]:
        for request in requests:
            yield request

    answered: list[int] = []
    call = served.sync.PushStream(sent(), metadata=(("authorization", f"Bearer {name}"),), timeout=10)
    try:
        async for answer in call:
            answered.append(answer.sequence)
    except grpc.aio.AioRpcError as error:
        return answered, told(error)[0]
    return answered, "OK"


async def test_each_message_of_a_stream_is_judged_by_what_the_first_one_named(served: Served) -> None:
    other = "project:serve-2"
    assert await talk(served, batch(1, BANK), batch(2), batch(3, BANK)) == ([1, 2, 3], "OK")
    assert await talk(served, batch(1, BANK), batch(2, other)) == ([1], "FIELD_INVALID")
    assert await talk(served, batch(1, "project:elsewhere"), batch(2, BANK)) == ([], "PERMISSION_DENIED")
    assert await talk(served, batch(1, BANK), batch(2, records=0), batch(3)) == ([1], "FIELD_INVALID")
    assert await talk(served, batch(1, BANK, records=101)) == ([], "FIELD_INVALID")
    assert await talk(served) == ([], "FIELD_INVALID")
    assert await talk(served, batch(1, BANK), name="") == ([], "CREDENTIAL_MISSING")


async def test_a_stream_of_requests_ends_at_the_first_one_after_a_revocation(served: Served) -> None:
    served.push.then = lambda: served.callers.revoked.add("user:alice")
    assert await talk(served, batch(1, BANK), batch(2)) == ([1], "CREDENTIAL_REVOKED")


async def test_each_message_of_a_stream_is_one_call_of_the_budget_and_of_the_audit(served: Served) -> None:
    assert await talk(served, *(batch(n, BANK) for n in range(25)), name="bob") == (
        list(range(20)),
        "RATE_LIMITED",
    )
    assert len(set(served.push.calls)) == 20


async def test_a_drain_ends_a_stream_after_the_answer_to_what_was_stored(served: Served) -> None:
    served.push.then = served.drain.started.set
    assert await talk(served, batch(1, BANK), batch(2)) == ([1], "DRAINING")


async def test_who_sends_nothing_holds_no_stream(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interceptor, "IDLE_SECONDS", 0.2)
    call = served.sync.PushStream(metadata=(("authorization", "Bearer alice"),), timeout=10)
    await call.write(batch(1, BANK))
    assert (await call.read()).sequence == 1
    assert (await refused(call.read()))[0] == "DEADLINE_EXCEEDED"


async def test_a_stream_is_read_no_faster_than_it_is_served(served: Served) -> None:
    served.push.gate.clear()
    call = served.sync.PushStream(metadata=(("authorization", "Bearer alice"),), timeout=10)
    sent = 0

    async def send() -> None:
        nonlocal sent
        for number in range(60):
            await call.write(batch(number, BANK, records=20, text="y" * 50_000))
            sent += 1

    sending = asyncio.create_task(send())
    await asyncio.sleep(1)
    # A megabyte a message: one with the handler, one in the server's window of 1 MiB, and what sockets hold.
    assert sent <= 4 and len(served.push.calls) == 1
    sending.cancel()
    call.cancel()


async def test_who_has_no_credential_takes_no_stream_of_others(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interceptor, "STREAM_BUDGET", 3)
    silent = [served.sync.PushStream(timeout=30) for _ in range(6)]
    reasons = sorted([(await refused(asyncio.wait_for(call.read(), 10)))[0] for call in silent])
    assert reasons == ["CREDENTIAL_MISSING"] * 4 + ["RATE_LIMITED"] * 2
    assert await talk(served, batch(1, BANK)) == ([1], "OK")


async def test_who_holds_streams_uses_up_its_own_before_those_of_all(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interceptor, "STREAM_BUDGET", 3)
    metadata = (("authorization", "Bearer eve"),)
    silent = [served.sync.PushStream(metadata=metadata, timeout=30) for _ in range(6)]
    ended = [asyncio.create_task(call.read()) for call in silent]
    while sum(task.done() for task in ended) < 4:
        await asyncio.sleep(0.02)
    assert {told(task.exception())[0] for task in ended if task.done()} == {"RATE_LIMITED"}  # type: ignore[arg-type]
    assert await talk(served, batch(1, BANK)) == ([1], "OK")
    assert await talk(served, batch(1, BANK), name="eve") == ([], "RATE_LIMITED")
    await served.watch("eve").read()
    for call in silent:
        call.cancel()
    await asyncio.gather(*ended, return_exceptions=True)


async def test_what_nobody_is_known_to_have_sent_is_not_read(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of one request whose message has not come: who has no credential is told so, others are waited for."""
    monkeypatch.setattr(interceptor, "UNARY_BUDGET", 3)
    path, known = "/" + HEAD.replace(".GetHead", "/GetHead"), (("authorization", "Bearer alice"),)

    async def never() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def nothing() -> AsyncIterator[bytes]:
        for each in ():
            yield each

    def asked(requests: AsyncIterator[bytes], metadata: Any) -> Any:
        return served.channel.stream_unary(path)(requests, metadata=metadata, timeout=10)

    assert (await refused(asked(never(), ())))[0] == "CREDENTIAL_MISSING"
    watching = served.channel.stream_stream("/" + WATCH.replace(".WatchChanges", "/WatchChanges"))(never(), timeout=10)
    assert (await refused(watching.read()))[0] == "CREDENTIAL_MISSING"
    waiting = [asyncio.create_task(refused(asked(never(), known))) for _ in range(5)]
    await asyncio.sleep(0.1)
    await served.head("bob")
    assert (await refused(asked(nothing(), known)))[0] == "FIELD_INVALID"
    monkeypatch.setattr(interceptor, "IDLE_SECONDS", 0.2)
    assert (await refused(asked(never(), known)))[0] == "DEADLINE_EXCEEDED"
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_what_one_principal_sends_by_halves_takes_turns_and_no_place_of_others(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of half-sent calls and of streams that send, a principal has a few at a time; another one is not held up."""
    monkeypatch.setattr(limits, "AWAITED_CALLS", 2)
    monkeypatch.setattr(limits, "LINED_UP_CALLS", 3)
    monkeypatch.setattr(limits, "SENDING_STREAMS", 1)
    complete = asyncio.Event()

    async def late() -> AsyncIterator[bytes]:
        await complete.wait()
        yield feed_pb2.GetHeadRequest(bank=BANK).SerializeToString()

    def head(name: str) -> Any:
        metadata = (("authorization", f"Bearer {name}"),)
        path = "/" + HEAD.replace(".GetHead", "/GetHead")
        return served.channel.stream_unary(path)(late(), metadata=metadata, timeout=20)

    halves = [asyncio.ensure_future(head("alice")) for _ in range(2)]
    await asyncio.sleep(0.2)
    waits = asyncio.ensure_future(served.head("alice"))
    await served.head("bob")
    await asyncio.sleep(0.2)
    assert not waits.done()
    assert (await refused(served.head("alice")))[0] == "RATE_LIMITED"
    complete.set()
    await asyncio.gather(waits, *halves)
    await asyncio.gather(*(served.head("alice") for _ in range(2)))

    metadata = (("authorization", "Bearer alice"),)
    silent = served.sync.PushStream(metadata=metadata, timeout=30)
    ends = asyncio.create_task(silent.read())
    await asyncio.sleep(0.2)
    assert await talk(served, batch(1, BANK)) == ([], "RATE_LIMITED")
    assert await talk(served, batch(1, BANK), name="bob") == ([1], "OK")
    await served.watch("alice").read()
    silent.cancel()
    await asyncio.gather(ends, return_exceptions=True)


async def test_the_message_of_a_public_call_is_not_waited_for_as_long(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is known who sends it: an address's few turns are soon free again."""
    monkeypatch.setattr(limits, "AWAITED_CALLS", 2)
    monkeypatch.setattr(interceptor, "PUBLIC_SECONDS", 0.3)

    async def never() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    path = "/" + EXCHANGE.replace(".ExchangeToken", "/ExchangeToken")
    silent = [served.channel.stream_unary(path)(never(), timeout=20) for _ in range(2)]
    ends = [asyncio.create_task(refused(call)) for call in silent]
    await asyncio.sleep(0.1)
    await served.auth.ExchangeToken(auth_pb2.ExchangeTokenRequest(token="tlk_known"), timeout=10)
    assert [reason for reason, _ in await asyncio.gather(*ends)] == ["DEADLINE_EXCEEDED"] * 2
