"""Our encoding of spans means what the SDK's means, whatever is in the spans."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from appliance.telemetry.export import wire_values
from appliance.telemetry.export.span_encoder import KINDS, SpanEncoder
from appliance.telemetry.message_spans import step_span
from appliance.telemetry.span_data import SpanData
from engine.wire.header import TraceContext, new_context
from engine.wire.hops import HopLink
from tests.appliance.telemetry.export.sdk_spans import SCOPE, resource_of, sdk_request
from tests.appliance.telemetry.workload import step_record

OFFSET_NS = 1_700_000_000_000_000_000
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80)
INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 4096)
VALUES = TEXTS | st.booleans() | INTEGERS | st.floats(allow_nan=False) | st.lists(TEXTS).map(tuple)


def ids(digits: int) -> st.SearchStrategy[str]:
    return st.integers(1, (1 << 4 * digits) - 1).map(lambda number: f"{number:0{digits}x}")


LINKS = st.builds(
    HopLink,
    request_id=TEXTS,
    context=st.builds(TraceContext, trace_id=ids(32), span_id=ids(16), flags=st.integers(0, 255)),
)
SPANS = st.builds(
    SpanData,
    trace_id=ids(32),
    span_id=ids(16),
    parent_id=st.none() | ids(16),
    name=TEXTS.filter(bool),
    kind=st.sampled_from(sorted(KINDS)),
    process=st.sampled_from(["gateway-0", "e0", "supervisor"]),
    start_ns=st.integers(0, 1 << 60),
    end_ns=st.integers(0, 1 << 60),
    attributes=st.dictionaries(KEYS, VALUES, max_size=12),
    error=st.none() | TEXTS.filter(bool),
    links=st.lists(LINKS, max_size=4).map(tuple),
    flags=st.integers(0, 255),
)


def encoder() -> SpanEncoder:
    return SpanEncoder(OFFSET_NS, resource_of, SCOPE)


def decoded(content: bytes) -> ExportTraceServiceRequest:
    return ExportTraceServiceRequest.FromString(content)


@settings(max_examples=200, deadline=None)
@given(st.lists(SPANS, max_size=6, unique_by=lambda span: span.span_id))
def test_it_decodes_to_what_the_sdk_encodes(spans: list[SpanData]):
    assert decoded(encoder().encode(spans)) == sdk_request(spans, OFFSET_NS)


@settings(max_examples=30, deadline=None)
@given(st.lists(SPANS, min_size=1, max_size=40, unique_by=lambda span: span.span_id))
def test_what_was_encoded_before_changes_nothing(spans: list[SpanData]):
    used = encoder()
    for _ in range(3):
        assert decoded(used.encode(spans)) == sdk_request(spans, OFFSET_NS)


@settings(max_examples=30, deadline=None)
@given(st.lists(SPANS, max_size=4), st.lists(SPANS, max_size=4))
def test_two_encodings_in_a_row_are_an_encoding_of_both(first: list, second: list):
    used = encoder()
    both = decoded(used.encode(first) + used.encode(second))

    names = [s.name for g in both.resource_spans for c in g.scope_spans for s in c.spans]
    assert sorted(names) == sorted(span.name for span in first + second)


def a_span(**fields: Any) -> SpanData:
    given = {
        "trace_id": "ab" * 16,
        "span_id": "cd" * 8,
        "parent_id": None,
        "name": "auth",
        "kind": "internal",
        "process": "e0",
        "start_ns": 1,
        "end_ns": 2,
        "attributes": {},
    }
    return SpanData(**given | fields)


def attribute_of(value) -> object:
    request = decoded(encoder().encode([a_span(attributes={"key": value})]))
    (attribute,) = request.resource_spans[0].scope_spans[0].spans[0].attributes
    return getattr(attribute.value, attribute.value.WhichOneof("value"))


def test_what_protobuf_cannot_hold_is_still_told():
    assert attribute_of(1 << 63) == "9223372036854775808"
    assert attribute_of("half a pair: \ud800") == "half a pair: ?"


def test_links_that_were_cut_are_counted_as_back_ends_expect():
    link = HopLink("r", TraceContext("ab" * 16, "cd" * 8, 0))
    step = step_span(step_record(new_context(), 1, 1000), [link] * 130)
    request = decoded(encoder().encode([step]))
    (sent,) = request.resource_spans[0].scope_spans[0].spans

    assert (len(sent.links), sent.dropped_links_count) == (128, 2)


def test_true_and_one_are_not_confused():
    used = encoder()
    spans = [a_span(attributes={"key": value}) for value in (1, True, 1.0, "1", False, 0, 0.0)]
    request = decoded(used.encode(spans) + used.encode(spans))
    kinds = [
        span.attributes[0].value.WhichOneof("value")
        for group in request.resource_spans
        for span in group.scope_spans[0].spans
    ]
    expected = ["int_value", "bool_value", "double_value", "string_value"]
    assert kinds == [*expected, "bool_value", "int_value", "double_value"] * 2


def test_what_is_kept_is_bounded():
    used = encoder()
    for index in range(3 * wire_values.MAX_KEYS):
        attributes = {f"key-{index}": f"value-{index}", "id": f"{index:x}" * 3, f"int-{index}": 1}
        used.encode([a_span(attributes=attributes, name=f"name-{index}", process=f"e{index}")])

    values = used._attributes
    assert len(values._texts) <= wire_values.MAX_KEYS
    assert len(values._int_heads) <= wire_values.MAX_KEYS
    assert len(values._text_heads) <= wire_values.MAX_HEADS
    assert all(len(known) <= wire_values.MAX_TEXTS for known in values._texts.values())
    assert len(used._names) <= 1024
    assert len(used._resources) <= 1024
