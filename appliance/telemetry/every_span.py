"""Builds all spans of a trace store's file: to export everything, and to prove completeness."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from appliance.telemetry.hop_join import Hop
from appliance.telemetry.message_spans import message_spans, step_span
from appliance.telemetry.placement import place
from appliance.telemetry.span_data import SpanData
from appliance.telemetry.spans import request_spans
from appliance.telemetry.trace_queries import Span, read_chunks, read_hops, read_records, read_spans
from engine.wire.hops import HopLink

EVER = Span(0, 1 << 62)


def every_span(path: Path) -> Iterator[SpanData]:
    """Yield all spans that the facts in a file make; times are readings of the run that wrote it.

    A message stands under the phase that it belongs to; those of steps under their step.
    """
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        dispatch_of: dict[str, str] = {}
        for record in read_records(connection):
            built = request_spans(record)
            dispatch_of |= built.dispatch_of
            yield from built.spans
        for hop in read_hops(connection):
            spans = message_spans(hop)
            place(spans, dispatch_of)
            yield from spans
        yield from _of_steps(connection)
        yield from read_spans(connection)
    finally:
        connection.close()


def _of_steps(connection: sqlite3.Connection) -> Iterator[SpanData]:
    links: dict[str, dict[str, HopLink]] = {}
    chunks = list(read_chunks(connection, EVER, set()))
    for hop in (hop for chunk in chunks for hop in chunk.outputs):
        _note(links, hop)
        yield from message_spans(hop)
    for step in (step for chunk in chunks for step in chunk.steps):
        served = links.get(step.trace_id, {})
        own = {link.context.trace_id: link for link in step.links}
        yield step_span(step, tuple({**served, **own}.values()))


def _note(links: dict[str, dict[str, HopLink]], hop: Hop) -> None:
    if hop.sent is not None:
        served = links.setdefault(hop.sent.trace_id, {})
        served |= {link.context.trace_id: link for link in hop.sent.links}
