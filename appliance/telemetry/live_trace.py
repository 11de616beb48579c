"""The trace of a request that still runs: its server span so far and the messages seen."""

from collections.abc import Sequence

from appliance.supervisor.admin.schemas import RequestRow, Span, Trace
from appliance.telemetry import names
from appliance.telemetry.live_requests import LiveRequest
from appliance.telemetry.span_data import SpanData
from appliance.telemetry.span_ids import derived_span_id
from appliance.telemetry.trace_view import shown_span
from appliance.telemetry.wall_clock import WallClock


def live_trace(
    live: LiveRequest, row: RequestRow, messages: Sequence[SpanData], clock: WallClock, now_ns: int
) -> Trace:
    """Build what is known; the phases come with the request's record, at its end."""
    root = Span(
        name=f"POST {live.accepted.route}",
        kind="server",
        process=live.accepted.gateway,
        start_ns=clock.unix_ns(live.accepted.received_ns),
        end_ns=clock.unix_ns(now_ns),
        span_id=derived_span_id(live.accepted.request_id, names.LIVE),
        parent_id=None,
        attributes={
            names.HTTP_ROUTE: live.accepted.route,
            names.REQUEST_ID: live.accepted.request_id,
            names.LIVE: True,
        },
    )
    known = {message.span_id for message in messages}
    below = [shown_span(message, clock) for message in messages]
    for span in below:
        span.parent_id = span.parent_id if span.parent_id in known else root.span_id
    headline = f"running for {row.age_s:.1f} s: {row.state}, {row.completion_tokens} tokens"
    return Trace(request=row, headline=headline, spans=[root, *below], complete=False)
