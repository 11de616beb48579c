"""Finds the spans that a request's time depended on.

Walking back from the end, whatever ended last was waited for; what it does not cover was its
parent's own time.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from appliance.supervisor.admin.schemas import Span


class Segment(NamedTuple):
    """A stretch of the request's time and the span that it belongs to."""

    span: Span
    start_ns: int
    end_ns: int


def critical_path(spans: Sequence[Span]) -> list[Segment]:
    """Return segments that tile the root span, in time order; empty without spans.

    Args:
        spans: One tree, the root first. Messages that are linked into it explain nothing of the
            request's own time and are left out.
    """
    if not spans:
        return []
    own = [span for span in spans if not span.linked]
    above = {span.span_id: span.parent_id for span in own if span.kind == "producer"}
    children: defaultdict[str | None, list[Span]] = defaultdict(list)
    for span in own[1:]:
        # a message is processed after its send: beside it, not within it
        children[above.get(span.parent_id or "", span.parent_id)].append(span)
    root = own[0]
    return _joined(_walk(root, root.start_ns, root.end_ns, children)[::-1])


def _walk(
    span: Span, from_ns: int, until_ns: int, children: defaultdict[str | None, list[Span]]
) -> list[Segment]:
    """Return the segments of `span` between two times, last first."""
    segments: list[Segment] = []
    at_ns = until_ns
    below = sorted(children[span.span_id], key=lambda child: (child.end_ns, child.start_ns))
    while below and at_ns > from_ns:
        child = below.pop()
        end_ns, start_ns = min(child.end_ns, at_ns), max(child.start_ns, from_ns)
        if start_ns >= end_ns:
            continue
        if end_ns < at_ns:
            segments.append(Segment(span, end_ns, at_ns))
        segments += _walk(child, start_ns, end_ns, children)
        at_ns = start_ns
    if at_ns > from_ns:
        segments.append(Segment(span, from_ns, at_ns))
    return segments


def _joined(segments: list[Segment]) -> list[Segment]:
    joined: list[Segment] = []
    for segment in segments:
        if joined and joined[-1].span is segment.span and joined[-1].end_ns == segment.start_ns:
            joined[-1] = Segment(segment.span, joined[-1].start_ns, segment.end_ns)
        else:
            joined.append(segment)
    return joined
