"""Spans arrive at a collector over OTLP/HTTP with their ids, times, links and processes."""

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from appliance.telemetry.hub import Hub, HubConfig
from appliance.telemetry.otel_export import BATCH, SpanExport, SpanTranslator
from appliance.telemetry.span_data import SpanData
from appliance.telemetry.wall_clock import WallClock
from engine.clock import now_ns
from engine.wire.header import new_context, new_span_id, new_trace_id
from tests.appliance.telemetry.workload import Wire, play_call, play_request, record

pytestmark = pytest.mark.anyio


class Collector(ThreadingHTTPServer):
    """A sink for OTLP/HTTP on a port of its own."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []
        self.refuses = False

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def spans(self) -> dict[str, tuple]:
        """Span and the attributes of its resource, by hex span id."""
        return {
            span.span_id.hex(): (
                span,
                {a.key: a.value.string_value for a in group.resource.attributes},
            )
            for request in self.requests
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        }


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.paths.append(self.path)
        if not self.server.refuses:
            self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(400 if self.server.refuses else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def hub_for(collector: Collector, tmp_path: Path) -> Hub:
    return Hub(
        HubConfig(
            trace_db_path=tmp_path / "traces.sqlite",
            otlp_endpoint=collector.endpoint,
            version="1.2.3",
            instance="here",
        )
    )


async def test_every_span_of_a_workload_arrives_as_it_is_stored(
    collector: Collector, tmp_path: Path
):
    hub, wire = hub_for(collector, tmp_path), Wire()
    requests = [record(now_ns()) for _ in range(5)]
    for request in requests:
        play_request(hub, wire, request)
    play_call(hub, wire, "Ping", new_context(), now_ns())
    traces = [await hub.trace(request.request_id) for request in requests]
    await hub.close()

    arrived = collector.spans
    assert set(collector.paths) == {"/v1/traces"}
    for trace in traces:
        for span in trace.spans:
            sent, resource = arrived[span.span_id]
            assert sent.name == span.name
            assert (sent.start_time_unix_nano, sent.end_time_unix_nano) == (
                span.start_ns,
                span.end_ns,
            )
            assert resource == {
                "service.name": "quarterdeck",
                "service.version": "1.2.3",
                "service.instance.id": f"here/{span.process}",
                "quarterdeck.process": span.process,
            }
            if not span.linked:
                assert sent.trace_id.hex() == trace.request.trace_id
                assert sent.parent_span_id.hex() == (span.parent_id or "")
    sends = [span for span, _ in arrived.values() if span.name.startswith("send ")]
    assert len(sends) == wire.sent.total()
    outputs = [span for span in sends if span.name == "send EngineOutputs"]
    assert all(len(span.links) == 1 for span in outputs)
    steps = {span.span_id for span, _ in arrived.values() if span.name == "engine.step"}
    assert {span.parent_span_id for span in outputs} == steps
    content, _ = await hub.metrics("")
    assert f"quarterdeck_spans_exported_total {float(len(arrived))}".encode() in content


async def test_batches_are_small(collector: Collector, tmp_path: Path):
    hub = hub_for(collector, tmp_path)
    for _ in range(10):
        play_request(hub, Wire(), record(now_ns()))
    await hub.close()

    sizes = [
        sum(len(scope.spans) for group in request.resource_spans for scope in group.scope_spans)
        for request in collector.requests
    ]
    assert sum(sizes) == len(collector.spans) == 10 * (10 + 2 + 3 * 3)
    assert max(sizes) <= BATCH


async def test_a_collector_that_refuses_is_said_once_and_counted(
    collector: Collector, tmp_path: Path
):
    collector.refuses = True
    hub = hub_for(collector, tmp_path)
    play_request(hub, Wire(), record(now_ns()))
    await hub.close()
    hub._tick()
    hub._tick()

    content, _ = await hub.metrics("")
    assert b"quarterdeck_spans_exported_total 0.0" in content
    assert b"quarterdeck_spans_export_failed_total 21.0" in content
    assert [event.kind for event in hub.events(10)] == ["export.failing"]


def a_span() -> SpanData:
    return SpanData(
        trace_id=new_trace_id(),
        span_id=new_span_id(),
        parent_id=None,
        name="auth",
        kind="internal",
        process="gateway-0",
        start_ns=1,
        end_ns=2,
        attributes={},
    )


async def test_a_full_queue_drops_and_counts(collector: Collector):
    collector.refuses = True
    translator = SpanTranslator(WallClock(), "1", "here")
    export = SpanExport(collector.endpoint + "/v1/traces", translator, max_queued=3)
    export.add([a_span() for _ in range(5)])
    export.close(5)

    assert export.endpoint == collector.endpoint + "/v1/traces"
    assert (export.dropped, export.failed) == (2, 3)
