"""An index that is stopped, hangs or is merely slow, and how long a push waits for it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from teamlore.index.v1 import index_pb2, index_pb2_grpc

from services.sync import neighbours
from services.sync.neighbours import MOMENT, PAUSE, TIMEOUT, Breaker, IndexClient
from services.sync.records import Draft


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_after_a_timeout_nobody_waits_and_one_call_each_pause_asks() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    assert breaker.patience() == TIMEOUT
    clock.now += TIMEOUT
    breaker.timed_out(since=0.0)
    assert [breaker.patience() for _ in range(3)] == [0, 0, 0]
    for _ in range(3):
        clock.now += PAUSE
        assert [breaker.patience() for _ in range(3)] == [MOMENT, 0, 0]
        breaker.timed_out(since=clock.now)  # of a push that began before, or of a question
    breaker.heard()
    assert breaker.patience() == TIMEOUT
    breaker.timed_out(since=0.0)  # a late word of what was asked before it answered
    assert breaker.patience() == TIMEOUT


Spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.booleans()), max_size=12)


@given(spans=Spans)
def test_it_opens_only_at_a_timeout_during_which_nobody_was_answered(
    spans: list[tuple[int, int, bool]],
) -> None:
    """Calls by start and by how long after it they were answered, or not: then they end after TIMEOUT."""
    events: list[tuple[float, float | None]] = []
    for start, after, answered in spans:
        ends = start + (min(after, TIMEOUT) if answered else TIMEOUT)
        events.append((ends, None if answered else float(start)))
    clock, open_, heard = Clock(), False, -1.0
    breaker = Breaker(clock)
    for ends, since in sorted(events, key=lambda event: event[0]):
        clock.now = ends
        if since is None:
            breaker.heard()
            open_, heard = False, ends
        else:
            breaker.timed_out(since)
            open_ = open_ or heard < since
        assert (breaker.patience() < TIMEOUT) == open_


@dataclass
class Server(index_pb2_grpc.IndexServiceServicer):
    """Answers what the test lets it, over a real connection."""

    calls: int = 0
    freed: asyncio.Event = field(default_factory=asyncio.Event)

    async def FindNearDuplicates(
        self, request: index_pb2.FindNearDuplicatesRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> index_pb2.FindNearDuplicatesResponse:
        self.calls += 1
        text = request.candidates[0].text
        if text == "full":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "")
        if text == "waits":
            await self.freed.wait()
        return index_pb2.FindNearDuplicatesResponse()


@pytest.fixture
async def index(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Server, IndexClient, Clock]]:
    monkeypatch.setattr(neighbours, "TIMEOUT", 0.3)
    monkeypatch.setattr(neighbours, "MOMENT", 0.1)
    server, servicer, clock = grpc.aio.server(), Server(), Clock()
    index_pb2_grpc.add_IndexServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = IndexClient(f"127.0.0.1:{port}", "", Breaker(clock))
    yield servicer, client, clock
    await client.close()
    await server.stop(None)


async def ask(client: IndexClient, text: str) -> bool:
    """Whether the check was made."""
    return await client.find("project:b", [Draft("draft-001", text, b"", "", None)], 0.95) is not None


async def test_a_hanging_index_is_waited_for_once_and_trusted_again_when_it_answers(
    index: tuple[Server, IndexClient, Clock],
) -> None:
    server, client, clock = index
    assert await ask(client, "one")
    clock.now = 1.0
    assert not await ask(client, "waits")
    assert not any([await ask(client, "two") for _ in range(5)])
    assert server.calls == 2  # nobody asked, so nobody waited
    clock.now += PAUSE
    # It asks and does not wait for long; its late answer is heard all the same.
    assert not await ask(client, "waits")
    assert server.calls == 3
    server.freed.set()
    async with asyncio.timeout(10):
        while not await ask(client, "three"):
            await asyncio.sleep(0.01)
    assert server.calls == 4
    clock.now += 1
    server.freed.clear()
    assert not await ask(client, "waits")
    clock.now += PAUSE
    assert await ask(client, "four")  # what is answered within the moment is used
    assert await ask(client, "five")


@pytest.mark.parametrize("other", ["one", "full"])
async def test_a_slow_index_that_answers_others_meanwhile_is_asked_on(
    index: tuple[Server, IndexClient, Clock], other: str
) -> None:
    server, client, clock = index
    clock.now = 1.0
    slow = asyncio.create_task(ask(client, "waits"))
    while not server.calls:
        await asyncio.sleep(0)
    clock.now = 2.0
    assert await ask(client, other) == (other == "one")
    assert not await slow
    assert await ask(client, "two")


async def test_what_nobody_waits_for_ends_with_the_client(index: tuple[Server, IndexClient, Clock]) -> None:
    _, client, clock = index
    assert not await ask(client, "waits")
    clock.now += PAUSE
    assert not await ask(client, "waits")
    await client.close()
    assert not [task for task in asyncio.all_tasks() if "_ask" in repr(task.get_coro())]
