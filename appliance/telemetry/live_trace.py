"""The trace of a request that still runs: its server span so far and the messages seen."""

from collections.abc import Sequence

from appliance.supervisor.admin.schemas import RequestRow, Span, Trace
from appliance.telemetry import names
from appliance.telemetry.live_requests import LiveRequest
from appliance.telemetry.span_data import SpanData
from appliance.telemetry.wall_clock import WallClock
from engine.wire.header import new_span_id


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
        span_id=new_span_id(),
        parent_id=None,
        attributes={
            "http.route": live.accepted.route,
            names.REQUEST_ID: live.accepted.request_id,
            "quarterdeck.live": True,
        },
    )
    known = {message.span_id for message in messages}
    below = [
        Span(
            name=message.name,
            kind=message.kind,
            process=message.process,
            start_ns=clock.unix_ns(message.start_ns),
            end_ns=clock.unix_ns(message.end_ns),
            span_id=message.span_id,
            parent_id=message.parent_id if message.parent_id in known else root.span_id,
            attributes=dict(message.attributes),
            status="unset" if message.error is None else "error",
        )
        for message in messages
    ]
    headline = f"running for {row.age_s:.1f} s: {row.state}, {row.completion_tokens} tokens"
    return Trace(request=row, headline=headline, spans=[root, *below], complete=False)
