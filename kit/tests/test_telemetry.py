"""Counters and spans reach a collector where one is named, and nothing is exported where none is."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from kit import telemetry

PROGRAM = """
from kit import telemetry
telemetry.start("feed")
with telemetry.tracer.start_as_current_span("a call") as span:
    telemetry.calls.add(3, {"method": "m", "answer": "OK"})
    recording = span.is_recording()
import sys
print(any(name.startswith("opentelemetry.exporter") for name in sys.modules), recording)
"""


class Collector(metrics_service_pb2_grpc.MetricsServiceServicer, trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps the names of what it is sent; both services call their method Export."""

    def __init__(self) -> None:
        self.address = ""
        self.names: list[str] = []
        self.services: set[str] = set()

    def Export(self, request: Any, context: Any) -> Any:
        if isinstance(request, trace_service_pb2.ExportTraceServiceRequest):
            for each in request.resource_spans:
                self._from(each.resource)
                self.names += [span.name for scope in each.scope_spans for span in scope.spans]
            return trace_service_pb2.ExportTraceServiceResponse()
        for each in request.resource_metrics:
            self._from(each.resource)
            self.names += [
                f"{metric.name}={point.as_int}"
                for scope in each.scope_metrics
                for metric in scope.metrics
                for point in metric.sum.data_points
            ]
        return metrics_service_pb2.ExportMetricsServiceResponse()

    def _from(self, resource: Any) -> None:
        self.services |= {a.value.string_value for a in resource.attributes if a.key == "service.name"}


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(made, server)
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(made, server)
    made.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield made
    server.stop(None)


@pytest.mark.parametrize("named", [True, False])
def test_what_is_counted_reaches_a_collector_where_one_is_named(collector: Collector, named: bool) -> None:
    env = {"PATH": "/usr/bin:/bin"}
    if named:
        env |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.address}",
            "OTEL_EXPORTER_OTLP_INSECURE": "true",
        }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    if named:
        assert done.stdout == "True True\n"
        assert set(collector.names) == {"a call", "teamlore.calls=3"} and collector.services == {
            "teamlore-feed"
        }
    else:
        assert done.stdout == "False False\n" and collector.names == []


def test_anybody_s_long_traceparent_writes_no_line(caplog: pytest.LogCaptureFixture) -> None:
    good = f"00-{'a' * 32}-{'b' * 16}-01"
    assert telemetry.parent_of((("traceparent", good),)) is not None
    for value in (good + "x" * 1000, "x" * 513, "x" * 8000, "no parent"):
        telemetry.parent_of((("traceparent", value),))
    assert not caplog.records
