"""Spans of the hub arrive at a collector with their ids, times, links and processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.telemetry.hub import Hub, HubConfig
from engine.clock import now_ns
from engine.wire.header import new_context
from tests.appliance.telemetry.export.collectors import Answer, HttpCollector, http_collector
from tests.appliance.telemetry.workload import Wire, play_call, play_request, record

pytestmark = pytest.mark.anyio


@pytest.fixture
def collector() -> Iterator[HttpCollector]:
    with http_collector() as server:
        yield server


def arrived_at(collector: HttpCollector) -> dict[str, tuple]:
    """Span and the attributes of its resource, by hex span id."""
    return {
        span.span_id.hex(): (
            span,
            {a.key: a.value.string_value for a in group.resource.attributes},
        )
        for request in collector.received.requests
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    }


def hub_for(collector: HttpCollector, tmp_path: Path) -> Hub:
    return Hub(
        HubConfig(
            trace_db_path=tmp_path / "traces.sqlite",
            otlp_endpoint=collector.endpoint,
            version="1.2.3",
            instance="here",
        )
    )


async def test_every_span_of_a_workload_arrives_as_it_is_stored(
    collector: HttpCollector, tmp_path: Path
):
    hub, wire = hub_for(collector, tmp_path), Wire()
    requests = [record(now_ns()) for _ in range(5)]
    for request in requests:
        play_request(hub, wire, request)
    play_call(hub, wire, "Ping", new_context(), now_ns())
    traces = [await hub.trace(request.request_id) for request in requests]
    await hub.close()

    arrived = arrived_at(collector)
    assert set(collector.received.paths) == {"/v1/traces"}
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
    assert hub.parts.export is not None
    assert hub.parts.export.status().exported == len(arrived)


async def test_a_collector_that_refuses_is_said_once_and_counted(
    collector: HttpCollector, tmp_path: Path
):
    collector.always = Answer(400)
    hub = hub_for(collector, tmp_path)
    play_request(hub, Wire(), record(now_ns()))
    await hub.close()
    hub._tick()
    hub._tick()

    assert hub.parts.export is not None
    status = hub.parts.export.status()
    assert (status.exported, status.failed, status.queued) == (0, 21, 0)
    (event,) = hub.parts.journal.latest(10)
    assert event.kind == "export.failing"
    assert event.text == f"no spans to {collector.endpoint}/v1/traces: it answered 400 Bad Request"
