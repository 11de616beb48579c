"""Builds the tree of one request from stored facts, as the trace API answers it. Pure.

The trace may hold other requests (the caller's trace goes on over several): only what hangs below
this request's server span belongs to it. Messages of steps stand in the steps' own traces; in this
view each finds its place under the phase of the request that it served.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from appliance.supervisor.admin.schemas import Span, Trace
from appliance.telemetry import names
from appliance.telemetry.hop_join import Hop
from appliance.telemetry.message_spans import message_spans
from appliance.telemetry.placement import claim
from appliance.telemetry.request_facts import ended_row
from appliance.telemetry.request_ids import engine_suffix
from appliance.telemetry.span_data import SpanData
from appliance.telemetry.spans import request_spans
from appliance.telemetry.trace_facts import StoredTrace, serves
from appliance.telemetry.wall_clock import WallClock

ENGINE_PHASES = ("prefill", "decode")


@dataclass(slots=True)
class _Place:
    """A phase under which linked messages are shown."""

    span: Span
    suffix: str


def trace_view(stored: StoredTrace, *, all_joined: bool, content: bool = False) -> Trace:
    """Build the answer.

    Args:
        stored: All facts about the request.
        all_joined: No half of the request's messages is still awaited.
        content: Show what was recorded of prompts and outputs.
    """
    clock = WallClock(stored.request.offset_ns)
    built = request_spans(stored.record)
    messages = [span for hop in stored.hops for span in message_spans(hop)]
    mine, _ = claim(built, [*messages, *stored.spans], is_alone=stored.is_alone)
    root_id = built.spans[0].span_id
    spans = [shown_span(span, clock) for span in (*built.spans, *mine)]
    _hide(spans, content=content)
    linked = _linked(_in_order(root_id, spans), stored.outputs, stored.request.key, clock)
    whole = _in_order(root_id, [*spans, *linked])
    return Trace(
        request=ended_row(stored.record, clock),
        headline=stored.request.headline,
        spans=whole,
        complete=all_joined and not stored.lost_records and all_messages_arrived(whole),
    )


def shown_span(span: SpanData, clock: WallClock) -> Span:
    """Return a span as the API shows it."""
    return Span(
        name=span.name,
        kind=span.kind,
        process=span.process,
        start_ns=clock.unix_ns(span.start_ns),
        end_ns=clock.unix_ns(span.end_ns),
        span_id=span.span_id,
        parent_id=span.parent_id,
        attributes={
            name: list(value) if isinstance(value, tuple) else value
            for name, value in span.attributes.items()
        },
        status="unset" if span.error is None else "error",
    )


def all_messages_arrived(spans: Iterable[Span]) -> bool:
    """Whether every send has its process span."""
    sends = {span.span_id for span in spans if span.kind == "producer"}
    return sends == {span.parent_id for span in spans if span.kind == "consumer"}


def _hide(spans: list[Span], *, content: bool) -> None:
    """Move the caller's span id to an attribute: its span is not ours to show; hide texts."""
    root = spans[0]
    if root.parent_id is not None:
        root.attributes[names.UPSTREAM_PARENT] = root.parent_id
        root.parent_id = None
    if content:
        return
    for span in spans:
        for name in names.CONTENT:
            span.attributes.pop(name, None)


def _linked(spans: list[Span], outputs: list[Hop], key: str, clock: WallClock) -> list[Span]:
    places = _places(spans)
    chat = next((s for s in spans if names.GEN_AI_OPERATION in s.attributes), spans[0])
    seen: set[str] = {span.span_id for span in spans}
    linked: list[Span] = []
    for hop in outputs:
        for one in message_spans(hop):
            if one.span_id in seen:
                continue
            seen.add(one.span_id)
            span = shown_span(one, clock)
            span.linked = True
            if one.kind == "producer":
                span.parent_id = _place(span, serves(hop, key) or "", places, chat).span_id
            linked.append(span)
    return linked


def _places(spans: list[Span]) -> list[_Place]:
    return [
        _Place(span, engine_suffix(str(span.attributes.get(names.ENGINE_REQUEST_ID, ""))))
        for span in spans
        if span.attributes.get(names.PHASE) in ENGINE_PHASES
    ]


def _place(message: Span, suffix: str, places: list[_Place], chat: Span) -> Span:
    """The last phase of its choice that had begun; the first one if none had."""
    own = [place.span for place in places if place.suffix == suffix]
    own = own or [place.span for place in places]
    begun = [span for span in own if span.start_ns <= message.start_ns]
    if begun:
        return begun[-1]
    return own[0] if own else chat


def _in_order(root_id: str, spans: list[Span]) -> list[Span]:
    """Return the tree below the root, parents before children, siblings by time."""
    children: defaultdict[str | None, list[Span]] = defaultdict(list)
    root: Span | None = None
    for span in spans:
        if span.span_id == root_id:
            root = span
        else:
            children[span.parent_id].append(span)
    if root is None:
        return []
    ordered: list[Span] = []
    stack = [root]
    while stack:
        span = stack.pop()
        ordered.append(span)
        below = sorted(children.pop(span.span_id, []), key=_time)
        stack.extend(below[::-1])
    return ordered


def _time(span: Span) -> tuple[int, int]:
    return (span.start_ns, span.end_ns)
