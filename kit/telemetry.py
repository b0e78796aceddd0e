"""Logs, traces and counters. None of them ever carries text of a memory, a token or a name."""

import json
import logging
import os
import sys
import time

from opentelemetry import metrics, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

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


def start(service: str) -> None:
    """Logs JSON lines to standard error; exports spans where OTEL_EXPORTER_OTLP_ENDPOINT names a collector."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("grpc").setLevel(logging.ERROR)
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        provider = TracerProvider(resource=Resource.create({"service.name": f"teamlore-{service}"}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
