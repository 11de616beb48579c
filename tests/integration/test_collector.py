"""A real OpenTelemetry collector (rotel) takes what we export, and hands on all of it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from appliance.config.otlp import otlp_options
from appliance.telemetry.export.span_export import SpanExport
from appliance.telemetry.export.start import start_export
from appliance.telemetry.span_data import SpanData
from appliance.telemetry.wall_clock import WallClock
from engine.clock import now_ns
from engine.wire.header import new_context, new_span_id, new_trace_id
from engine.wire.hops import HopLink
from tests.appliance.telemetry.export.collectors import free_port
from tests.integration.appliance_process import wait_until
from tests.integration.otlp_sink import OtlpSink

pytestmark = pytest.mark.process

NUMBER = 700


@contextmanager
def rotel(sink: OtlpSink, http_port: int, grpc_port: int) -> Iterator[None]:
    """Run the collector between two ports and the sink."""
    package = find_spec("rotel")
    assert package is not None
    assert package.origin is not None
    process = subprocess.Popen(
        [
            str(Path(package.origin).parent / "rotel-agent"), "start",
            "--otlp-http-endpoint", f"127.0.0.1:{http_port}",
            "--otlp-grpc-endpoint", f"127.0.0.1:{grpc_port}",
            "--exporter", "otlp", "--otlp-exporter-protocol", "http",
            "--otlp-exporter-endpoint", sink.endpoint,
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def a_workload() -> list[SpanData]:
    """Request spans, messages of a step that link them, failures: all that we export."""
    spans = []
    for index in range(NUMBER):
        at_ns = now_ns()
        spans.append(
            SpanData(
                trace_id=new_trace_id(),
                span_id=new_span_id(),
                parent_id=new_span_id() if index % 3 else None,
                name=f"send {'EngineOutputs' if index % 2 else 'AddRequest'}",
                kind="producer" if index % 2 else "server",
                process=("gateway-0", "e0", "supervisor")[index % 3],
                start_ns=at_ns,
                end_ns=at_ns + 1000 + index,
                attributes={"text": "naïve ☕", "number": index - 5, "share": 0.5, "yes": True},
                error="engine died" if index % 7 == 0 else None,
                links=tuple(HopLink(f"req-{k}", new_context(1)) for k in range(index % 4)),
                flags=index % 2,
            )
        )
    return spans


def facts(span: SpanData, clock: WallClock) -> tuple[Any, ...]:
    return (
        span.trace_id,
        span.parent_id or "",
        span.name,
        (clock.unix_ns(span.start_ns), clock.unix_ns(span.end_ns)),
        tuple(sorted(span.attributes.items())),
        tuple((link.context.trace_id, link.context.span_id) for link in span.links),
        span.error or "",
        span.process,
    )


def value_of(value: AnyValue) -> Any:
    return getattr(value, value.WhichOneof("value"))


def arrived(sink: OtlpSink) -> dict[str, tuple[Any, ...]]:
    return {
        span.span_id.hex(): (
            span.trace_id.hex(),
            span.parent_span_id.hex(),
            span.name,
            (span.start_time_unix_nano, span.end_time_unix_nano),
            tuple(sorted((a.key, value_of(a.value)) for a in span.attributes)),
            tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
            span.status.message,
            resource["quarterdeck.process"],
        )
        for resource, span in list(sink.spans)
    }  # fmt: skip


def settled(export: SpanExport) -> bool:
    return export.exported + export.failed == NUMBER


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_every_span_comes_through_with_ids_parents_links_and_resource(protocol: Any):
    sink, clock = OtlpSink(), WallClock()
    http_port, grpc_port = free_port(), free_port()
    spans = a_workload()
    port = grpc_port if protocol == "grpc" else http_port
    options = otlp_options(f"http://127.0.0.1:{port}", protocol, {})
    export = start_export(options, clock, "1.2.3", "here")
    try:
        with rotel(sink, http_port, grpc_port):
            export.add(spans)  # it is not up yet: the first tries are refused and made again
            wait_until(lambda: settled(export), 25, f"export: {export.status()}")
            assert export.status().failed == 0
            wait_until(lambda: len(sink.spans) >= NUMBER, 15, "spans of the collector")
    finally:
        export.close(1)
        sink.close()

    assert len(sink.spans) == NUMBER
    assert arrived(sink) == {span.span_id: facts(span, clock) for span in spans}
    resources = {tuple(sorted(resource.items())) for resource, _ in sink.spans}
    assert len(resources) == 3
    assert all(dict(resource)["service.name"] == "quarterdeck" for resource in resources)
