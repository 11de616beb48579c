"""Builds all spans of a trace store's file: to export everything, and to prove completeness."""

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec

from appliance.telemetry.hop_join import Hop
from appliance.telemetry.message_spans import message_spans, step_span
from appliance.telemetry.placement import adopt, place
from appliance.telemetry.records import RequestRecord
from appliance.telemetry.span_data import SpanData
from appliance.telemetry.spans import request_spans
from appliance.telemetry.trace_queries import Span, read_chunks, read_hops, read_spans
from engine.wire.hops import HopLink

EVER = Span(0, 1 << 62)


def every_span(path: Path) -> Iterator[SpanData]:
    """Yield all spans that the facts in a file make; times are readings of the run that wrote it.

    A message stands under the phase that it belongs to; those of steps under their step.
    """
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        yield from _of_requests(connection)
        yield from _of_steps(connection)
        yield from read_spans(connection)
    finally:
        connection.close()


def _of_requests(connection: sqlite3.Connection) -> Iterator[SpanData]:
    dispatch_of: dict[str, str] = {}
    roots: defaultdict[str, list[str]] = defaultdict(list)
    known: set[str] = set()
    for (blob,) in connection.execute("SELECT record FROM requests ORDER BY id"):
        record = msgspec.msgpack.decode(blob, type=RequestRecord)
        built = request_spans(record)
        dispatch_of |= built.dispatch_of
        roots[record.trace_id].append(record.span_id)
        known.update(span.span_id for span in built.spans)
        yield from built.spans
    messages: defaultdict[str, list[SpanData]] = defaultdict(list)
    for hop in read_hops(connection):
        spans = message_spans(hop)
        messages[spans[0].trace_id] += spans
    for trace_id, spans in messages.items():
        own = roots[trace_id]
        place(spans, dispatch_of)
        adopt(spans, known, own[0] if len(own) == 1 else None)
        yield from spans


def _of_steps(connection: sqlite3.Connection) -> Iterator[SpanData]:
    links: dict[str, dict[str, HopLink]] = {}
    chunks = list(read_chunks(connection, EVER, set()))
    known = {step.span_id for chunk in chunks for step in chunk.steps}
    for hop in (hop for chunk in chunks for hop in chunk.outputs):
        _note(links, hop)
        spans = message_spans(hop)
        adopt(spans, known, None)
        yield from spans
    for step in (step for chunk in chunks for step in chunk.steps):
        served = links.get(step.trace_id, {})
        own = {link.context.trace_id: link for link in step.links}
        yield step_span(step, tuple({**served, **own}.values()))


def _note(links: dict[str, dict[str, HopLink]], hop: Hop) -> None:
    if hop.sent is not None:
        served = links.setdefault(hop.sent.trace_id, {})
        served |= {link.context.trace_id: link for link in hop.sent.links}
