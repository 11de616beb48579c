"""What can be read off a request's record: its latencies and its row in lists."""

from appliance.supervisor.admin.schemas import RequestRow
from appliance.telemetry.records import Outcome, RequestRecord
from appliance.telemetry.request_times import first_token_ns, per_token_ns
from appliance.telemetry.wall_clock import WallClock

NS_PER_MS = 1e6
NS_PER_S = 1e9
SERVER_ERROR = 500


def ttft_ns(record: RequestRecord) -> int | None:
    """Return the time to the first token: as it left for a stream, else as the engine made it."""
    at_ns = first_token_ns(record.choices, record.first_frame_ns, is_stream=record.stream)
    return None if at_ns is None else at_ns - record.received_ns


def tpot_ns(record: RequestRecord) -> float | None:
    """Return the mean time per output token after the first, of finished requests only."""
    first_ns, last_ns = ttft_ns(record), record.last_token_ns
    if record.outcome is not Outcome.FINISHED or first_ns is None or last_ns is None:
        return None
    return per_token_ns(record.choices, record.received_ns + first_ns, last_ns)


def queue_ns(record: RequestRecord) -> int | None:
    """Return the longest wait of its choices in an engine's queue."""
    waits = [
        c.timeline.scheduled_ns - c.timeline.received_ns
        for c in record.choices
        if c.timeline is not None and c.timeline.scheduled_ns is not None
    ]
    return max(waits, default=None)


def preemptions(record: RequestRecord) -> int:
    """Return how often its choices were preempted."""
    return sum(len(c.timeline.preempted_ns) for c in record.choices if c.timeline is not None)


def has_failed(record: RequestRecord) -> bool:
    """Whether it failed, or was refused because we could not serve it."""
    return record.outcome is Outcome.FAILED or record.status >= SERVER_ERROR


def duration_ns(record: RequestRecord) -> int:
    """Return the time from the request's arrival to its last byte."""
    return record.ended_ns - record.received_ns


def milliseconds(value_ns: float | None) -> float | None:
    """Return nanoseconds as milliseconds, to the microsecond."""
    return None if value_ns is None else round(value_ns / NS_PER_MS, 3)


def ended_row(record: RequestRecord, clock: WallClock) -> RequestRow:
    """Return the row of an ended request."""
    token_ns = tpot_ns(record)
    return RequestRow(
        id=record.request_id,
        trace_id=record.trace_id,
        state=record.outcome.value,
        route=record.route,
        model=record.model,
        key_id=record.key_id,
        engine=record.choices[-1].engine_id if record.choices else None,
        gateway=record.gateway,
        stream=record.stream,
        status=record.status,
        error_code=record.error_code,
        received_at=clock.at(record.received_ns),
        ended_at=clock.at(record.ended_ns),
        age_s=duration_ns(record) / NS_PER_S,
        prompt_tokens=record.prompt_tokens,
        completion_tokens=record.completion_tokens,
        max_tokens=record.max_tokens,
        queue_ms=milliseconds(queue_ns(record)),
        ttft_ms=milliseconds(ttft_ns(record)),
        tokens_per_s=round(NS_PER_S / token_ns, 2) if token_ns else None,
        preemptions=preemptions(record),
    )
