"""Logs, traces and counters. None of them ever carries text of a memory, a token or a name."""

import json
import logging
import os
import sys
import time
from collections.abc import Iterable
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PARENT, _LONGEST_PARENT = "traceparent", 512
_propagator = TraceContextTextMapPropagator()

tracer = trace.get_tracer("teamlore")
calls = metrics.get_meter("teamlore").create_counter(
    "teamlore.calls", description="Calls by method and answer."
)
keys_missing = metrics.get_meter("teamlore").create_counter(
    "teamlore.keys_missing", description="Alarms: memories whose key should be in the key store and is not."
)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[1] is not None:
            # The type and the place, never the words of an exception: a driver quotes what it was given.
            entry["error"] = type(record.exc_info[1]).__name__
            trace_ = record.exc_info[2]
            while trace_ is not None and trace_.tb_next is not None:
                trace_ = trace_.tb_next
            if trace_ is not None:
                entry["place"] = f"{os.path.basename(trace_.tb_frame.f_code.co_filename)}:{trace_.tb_lineno}"
        return json.dumps(entry)


def parent_of(metadata: Iterable[tuple[str, Any]] | None) -> Context | None:
    """Whose span a call belongs below; None where its metadata does not say. `tracestate` is anybody's text: not read."""
    for key, value in metadata or ():
        # Of a longer one the library writes a line to the log, and anybody may send it.
        if key == _PARENT and isinstance(value, str) and len(value) <= _LONGEST_PARENT:
            return _propagator.extract({_PARENT: value})
    return None


def headers() -> tuple[tuple[str, str], ...]:
    """What a call to a neighbour carries, so that its span lies below this one; nothing outside of a span."""
    if not trace.get_current_span().get_span_context().is_valid:
        return ()
    carried: dict[str, str] = {}
    _propagator.inject(carried)
    return ((_PARENT, carried[_PARENT]),)


def start(service: str) -> None:
    """Logs JSON lines to standard error; exports spans and counters where OTEL_EXPORTER_OTLP_ENDPOINT names a collector."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("grpc").setLevel(logging.ERROR)
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        # Loaded only here: without a collector none of it costs anything.
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        resource = Resource.create({"service.name": f"teamlore-{service}"})
        provider = TracerProvider(resource=resource)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
        metrics.set_meter_provider(MeterProvider((reader,), resource))
