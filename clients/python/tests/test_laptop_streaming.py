"""A first sync through one stream: few batches on their way, cut and gone on with, nothing stored twice or lost."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from fake_sync import run, save
from fake_team import FakeTeam
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from laptop import BANK, memory
from teamlore.sync.v1 import sync_pb2, sync_pb2_grpc
from teamlore_client import _calls, _sync
from teamlore_client._address import parse_address
from teamlore_client._errors import AnswerWrong, Refused, ServerUnreachable
from teamlore_client._laptop import Laptop
from teamlore_client._memory import Memory
from teamlore_client._rpc import TeamClient
from teamlore_client._streaming import ON_THE_WAY
from test_laptop_rpc import info


class Sync(sync_pb2_grpc.SyncServiceServicer):
    """Stores by id; ends a stream after each of the counts in `cuts` with the refusal that stands beside it."""

    def __init__(self, *cuts: tuple[int, grpc.StatusCode, str]) -> None:
        self.cuts, self.streams = list(cuts), 0
        self.stored: dict[str, int] = {}
        self.skip = 0
        self.lock = threading.Lock()

    def PushStream(self, requests: Any, context: Any) -> Iterator[sync_pb2.PushStreamResponse]:
        self.streams += 1
        after, code, reason = self.cuts.pop(0) if self.cuts else (-1, grpc.StatusCode.OK, "")
        for number, request in enumerate(requests):
            results = []
            for record in request.records:
                status = "unchanged" if record.id in self.stored else "stored"
                self.stored[record.id] = self.stored.get(record.id, 0) + 1
                results.append(sync_pb2.PushResult(id=record.id, status=status))
            if number == after:  # committed, and its answer lost
                retry = error_details_pb2.RetryInfo()
                retry.retry_delay.FromMilliseconds(50)
                status_ = status_pb2.Status(code=code.value[0], message=reason)
                for detail in (info(reason), retry):
                    packed = any_pb2.Any()
                    packed.Pack(detail)
                    status_.details.append(packed)
                context.set_trailing_metadata((("grpc-status-details-bin", status_.SerializeToString()),))
                context.abort(code, reason)
            yield sync_pb2.PushStreamResponse(sequence=request.sequence + self.skip, results=results)


@contextmanager
def served(sync: Sync) -> Iterator[TeamClient]:
    server = grpc.server(ThreadPoolExecutor(2))
    sync_pb2_grpc.add_SyncServiceServicer_to_server(sync, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with TeamClient(parse_address(f"http://127.0.0.1:{port}"), "tlk_secret") as client:
            yield client
    finally:
        server.stop(None)


class Batches:
    """Makes batches when asked for them, and counts how many were out at most."""

    def __init__(self, batches: int, size: int) -> None:
        self.left, self.size, self.out, self.most = batches, size, 0, 0

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> Sequence[Memory]:
        if not self.left:
            raise StopIteration
        self.left -= 1
        self.out += 1
        self.most = max(self.most, self.out)
        return [memory(f"m{self.left}-{n}") for n in range(self.size)]


def test_twenty_thousand_records_are_never_in_memory_together() -> None:
    sync, batches, statuses = Sync(), Batches(200, 100), 0
    with served(sync) as client:
        for batch, answers in client.push_stream(BANK, batches):
            batches.out -= 1
            assert [each.id for each in answers] == [each.id for each in batch]
            statuses += sum(each.status == "stored" for each in answers)
    assert statuses == len(sync.stored) == 20_000
    assert batches.most == ON_THE_WAY and sync.streams == 1


def test_a_stream_that_was_cut_goes_on_at_the_first_batch_without_an_answer() -> None:
    away, busy = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED
    sync = Sync((3, away, "DRAINING"), (0, away, "DRAINING"), (2, busy, "RATE_LIMITED"), (5, away, ""))
    seen: list[tuple[str, str]] = []
    with served(sync) as client:
        for batch, answers in client.push_stream(BANK, Batches(30, 2)):
            assert [each.id for each in answers] == [each.id for each in batch]
            seen += [(each.id, each.status) for each in answers]
    assert len(seen) == len({id_ for id_, _ in seen}) == len(sync.stored) == 60
    # The batch whose answer was lost was sent again.
    assert sync.streams == 5 and [status for _, status in seen].count("unchanged") >= 6


def test_other_refusals_and_a_server_that_stays_away_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_calls, "RETRY_SECONDS", 0.5)
    with served(Sync((2, grpc.StatusCode.PERMISSION_DENIED, "ACCESS_REVOKED"))) as client:
        with pytest.raises(Refused) as caught:
            list(client.push_stream(BANK, Batches(9, 1)))
        assert caught.value.reason == "ACCESS_REVOKED"
    with TeamClient(parse_address("http://127.0.0.1:9"), "t") as client, pytest.raises(ServerUnreachable):
        list(client.push_stream(BANK, Batches(9, 1)))


def test_answers_out_of_order_are_told_apart() -> None:
    sync = Sync()
    sync.skip = 1
    with served(sync) as client, pytest.raises(AnswerWrong):
        list(client.push_stream(BANK, Batches(9, 1)))


@pytest.mark.parametrize(("count", "calls"), [(10, 0), (11, 1)])
def test_a_long_queue_goes_through_a_stream(
    bob: Laptop, team: FakeTeam, monkeypatch: pytest.MonkeyPatch, count: int, calls: int
) -> None:
    monkeypatch.setattr(_sync, "STREAM_FROM", 10)
    saved = [save(bob, f"m{number}", number).id for number in range(count)]
    assert run(bob, team).pushed["stored"] == count
    assert team.calls.count("push_stream") == calls
    assert [id_ for ids in team.pushes for id_ in ids] == saved
    assert run(bob, team).pushed["stored"] == 0
