"""Other shapes of a trace: each is checked by a reader that is not ours."""

import itertools
import json

import jsonschema
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from appliance.supervisor.admin.schemas import Span
from appliance.trace_formats.chrome import chrome_trace
from appliance.trace_formats.critical_path import critical_path
from appliance.trace_formats.otlp_json import otlp_json
from tests.appliance.trace_formats.samples import BASE_NS, MS, TRACE_ID, sample_trace, span

CHROME_SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "traceEvents": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["ph", "pid", "tid", "name"],
                "properties": {
                    "ph": {"enum": ["X", "M", "s", "f"]},
                    "pid": {"type": "integer"},
                    "tid": {"type": "integer"},
                    "ts": {"type": "number", "minimum": 0},
                    "dur": {"type": "number", "minimum": 0},
                },
            },
        },
    },
}


def names(spans: list[Span]) -> list[str]:
    return [
        f"{part.span.name} {(part.end_ns - part.start_ns) // MS}" for part in critical_path(spans)
    ]


def test_the_critical_path_tiles_the_request():
    trace = sample_trace()

    path = critical_path(trace.spans)

    assert path[0].start_ns == trace.spans[0].start_ns
    assert path[-1].end_ns == trace.spans[0].end_ns
    for left, right in itertools.pairwise(path):
        assert left.end_ns == right.start_ns
    assert "queue 30" in names(trace.spans)
    assert "process AddRequest 1" in names(trace.spans)


def test_of_two_that_ran_together_the_one_that_ended_last_is_critical():
    spans = [
        span(1, "root", 0, 100, None),
        span(2, "fast", 0, 40, 1),
        span(3, "slow", 10, 90, 1),
    ]

    assert names(spans) == ["fast 10", "slow 80", "root 10"]


def test_children_that_stick_out_of_their_parent_are_cut():
    spans = [span(1, "root", 0, 10, None), span(2, "late", 5, 20, 1), span(3, "early", -5, 3, 1)]

    assert names(spans) == ["early 3", "root 2", "late 5"]


def test_a_trace_without_spans_has_no_path():
    assert critical_path([]) == []


def test_otlp_json_is_what_opentelemetry_reads():
    trace = sample_trace()

    request = json_format.ParseDict(_hex_to_base64(otlp_json(trace)), ExportTraceServiceRequest())

    spans = [
        one
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for one in scope.spans
    ]
    assert len(spans) == len(trace.spans)
    assert {one.trace_id.hex() for one in spans} == {TRACE_ID}
    by_id = {one.span_id.hex(): one for one in spans}
    for ours in trace.spans:
        theirs = by_id[ours.span_id]
        assert theirs.name == ours.name
        assert theirs.start_time_unix_nano == ours.start_ns
        assert theirs.end_time_unix_nano == ours.end_ns
        assert theirs.parent_span_id.hex() == (ours.parent_id or "")
        assert theirs.SpanKind.Name(theirs.kind) == f"SPAN_KIND_{ours.kind.upper()}"
    root = {one.key: one.value for one in by_id[f"{1:016x}"].attributes}
    assert root["http.response.status_code"].int_value == 200
    assert root["quarterdeck.stream"].bool_value is True
    processes = [
        {one.key: one.value.string_value for one in resource.resource.attributes}
        for resource in request.resource_spans
    ]
    assert {found["quarterdeck.process"] for found in processes} == {"gateway-0", "e0"}


def _hex_to_base64(content: dict) -> dict:
    """OTLP's JSON has ids in hex where protobuf's has base64: the one difference that counts."""
    import base64

    content = json.loads(json.dumps(content))
    for resource in content["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for one in scope["spans"]:
                for key in ("traceId", "spanId", "parentSpanId"):
                    if key in one:
                        one[key] = base64.b64encode(bytes.fromhex(one[key])).decode()
    return content


def test_chrome_events_are_valid_and_nest_on_every_thread():
    trace = sample_trace()

    content = json.loads(json.dumps(chrome_trace(trace)))

    jsonschema.validate(content, CHROME_SCHEMA)
    complete = [event for event in content["traceEvents"] if event["ph"] == "X"]
    assert len(complete) == len(trace.spans)
    for _, events in itertools.groupby(sorted(complete, key=_thread), key=_thread):
        open_ends: list[float] = []
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            while open_ends and open_ends[-1] <= event["ts"]:
                open_ends.pop()
            end = event["ts"] + event["dur"]
            assert not open_ends or end <= open_ends[-1]
            open_ends.append(end)
    starts = {event["id"] for event in content["traceEvents"] if event["ph"] == "s"}
    ends = {event["id"] for event in content["traceEvents"] if event["ph"] == "f"}
    assert starts == ends == {f"{7:016x}", f"{12:016x}"}
    assert content["otherData"]["start_unix_ns"] == str(BASE_NS)


def _thread(event: dict) -> tuple[int, int]:
    return event["pid"], event["tid"]


def test_a_trace_without_spans_is_an_empty_file():
    empty = sample_trace(spans=[])

    assert chrome_trace(empty)["traceEvents"] == []
    assert otlp_json(empty) == {"resourceSpans": []}
