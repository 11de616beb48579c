"""A small trace with everything that a real one has: phases, messages, linked outputs, an error."""

from datetime import UTC, datetime
from typing import Any

from appliance.supervisor.admin.schemas import (
    Cause,
    Evidence,
    Explanation,
    PhaseAgainstCohort,
    RequestRow,
    Span,
    Trace,
)

BASE_NS = 1_796_000_000_123_456_789
MS = 1_000_000
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
NASTY = "</script><script>window.broken = true</script>&amp;\u2028"


def span(
    number: int, name: str, start_ms: float, end_ms: float, parent: int | None, **fields: Any
) -> Span:
    return Span(
        name=name,
        kind=fields.pop("kind", "internal"),
        process=fields.pop("process", "gateway-0"),
        start_ns=BASE_NS + int(start_ms * MS),
        end_ns=BASE_NS + int(end_ms * MS),
        span_id=f"{number:016x}",
        parent_id=None if parent is None else f"{parent:016x}",
        **fields,
    )


def sample_trace(**changes: Any) -> Trace:
    spans = [
        span(1, "POST /v1/chat/completions", 0, 100, None, kind="server",
             attributes={"http.response.status_code": 200, "quarterdeck.stream": True}),
        span(2, "auth", 0, 1, 1),
        span(3, "admission", 1, 2, 1),
        span(4, "tokenize", 2, 5, 1),
        span(5, "chat m", 5, 95, 1, attributes={"gen_ai.response.finish_reasons": ["stop"]}),
        span(6, "dispatch", 5, 10, 5),
        span(7, "send AddRequest", 6, 7, 6, kind="producer"),
        span(8, "process AddRequest", 8, 9, 7, kind="consumer", process="e0"),
        span(9, "queue", 10, 40, 5, process="e0", attributes={"quarterdeck.waited": 0.5}),
        span(10, "prefill", 40, 60, 5, process="e0", status="error"),
        span(11, "decode", 60, 95, 5, process="e0", attributes={"note": NASTY}),
        span(12, "send EngineOutputs", 59, 60.5, 10, kind="producer", process="e0", linked=True),
        span(13, "process EngineOutputs", 61, 62, 12, kind="consumer", linked=True),
        span(14, "stream", 95, 100, 1),
    ]  # fmt: skip
    request = RequestRow(
        id="req-1", trace_id=TRACE_ID, state="finished", route="/v1/chat/completions",
        model="m", engine="e0", gateway="gateway-0", stream=True, status=200,
        received_at=datetime(2026, 11, 29, tzinfo=UTC), age_s=0.1, prompt_tokens=7,
        completion_tokens=9,
    )  # fmt: skip
    fields = {"request": request, "headline": NASTY, "spans": spans, "complete": True}
    return Trace(**(fields | changes))


def sample_explanation() -> Explanation:
    evidence = Evidence(text="waited 30 ms", value=30, unit="ms", span_id=f"{9:016x}")
    usual = Evidence(text="time in the queue", value=30, unit="ms", cohort_median=2.7)
    cause = Cause(
        kind="queue", text="waited 30 ms in the queue, 11x the median", cost_ms=27, share=0.9,
        confidence="sure", advice="add an engine", evidence=[evidence, usual],
    )  # fmt: skip
    return Explanation(
        request_id="req-1", verdict=NASTY, causes=[cause], cohort="212 requests of m",
        phases=[PhaseAgainstCohort(phase="queue", ms=30, median_ms=2.7, ratio=11.1)],
        cohort_size=212, duration_ms=100, excess_ms=30,
    )  # fmt: skip
