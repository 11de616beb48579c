"""One line that says why a request took as long as it did. Pure.

For example `TTFT 412 ms: 61 % queued, 4x the recent median`.
"""

from appliance.telemetry.explain_words import NS_PER_MS, count_text, time_text
from appliance.telemetry.phases import (
    Phase,
    chat_end_ns,
    chat_start_ns,
    choice_phases,
    front_phases,
)
from appliance.telemetry.records import ChoiceRecord, Outcome, RequestRecord
from appliance.telemetry.request_facts import duration_ns, preemptions, ttft_ns

MIN_RATIO, MAX_RATIO = 0.67, 1.5
"""Between them a latency is near the median."""

WORDS = {
    "auth": "in authentication",
    "admission": "in admission",
    "tokenize": "tokenizing",
    "dispatch": "on the way to the engine",
    "queue": "queued",
    "prefill": "in prefill",
    "decode": "in decode",
    "stream": "streaming",
}
QUEUED = {
    "seats": "queued for a place in the batch",
    "kv_blocks": "queued for KV blocks",
    "budget": "queued behind other prompts",
    "grammar": "waiting for its grammar",
    "adapter": "waiting for its adapter",
}
"""By `Timeline.waited_for`."""
HELD = {
    "asleep": "waiting for its engine to wake",
    "waking": "waiting for its engine to wake",
    "backoff": "waiting for its engine to be started again",
    "adapter": "waiting for its adapter",
}
"""By `RequestRecord.held_for`."""
BLOCKED_SHARE = 0.2
"""Of its time: a client that held its answer up for longer is named."""


def headline(record: RequestRecord, median_ttft_ms: float | None) -> str:
    """Return the line; `median_ttft_ms` is that of recent requests, None when there are too few."""
    phases, took = _phases(record), time_text(duration_ns(record))
    match record.outcome:
        case Outcome.REJECTED:
            text = f"rejected with {record.status}{_code(record)} after {took}"
        case Outcome.FAILED:
            text = f"failed after {took} {_last(record, phases)}:{_code(record)}"
        case Outcome.ABORTED:
            text = f"aborted after {took} {_last(record, phases)}"
            text += f", {record.completion_tokens} tokens"
        case Outcome.FINISHED:
            text = _finished(record, phases, median_ttft_ms)
    return text


def _finished(record: RequestRecord, phases: list[Phase], median_ttft_ms: float | None) -> str:
    first_ns = ttft_ns(record)
    if first_ns is None:
        return f"{time_text(duration_ns(record))} in all"
    text = f"TTFT {time_text(first_ns)}"
    share = _largest_share(record, phases, first_ns)
    if share is not None:
        text += f": {share}"
    if median_ttft_ms:
        text += f", {_against(first_ns / NS_PER_MS, median_ttft_ms)}"
    return text + _troubles(record)


def _troubles(record: RequestRecord) -> str:
    """What happened to it, wherever it shows."""
    text = ", sent again after its engine died" if record.requeues else ""
    if times := preemptions(record):
        text += f", lost its place {count_text(times, 'time')}"
    if record.send_blocked_ns > BLOCKED_SHARE * duration_ns(record):
        text += f", its client did not read for {time_text(record.send_blocked_ns)}"
    return text


def _phases(record: RequestRecord) -> list[Phase]:
    """The phases of the choice that had its first token first, or none."""
    phases = front_phases(record)
    start_ns = chat_start_ns(record)
    if start_ns is None or record.chat_span_id is None:
        return phases
    first = min(record.choices, key=_first_token, default=None)
    return phases + choice_phases(first, start_ns, chat_end_ns(record))


def _first_token(choice: ChoiceRecord) -> float:
    timeline = choice.timeline
    first_ns = timeline.first_token_ns if timeline is not None else None
    return float("inf") if first_ns is None else first_ns


def _largest_share(record: RequestRecord, phases: list[Phase], first_ns: int) -> str | None:
    until_ns = record.received_ns + first_ns
    before = {
        phase.name: min(phase.end_ns, until_ns) - phase.start_ns
        for phase in phases
        if phase.start_ns < until_ns and phase.name != "decode"
    }
    if not before or first_ns <= 0:
        return None
    name = max(before, key=before.__getitem__)
    words = WORDS[name]
    if name == "dispatch" and record.held_ns > before[name] / 2:
        words = HELD.get(record.held_for or "", "waiting for the engine to be ready")
    elif name == "queue":
        words = QUEUED.get(_waited_for(record) or "", words)
    return f"{round(100 * before[name] / first_ns)} % {words}"


def _waited_for(record: RequestRecord) -> str | None:
    reasons = (c.timeline.waited_for for c in record.choices if c.timeline is not None)
    return next((reason for reason in reasons if reason), None)


def _against(value_ms: float, median_ms: float) -> str:
    ratio = value_ms / median_ms
    if MIN_RATIO <= ratio <= MAX_RATIO:
        return "near the recent median"
    return f"{ratio:.1f}".removesuffix(".0") + "x the recent median"


def _last(record: RequestRecord, phases: list[Phase]) -> str:
    """Where the request was when it ended."""
    last = phases[-1].name if phases else "auth"
    if last == "dispatch" and record.held_ns:
        return "waiting for an engine"
    return WORDS[last]


def _code(record: RequestRecord) -> str:
    return f" {record.error_code}" if record.error_code else ""
