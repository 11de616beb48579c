"""Trace context in and out of W3C headers."""

import pytest

from engine.wire.header import (
    TraceContext,
    child_context,
    format_traceparent,
    new_context,
    parse_traceparent,
)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


def test_a_traceparent_survives_the_round_trip():
    header = f"00-{TRACE}-{SPAN}-01"

    context = parse_traceparent(header)

    assert context == TraceContext(TRACE, SPAN, 1)
    assert format_traceparent(context) == header


def test_a_future_version_with_more_fields_is_read():
    assert parse_traceparent(f"01-{TRACE}-{SPAN}-00-what-else") == TraceContext(TRACE, SPAN, 0)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "junk",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
    ],
)
def test_a_malformed_traceparent_is_ignored(value: str | None):
    assert parse_traceparent(value) is None


def test_children_stay_in_the_trace_with_ids_of_their_own():
    parent = new_context(flags=1)

    child = child_context(parent)

    assert (child.trace_id, child.flags) == (parent.trace_id, 1)
    assert child.span_id != parent.span_id
