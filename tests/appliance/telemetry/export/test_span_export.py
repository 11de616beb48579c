"""Spans reach a collector that works; one that does not is seen, never felt."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from appliance.config.otlp import otlp_options
from appliance.telemetry.export.span_export import ExportPace, SpanExport
from appliance.telemetry.export.start import start_export
from appliance.telemetry.span_data import SpanData
from appliance.telemetry.wall_clock import WallClock
from engine.wire.header import new_span_id, new_trace_id
from tests.appliance.telemetry.export.collectors import (
    Answer,
    free_port,
    grpc_collector,
    http_collector,
    partial_success,
    silent_listener,
)

QUICK = ExportPace(gather_s=0.02, first_delay_s=0.02, max_delay_s=0.1, hold_s=20)
HASTY = ExportPace(gather_s=0.02, first_delay_s=0.02, max_delay_s=0.1, hold_s=0.2)
SECRET = "tok-CANARY-77"
ENV = {"OTEL_EXPORTER_OTLP_TIMEOUT": "300"}


def spans(number: int, process: str = "e0", **attributes: Any) -> list[SpanData]:
    return [
        SpanData(
            trace_id=new_trace_id(),
            span_id=new_span_id(),
            parent_id=new_span_id(),
            name="engine.step",
            kind="internal",
            process=process,
            start_ns=1,
            end_ns=2,
            attributes=attributes,
        )
        for _ in range(number)
    ]


@contextlib.contextmanager
def exporting(
    endpoint: str, protocol: Any = "http/protobuf", pace: ExportPace = QUICK, **env: str
) -> Iterator[SpanExport]:
    options = otlp_options(endpoint, protocol, ENV | env)
    export = start_export(options, WallClock(), "1.2.3", "here", pace)
    try:
        yield export
    finally:
        export.close(0.1)


def wait_for(claim: Callable[[], Any], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.005)


def settled(export: SpanExport) -> bool:
    return export.queued == 0


def balance(export: SpanExport) -> int:
    status = export.status()
    return status.exported + status.failed + status.dropped + status.queued


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_spans_arrive_over_http(compression: str):
    with (
        http_collector() as collector,
        exporting(collector.endpoint, OTEL_EXPORTER_OTLP_COMPRESSION=compression) as export,
    ):
        sent = spans(70, "gateway-0", tokens=3) + spans(5, "e0")
        export.add(sent)
        wait_for(lambda: settled(export))

        received = collector.received
        assert {span.span_id.hex() for span in received.spans} == {span.span_id for span in sent}
        assert received.paths == ["/v1/traces"]
        assert received.headers[0]["content-type"] == "application/x-protobuf"
        assert received.headers[0].get("content-encoding", "none") == compression
        resources = {
            tuple((a.key, a.value.string_value) for a in group.resource.attributes)
            for group in received.requests[0].resource_spans
        }
        assert resources == {
            (
                ("service.name", "quarterdeck"),
                ("service.version", "1.2.3"),
                ("service.instance.id", f"here/{process}"),
                ("quarterdeck.process", process),
            )
            for process in ("gateway-0", "e0")
        }
        status = export.status()
        assert (status.state, status.exported, status.failed, status.last_error) == (
            "works",
            75,
            0,
            None,
        )


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_spans_arrive_over_grpc(compression: str):
    with (
        grpc_collector() as collector,
        exporting(
            collector.endpoint,
            "grpc",
            OTEL_EXPORTER_OTLP_COMPRESSION=compression,
            OTEL_EXPORTER_OTLP_HEADERS=f"x-team=a%20b,authorization=Bearer {SECRET}",
        ) as export,
    ):
        sent = spans(70)
        export.add(sent)
        wait_for(lambda: settled(export))

        received = collector.received
        assert {span.span_id.hex() for span in received.spans} == {span.span_id for span in sent}
        assert received.headers[0]["x-team"] == "a b"
        assert received.headers[0]["authorization"] == f"Bearer {SECRET}"
        assert (export.status().protocol, export.status().exported) == ("grpc", 70)


def test_credentials_and_headers_are_sent_and_never_shown():
    with (
        http_collector() as collector,
        exporting(
            collector.endpoint.replace("//", f"//me:{SECRET}@"),
            OTEL_EXPORTER_OTLP_HEADERS=f"api-key={SECRET}-2",
        ) as export,
    ):
        body = f"no, {SECRET}-2 is not welcome".encode()
        collector.always = Answer(403, {"content-type": "text/plain"}, body)
        export.add(spans(1))
        wait_for(lambda: export.failing)

        headers = collector.received.headers[0]
        assert headers["authorization"].startswith("Basic ")
        assert headers["api-key"] == f"{SECRET}-2"
        assert export.status().last_error == (
            "it answered 403 Forbidden: no, (redacted) is not welcome"
        )
        assert SECRET not in str(export.status())


FINAL = (400, 401, 404, 413, 500, 301)
FOR_NOW = (429, 502, 503, 504)


@pytest.mark.parametrize("status", FINAL + FOR_NOW)
def test_only_what_is_refused_for_now_is_sent_again(status: int):
    again = status in FOR_NOW
    with http_collector() as collector, exporting(collector.endpoint) as export:
        collector.answers = [Answer(status), Answer(status)]
        export.add(spans(3))
        wait_for(lambda: settled(export))

        requests = collector.received.requests
        assert len(requests) == (3 if again else 1)
        assert all(request == requests[0] for request in requests)
        assert (export.exported, export.failed) == ((3, 0) if again else (0, 3))
        assert export.failing is not again
        assert balance(export) == 3


def test_a_collector_that_asks_for_patience_gets_it_and_is_not_said_to_fail():
    with http_collector() as collector, exporting(collector.endpoint) as export:
        collector.answers = [Answer(429, {"retry-after": "1"})]
        begun_s = time.monotonic()
        export.add(spans(1))
        wait_for(lambda: len(collector.received.requests) == 1)
        assert not export.failing
        wait_for(lambda: settled(export))

        assert 1.0 <= time.monotonic() - begun_s < 3
        assert (export.exported, export.failing) == (1, False)


def test_one_that_is_busy_all_the_time_fails():
    with http_collector() as collector, exporting(collector.endpoint, pace=HASTY) as export:
        collector.always = Answer(503, {"retry-after": "0"})
        export.add(spans(2))
        wait_for(lambda: export.failing and settled(export))

        assert export.failed == 2
        assert export.status().state == "failing"
        assert export.status().last_error == "it answered 503 Service Unavailable"


def test_a_part_that_it_would_not_have_is_counted_and_not_sent_again():
    with http_collector() as collector, exporting(collector.endpoint) as export:
        answer = partial_success(2, "two spans are too old").SerializeToString()
        collector.answers = [Answer(200, {"content-type": "application/x-protobuf"}, answer)]
        export.add(spans(5))
        wait_for(lambda: settled(export))

        assert (export.exported, export.failed, export.failing) == (3, 2, False)
        assert export.status().last_error == "two spans are too old"
        assert len(collector.received.requests) == 1


def test_a_connection_that_is_cut_costs_another_try():
    with http_collector() as collector, exporting(collector.endpoint) as export:
        collector.answers = [Answer(cut=True)] * 3
        export.add(spans(1))
        wait_for(lambda: export.failing)
        assert export.status().last_error == "it cut the connection"
        wait_for(lambda: settled(export))

        assert (export.exported, export.failed, export.failing) == (1, 0, False)
        assert export.status().last_error is None


@pytest.mark.parametrize(
    ("endpoint", "protocol", "reason"),
    [
        ("http://127.0.0.1:{port}", "http/protobuf", "no connection: Connection refused"),
        ("http://nowhere.invalid:4318", "http/protobuf", "its name cannot be resolved"),
        ("http://127.0.0.1:{port}", "grpc", "UNAVAILABLE: "),
        ("http://nowhere.invalid:4317", "grpc", "UNAVAILABLE: "),
    ],
)
def test_a_collector_that_is_not_there_is_said_and_costs_spans_alone(
    endpoint: str, protocol: str, reason: str
):
    with exporting(endpoint.format(port=free_port()), protocol, HASTY) as export:
        export.add(spans(4))
        wait_for(lambda: export.failing and settled(export))

        status = export.status()
        assert (status.state, status.failed, status.exported) == ("failing", 4, 0)
        assert status.last_error is not None
        assert status.last_error.startswith(reason)


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_one_that_accepts_and_never_answers_is_never_felt(protocol: str):
    pace = ExportPace(max_queued=100, gather_s=0.02, first_delay_s=0.02, hold_s=0.2)
    with silent_listener() as port, exporting(f"http://127.0.0.1:{port}", protocol, pace) as export:
        longest_s = 0.0
        for _ in range(200):
            batch = spans(20)
            begun_s = time.perf_counter()
            export.add(batch)
            longest_s = max(longest_s, time.perf_counter() - begun_s)
        wait_for(lambda: export.failing)

        assert longest_s < 0.05
        assert export.queued <= 100 + pace.max_batch
        assert export.dropped > 0
        assert balance(export) == 4000
        begun_s = time.monotonic()
    assert time.monotonic() - begun_s < 2


def test_one_that_feeds_a_byte_now_and_then_is_seen():
    with http_collector() as collector, exporting(collector.endpoint) as export:
        collector.always = Answer(drip_s=0.1)
        export.add(spans(1))
        wait_for(lambda: export.failing)

        assert export.status().last_error == "it keeps a request without an answer"
        assert export.queued == 1


def test_it_recovers_after_an_outage():
    with http_collector() as collector, exporting(collector.endpoint) as export:
        collector.always = Answer(503)
        export.add(spans(300))
        wait_for(lambda: export.failing)
        collector.always = None
        wait_for(lambda: settled(export))

        assert (export.exported, export.failed, export.failing) == (300, 0, False)
        assert export.status().last_error is None


def abort(code: grpc.StatusCode, details: str, after_s: float | None = None) -> Callable[..., None]:
    def reply(context: grpc.ServicerContext) -> None:
        if after_s is not None:
            info, detail = RetryInfo(retry_delay=Duration(nanos=int(after_s * 1e9))), AnyMessage()
            detail.Pack(info)
            status = Status(code=code.value[0], message=details, details=[detail])
            metadata = (("grpc-status-details-bin", status.SerializeToString()),)
            context.set_trailing_metadata(metadata)
        context.abort(code, details)

    return reply


@pytest.mark.parametrize(
    ("code", "after_s", "again"),
    [
        (grpc.StatusCode.UNAVAILABLE, None, True),
        (grpc.StatusCode.ABORTED, None, True),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 0.05, True),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, None, False),
        (grpc.StatusCode.INVALID_ARGUMENT, None, False),
        (grpc.StatusCode.UNIMPLEMENTED, None, False),
    ],
)
def test_grpc_says_by_its_code_what_may_be_sent_again(
    code: grpc.StatusCode, after_s: float | None, again: bool
):
    with grpc_collector() as collector, exporting(collector.endpoint, "grpc", HASTY) as export:
        collector.reply = abort(code, "not now", after_s)
        export.add(spans(2))
        wait_for(lambda: settled(export))

        assert (len(collector.received.requests) > 1) is again
        assert (export.failed, export.failing) == (2, True)
        assert export.status().last_error == f"{code.name}: not now"

        collector.reply = lambda context: partial_success(1, "one too many")
        export.add(spans(2))
        wait_for(lambda: settled(export))
        assert (export.exported, export.failed, export.failing) == (1, 3, False)


def test_at_a_low_rate_a_span_leaves_within_a_second_and_at_a_high_one_batches_grow():
    with http_collector() as collector, exporting(collector.endpoint, pace=ExportPace()) as export:
        begun_s = time.monotonic()
        export.add(spans(1))
        wait_for(lambda: collector.received.requests)
        assert time.monotonic() - begun_s < 1.0
        export.add(spans(600))
        wait_for(lambda: settled(export))

        assert collector.received.sizes == [1, 512, 88]


def test_a_batch_of_long_texts_is_short():
    with http_collector() as collector, exporting(collector.endpoint) as export:
        export.add(spans(256, text="x" * 30_000))
        wait_for(lambda: settled(export))

        assert len(collector.received.spans) == 256
        assert max(request.ByteSize() for request in collector.received.requests) < 4 << 20


def test_export_can_be_switched_off_and_on():
    with http_collector() as collector, exporting(collector.endpoint) as export:
        export.set_enabled(False)
        export.add(spans(5))
        assert (export.queued, export.status().state) == (0, "idle")
        export.set_enabled(True)
        export.add(spans(2))
        wait_for(lambda: settled(export))

        assert len(collector.received.spans) == export.exported == 2
        assert balance(export) == 2


def test_switched_off_it_gives_a_failing_collector_up():
    with http_collector() as collector, exporting(collector.endpoint) as export:
        collector.always = Answer(503)
        export.add(spans(1000))
        wait_for(lambda: export.failing)
        export.set_enabled(False)
        wait_for(lambda: settled(export))

        assert (export.failed, export.failing, export.status().state) == (1000, False, "idle")


def test_a_span_that_cannot_be_encoded_costs_itself_alone(caplog: pytest.LogCaptureFixture):
    with http_collector() as collector, exporting(collector.endpoint) as export:
        good, bad = spans(10), spans(1)[0]
        bad.trace_id = "no hex"
        export.add([*good[:5], bad, *good[5:], bad])
        wait_for(lambda: settled(export))

        assert (export.exported, export.failed, export.failing) == (10, 2, False)
        assert len(collector.received.spans) == 10
    assert len([r for r in caplog.records if "could not be encoded" in r.message]) == 1


def test_the_end_sends_what_is_queued():
    with http_collector() as collector:
        options = otlp_options(collector.endpoint, "http/protobuf", {})
        export = start_export(options, WallClock(), "1", "here")
        export.add(spans(300))
        export.close(5)

        assert len(collector.received.spans) == 300
        assert "span-export" not in {thread.name for thread in threading.enumerate()}
