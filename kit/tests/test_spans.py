"""Spans: one for each call, with the answer and no text, joined across services."""

import asyncio
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from teamlore.feed.v1 import feed_pb2, feed_pb2_grpc

from kit import dialing, telemetry
from kit.tests.served import BANK, CANARY, HEAD, WATCH, Served, refused


class Spans(SpanExporter):
    def __init__(self) -> None:
        self.held: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.held += spans
        return SpanExportResult.SUCCESS


async def test_calls_and_streams_leave_a_span_with_the_answer_and_no_text(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans, provider, answers = Spans(), TracerProvider(), list[tuple[str, str]]()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(telemetry, "tracer", provider.get_tracer("teamlore"))

    class Calls:
        def add(self, count: int, what: dict[str, str]) -> None:
            answers.extend([(what["method"], what["answer"])] * count)

    monkeypatch.setattr(telemetry, "calls", Calls())
    await served.head()
    await refused(served.head("eve", "project:other-name"))
    ended = served.watch(bank="project:serve-ends")
    assert [answer async for answer in ended]
    await refused(served.watch("eve", "project:other-name").read())
    left = served.watch()
    await left.read()
    left.cancel()
    expected = {
        (HEAD, "OK"), (HEAD, "PERMISSION_DENIED"), (WATCH, "OK"), (WATCH, "PERMISSION_DENIED"), (WATCH, "CANCELLED"),
    }  # fmt: skip
    for _ in range(100):
        if len(spans.held) == 5:
            break
        await asyncio.sleep(0.02)
    assert {(span.name, (span.attributes or {}).get("answer")) for span in spans.held} == expected
    assert set(answers) == expected and len(answers) == 5
    for span in spans.held:
        assert (
            not span.events and span.status.description is None and set(span.attributes or {}) == {"answer"}
        )
        assert "other-name" not in str(span.to_json()) and "lack" not in str(span.to_json())


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    held, provider = Spans(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(held))
    monkeypatch.setattr(telemetry, "tracer", provider.get_tracer("teamlore"))
    return held


async def test_a_defects_words_stay_out_of_its_span_and_its_status_is_the_reason(
    served: Served, spans: Spans
) -> None:
    assert (await refused(served.head(bank="project:serve-defect")))[0] == "INTERNAL"
    broken = served.watch(bank="project:serve-defect")
    await broken.read()
    assert (await refused(broken.read()))[0] == "INTERNAL"
    await refused(served.head(bank="project:serve-gone"))
    for _ in range(100):
        if len(spans.held) == 3:
            break
        await asyncio.sleep(0.02)
    for span in spans.held:
        assert not span.events and CANARY not in str(span.to_json())
    assert [span.status.description for span in spans.held] == ["INTERNAL", "INTERNAL", None]
    assert [span.status.is_ok for span in spans.held] == [False, False, True]


async def test_spans_of_services_join(served: Served, spans: Spans) -> None:
    metadata = (("authorization", "Bearer alice"),)
    async with dialing.dial(served.address) as channel:
        stub = feed_pb2_grpc.FeedServiceStub(channel)
        with telemetry.tracer.start_as_current_span("outer") as outer:
            await stub.GetHead(feed_pb2.GetHeadRequest(bank=BANK), metadata=metadata)
            ends = feed_pb2.WatchChangesRequest(bank="project:serve-ends")
            assert len([answer async for answer in stub.WatchChanges(ends, metadata=metadata)]) == 1
            await stub.GetHead(feed_pb2.GetHeadRequest(bank=BANK), metadata=(*metadata, ("tracestate", f"a={CANARY}")))
        await stub.GetHead(feed_pb2.GetHeadRequest(bank=BANK), metadata=metadata)
    await served.feed.GetHead(
        feed_pb2.GetHeadRequest(bank=BANK), metadata=(*metadata, ("traceparent", "no parent"))
    )
    for _ in range(100):
        if len(spans.held) == 6:
            break
        await asyncio.sleep(0.02)
    above = outer.get_span_context()
    parents = [(span.parent.trace_id, span.parent.span_id) if span.parent else None for span in spans.held]
    assert parents == [(above.trace_id, above.span_id)] * 3 + [None] * 3
    assert not any(CANARY in str(span.to_json()) for span in spans.held)
