"""Finds the place of messages in a request's tree. Pure."""

from collections.abc import Iterable, Sequence

from appliance.telemetry.span_data import SpanData
from appliance.telemetry.spans import RequestSpans


def place(messages: Iterable[SpanData], dispatch_of: dict[str, str]) -> None:
    """Hang the sends of `AddRequest` below their `dispatch` phase."""
    for span in messages:
        span.parent_id = dispatch_of.get(span.span_id, span.parent_id)


def claim(
    built: RequestSpans, messages: Sequence[SpanData], *, is_alone: bool
) -> tuple[list[SpanData], list[SpanData]]:
    """Return the messages that hang below a request, and those that do not.

    Args:
        built: The request's own spans, the server span first.
        messages: Of its trace.
        is_alone: No other request is in the trace: what nobody knows the parent of is its as well.
    """
    place(messages, built.dispatch_of)
    known = {span.span_id for span in built.spans}
    mine: list[SpanData] = []
    others: list[SpanData] = []
    for span in sorted(messages, key=_start):  # parents first
        if span.parent_id in known:
            known.add(span.span_id)
            mine.append(span)
        else:
            others.append(span)
    if not is_alone:
        return mine, others
    adopt(others, known, built.spans[0].span_id)
    return mine + others, []


def adopt(spans: Sequence[SpanData], known: set[str], root_id: str | None) -> None:
    """Give spans whose parent nobody knows a place below the root; None: they are roots."""
    among = {span.span_id for span in spans}
    for span in spans:
        if span.parent_id not in known and span.parent_id not in among:
            span.parent_id = root_id


def _start(span: SpanData) -> int:
    return span.start_ns
