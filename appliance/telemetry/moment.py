"""What happened around a point in time: in sentences, the most telling first. Pure."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from appliance.supervisor.admin.insight_schemas import Moment, MomentRow
from appliance.telemetry.evidence import MomentFacts, MomentRequest, StepFacts
from appliance.telemetry.explain_words import count_text, time_text

NS_PER_S: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000
MAX_SLOWEST: Final = 10
MAX_EVENTS_TOLD: Final = 5
BURST_REQUESTS: Final = 10
BURST_RATIO: Final = 4.0
"""A second with so many times the mean of the window is a burst."""
MIN_QUEUE: Final = 2
LONG_PROMPT: Final = 1024
TELLING_RATIO: Final = 1.5
SLOW_STEP_RATIO: Final = 8.0
SLOW_STEP_NS: Final = 100_000_000
MIN_FOR_MEDIAN: Final = 5
ALARMS: Final = frozenset({"warning", "error"})
POSTMORTEM: Final = "engine.postmortem"
"""Tells a death at length, which has an event of its own."""
POWER: Final = ("engine.asleep", "engine.waking", "engine.ready", "engine.starting")


class Sentence(NamedTuple):
    """One thing to say, and how much it matters: most first."""

    weight: float
    text: str


def moment(facts: MomentFacts) -> Moment:
    """Say what happened in a window of time."""
    requests = [request.member for request in facts.requests]
    ttfts = sorted(member.ttft_ms for member in requests if member.ttft_ms is not None)
    return Moment(
        since=_at(facts.since_unix_ns),
        until=_at(facts.until_unix_ns),
        summary=_summary(facts, ttfts),
        requests=len(requests),
        by_outcome=dict(Counter(member.outcome for member in requests)),
        ttft_p50_ms=_quantile(ttfts, 0.5),
        ttft_p95_ms=_quantile(ttfts, 0.95),
        hour_ttft_p50_ms=_quantile(sorted(facts.hour_ttft_ms), 0.5),
        slowest=[_row(request) for request in _slowest(facts.requests)],
        events=[event.model_dump(mode="json") for event in facts.events],
        engines=_engines(facts),
    )


def _summary(facts: MomentFacts, ttfts: Sequence[float]) -> list[str]:
    parts: tuple[Iterable[Sentence], ...] = (
        _alarms(facts),
        _power(facts),
        _failures(facts),
        _latency(facts, ttfts),
        _burst(facts),
        _queues(facts),
        _preemptions(facts),
        _long_prompts(facts),
        _slow_steps(facts),
    )
    found = sorted((said for part in parts for said in part), key=_weight, reverse=True)
    texts = [sentence.text for sentence in found] or [_nothing(facts)]
    if not facts.complete:
        texts.append("Records of this time were lost: there may have been more.")
    return texts


def _weight(sentence: Sentence) -> float:
    return sentence.weight


def _nothing(facts: MomentFacts) -> str:
    if not facts.requests and not facts.steps:
        return "Nothing ran."
    return f"Nothing unusual: {count_text(len(facts.requests), 'request')} ran."


# ---------------------------------------------------------------- what there is to say


def _alarms(facts: MomentFacts) -> Iterable[Sentence]:
    """Warnings and errors of the journal: deaths, broken promises, failed operations."""
    alarms = [
        event
        for event in reversed(facts.events)
        if event.level in ALARMS and event.kind != POSTMORTEM
    ]
    for event in alarms[:MAX_EVENTS_TOLD]:
        weight = 100.0 if "died" in event.kind else 80.0
        yield Sentence(weight, f"{_clock(facts, event.at)} {event.subject}: {event.text}.")
    if len(alarms) > MAX_EVENTS_TOLD:
        more = count_text(len(alarms) - MAX_EVENTS_TOLD, "more warning")
        yield Sentence(79.0, f"And {more} in the journal.")


def _power(facts: MomentFacts) -> Iterable[Sentence]:
    """Engines that went to sleep, woke or started."""
    told = [e for e in reversed(facts.events) if e.kind in POWER and e.level not in ALARMS]
    for event in told[-MAX_EVENTS_TOLD:]:
        yield Sentence(50.0, f"{_clock(facts, event.at)} {event.subject}: {event.text}.")


def _failures(facts: MomentFacts) -> Iterable[Sentence]:
    failed = [request for request in facts.requests if request.member.outcome == "failed"]
    if failed:
        of = count_text(len(facts.requests), "request")
        example = failed[0]
        text = f"{len(failed)} of {of} failed, {example.member.request}: {example.headline}."
        yield Sentence(90.0, text)


def _latency(facts: MomentFacts, ttfts: Sequence[float]) -> Iterable[Sentence]:
    mine, usual = _quantile(ttfts, 0.5), _quantile(sorted(facts.hour_ttft_ms), 0.5)
    if mine is None or not usual or len(ttfts) < MIN_FOR_MEDIAN:
        return
    if mine >= TELLING_RATIO * usual:
        text = (
            f"First tokens took {_ms(mine)} (median), {mine / usual:.1f}x those of the hour"
            f" before ({_ms(usual)})."
        )
        yield Sentence(60.0 + min(15.0, mine / usual), text)


def _burst(facts: MomentFacts) -> Iterable[Sentence]:
    """The second with the most arrivals, where it stands out."""
    seconds = Counter(_received_ns(request) // NS_PER_S for request in facts.requests)
    inside = {s: n for s, n in seconds.items() if s * NS_PER_S >= facts.since_unix_ns - NS_PER_S}
    if not inside:
        return
    second, most = max(inside.items(), key=_count_of)
    window_s = max(1.0, (facts.until_unix_ns - facts.since_unix_ns) / NS_PER_S)
    if most >= max(BURST_REQUESTS, BURST_RATIO * sum(inside.values()) / window_s):
        when = _clock(facts, _at(second * NS_PER_S))
        yield Sentence(55.0, f"{when} {most} requests arrived within a second.")


def _count_of(item: tuple[int, int]) -> int:
    return item[1]


def _queues(facts: MomentFacts) -> Iterable[Sentence]:
    for engine_id, steps in _by_engine(facts).items():
        worst = max(steps, key=_waiting)
        if worst.waiting >= MIN_QUEUE:
            when = _clock(facts, _at(worst.start_ns + facts.offset_unix_ns))
            text = f"{when} {worst.waiting} requests waited for a place on {engine_id}."
            yield Sentence(65.0 + min(10.0, worst.waiting / 10), text)


def _preemptions(facts: MomentFacts) -> Iterable[Sentence]:
    for engine_id, steps in _by_engine(facts).items():
        times = sum(step.preempted for step in steps)
        if times:
            text = f"{engine_id} ran out of KV blocks: {count_text(times, 'preemption')}."
            yield Sentence(70.0, text)


def _long_prompts(facts: MomentFacts) -> Iterable[Sentence]:
    longest = max(facts.requests, key=_computed, default=None)
    if longest is None or _computed(longest) < LONG_PROMPT:
        return
    others = statistics.median(_computed(request) for request in facts.requests)
    if len(facts.requests) == 1 or _computed(longest) >= BURST_RATIO * max(1.0, others):
        text = f"{longest.member.request} had a prompt of {_computed(longest):,} tokens to compute"
        yield Sentence(45.0, f"{text} ({longest.engine or 'no engine'}).")


def _slow_steps(facts: MomentFacts) -> Iterable[Sentence]:
    for engine_id, steps in _by_engine(facts).items():
        usual_ns = statistics.median(map(_took_ns, steps))
        worst = max(steps, key=_took_ns)
        if _took_ns(worst) >= max(SLOW_STEP_NS, SLOW_STEP_RATIO * usual_ns):
            when = _clock(facts, _at(worst.start_ns + facts.offset_unix_ns))
            text = (
                f"{when} step {worst.step} of {engine_id} took {time_text(_took_ns(worst))},"
                f" usually {time_text(usual_ns)} ({worst.prefill_tokens:,} prompt tokens in it)."
            )
            yield Sentence(58.0, text)


# ---------------------------------------------------------------- figures


def _engines(facts: MomentFacts) -> dict[str, dict[str, float]]:
    window_ns = max(1, facts.until_unix_ns - facts.since_unix_ns)
    return {
        engine_id: {
            "steps": float(len(steps)),
            "mean_batch": round(statistics.fmean(step.requests for step in steps), 2),
            "busy_share": round(min(1.0, sum(map(_took_ns, steps)) / window_ns), 3),
            "median_step_ms": round(statistics.median(map(_took_ns, steps)) / NS_PER_MS, 3),
            "max_step_ms": round(max(map(_took_ns, steps)) / NS_PER_MS, 3),
            "prefill_tokens": float(sum(step.prefill_tokens for step in steps)),
            "decode_tokens": float(sum(step.decode_tokens for step in steps)),
            "preemptions": float(sum(step.preempted for step in steps)),
            "max_waiting": float(max(step.waiting for step in steps)),
        }
        for engine_id, steps in sorted(_by_engine(facts).items())
    }


def _by_engine(facts: MomentFacts) -> dict[str, list[StepFacts]]:
    found: dict[str, list[StepFacts]] = {}
    for step in facts.steps:
        found.setdefault(step.engine_id, []).append(step)
    return found


def _slowest(requests: Sequence[MomentRequest]) -> list[MomentRequest]:
    return sorted(requests, key=_duration, reverse=True)[:MAX_SLOWEST]


def _row(request: MomentRequest) -> MomentRow:
    return MomentRow(
        request_id=request.member.request,
        outcome=request.member.outcome,
        model=request.model,
        duration_ms=round(request.member.duration_ms, 3),
        ttft_ms=request.member.ttft_ms,
        headline=request.headline,
    )


def _duration(request: MomentRequest) -> float:
    return request.member.duration_ms


def _computed(request: MomentRequest) -> int:
    return request.member.prompt_tokens - request.member.cached_tokens


def _received_ns(request: MomentRequest) -> int:
    return request.member.ended_unix_ns - int(request.member.duration_ms * NS_PER_MS)


def _waiting(step: StepFacts) -> int:
    return step.waiting


def _took_ns(step: StepFacts) -> int:
    return step.end_ns - step.start_ns


def _quantile(values: Sequence[float], share: float) -> float | None:
    """Return a quantile of sorted values."""
    if not values:
        return None
    return round(values[min(len(values) - 1, int(share * len(values)))], 3)


def _ms(value_ms: float) -> str:
    return time_text(value_ms * NS_PER_MS)


def _at(unix_ns: int) -> datetime:
    return datetime.fromtimestamp(unix_ns / NS_PER_S, UTC)


def _clock(facts: MomentFacts, at: datetime) -> str:
    return f"{at.astimezone(facts.zone):%H:%M:%S}"
