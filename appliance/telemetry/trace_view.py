"""Turns stored spans into the tree of one request, as the trace API answers it. Pure.

The trace may hold other requests (the caller's trace goes on over several): only what hangs below
this request's server span belongs to it. Messages of steps stand in the steps' own traces; in this
view each finds its place under the phase of the request that it served.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from appliance.supervisor.admin.schemas import RequestRow, Span, Trace
from appliance.telemetry import names
from appliance.telemetry.request_ids import engine_suffix
from appliance.telemetry.trace_db import StoredSpan
from appliance.telemetry.trace_store import StoredTrace

UPSTREAM = "quarterdeck.upstream.parent_id"
ENGINE_PHASES = ("prefill", "decode")


@dataclass(slots=True)
class _Place:
    """A phase under which linked messages are shown."""

    span: Span
    suffix: str


def trace_view(stored: StoredTrace, *, all_joined: bool) -> Trace:
    """Build the answer; `all_joined`: no half of the request's messages is still awaited."""
    root_id = stored.request.root_id
    spans = _tree(root_id, stored.spans)
    linked = _linked(spans, stored.linked)
    whole = _in_order(root_id, [*spans, *linked])
    return Trace(
        request=RequestRow.model_validate_json(stored.request.row),
        headline=stored.request.headline,
        spans=whole,
        complete=all_joined and all_messages_arrived(whole),
    )


def all_messages_arrived(spans: Iterable[Span]) -> bool:
    """Whether every send has its process span."""
    sends = {span.span_id for span in spans if span.kind == "producer"}
    return sends == {span.parent_id for span in spans if span.kind == "consumer"}


def _tree(root_id: str, stored: list[StoredSpan]) -> list[Span]:
    """Return the server span and all below it; the caller's span id moves to an attribute."""
    spans = [_span(one) for one in stored]
    for span in spans:
        if span.span_id == root_id and span.parent_id is not None:
            span.attributes[UPSTREAM] = span.parent_id
            span.parent_id = None
    return _in_order(root_id, spans)


def _linked(spans: list[Span], stored: list[StoredSpan]) -> list[Span]:
    places = _places(spans)
    chat = next((s for s in spans if "gen_ai.operation.name" in s.attributes), spans[0])
    seen: set[str] = {span.span_id for span in spans}
    linked: list[Span] = []
    for one in stored:
        if one.span_id in seen:
            continue  # it served two choices of this request
        seen.add(one.span_id)
        span = _span(one)
        span.linked = True
        if one.kind == "producer":
            span.parent_id = _place(span, one.suffix or "", places, chat).span_id
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
        below = children.pop(span.span_id, [])
        stack.extend(sorted(below, key=_reverse_time))
    return ordered


def _reverse_time(span: Span) -> tuple[int, int]:
    return (-span.start_ns, -span.end_ns)


def _span(stored: StoredSpan) -> Span:
    attributes: dict[str, Any] = msgspec.json.decode(stored.attributes)
    return Span.model_validate(
        {
            "name": stored.name,
            "kind": stored.kind,
            "process": stored.process,
            "start_ns": stored.start_ns,
            "end_ns": stored.end_ns,
            "span_id": stored.span_id,
            "parent_id": stored.parent_id,
            "attributes": attributes,
            "status": "unset" if stored.error is None else "error",
        }
    )
