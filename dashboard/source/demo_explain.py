"""Why an invented request took as long as it did: its own trace against invented medians."""

from collections.abc import Iterator
from typing import Final

from appliance.supervisor.admin.schemas import (
    Cause,
    Evidence,
    Explanation,
    PhaseAgainstCohort,
    Span,
    Trace,
)

_NS_PER_MS: Final = 1e6
_SHOWN: Final = ("tokenize", "dispatch", "queue", "prefill", "decode", "stream")
_MEDIAN_MS: Final = {
    "tokenize": 2.4,
    "dispatch": 0.5,
    "queue": 1.8,
    "prefill": 82.0,
    "stream": 0.6,
}
_TOKEN_MS: Final = 66.0
_SLOW: Final = 1.5
_NOTICEABLE_MS: Final = 40.0
_COHORT: Final = 212
_USUAL_TOKENS: Final = 50


def demo_explanation(trace: Trace) -> Explanation:
    """Compare phase by phase; the most costly first."""
    spans = {span.name: span for span in trace.spans if span.name in _SHOWN}
    usual = {
        **_MEDIAN_MS,
        "decode": _TOKEN_MS * min(max(1, trace.request.completion_tokens), _USUAL_TOKENS),
    }
    phases = [_phase(spans[name], usual[name]) for name in _SHOWN if name in spans]
    excess_ms = sum(max(0.0, phase.ms - (phase.median_ms or 0.0)) for phase in phases)
    causes = sorted(
        _causes(trace, phases, spans, excess_ms), key=lambda cause: cause.cost_ms, reverse=True
    )
    total_ms = _ms(trace.spans[0])
    return Explanation(
        request_id=trace.request.id,
        verdict=_verdict(total_ms, causes),
        causes=causes,
        phases=phases,
        cohort=f"{_COHORT} requests of {trace.request.model} in the last hour",
        cohort_size=_COHORT,
        duration_ms=total_ms,
        excess_ms=excess_ms if causes else 0.0,
        critical_path=[
            span.span_id
            for span in trace.spans
            if span.parent_id is None or span.name in _SHOWN or span.name.startswith("chat")
        ],
    )


def _ms(span: Span) -> float:
    return (span.end_ns - span.start_ns) / _NS_PER_MS


def _phase(span: Span, median_ms: float) -> PhaseAgainstCohort:
    took_ms = _ms(span)
    return PhaseAgainstCohort(
        phase=span.name,
        ms=took_ms,
        median_ms=median_ms,
        p95_ms=median_ms * 3.1,
        ratio=took_ms / median_ms,
    )


def _verdict(total_ms: float, causes: list[Cause]) -> str:
    if not causes:
        return f"Not slow: {total_ms / 1000:.1f} s is as long as such requests take."
    first = causes[0]
    return (
        f"Slow because of {first.kind.replace('_', ' ')}: {first.cost_ms / 1000:.1f} s of it"
        f" are beyond the median."
    )


def _causes(
    trace: Trace, phases: list[PhaseAgainstCohort], spans: dict[str, Span], excess_ms: float
) -> Iterator[Cause]:
    for phase in phases:
        cost_ms = phase.ms - (phase.median_ms or 0.0)
        if (phase.ratio or 0.0) < _SLOW or cost_ms < _NOTICEABLE_MS:
            continue
        share = min(1.0, cost_ms / excess_ms) if excess_ms > 0 else 0.0
        if cause := _cause(trace, phase, spans[phase.phase], cost_ms, share):
            yield cause


def _cause(
    trace: Trace, phase: PhaseAgainstCohort, span: Span, cost_ms: float, share: float
) -> Cause | None:
    request, ratio = trace.request, phase.ratio or 0.0
    evidence = Evidence(
        text=f"{phase.phase} took {phase.ms:.0f} ms, {ratio:.1f}x the median of this hour",
        value=phase.ms,
        unit="ms",
        cohort_median=phase.median_ms,
        ratio=ratio,
        span_id=span.span_id,
    )
    match phase.phase:
        case "queue":
            return Cause(
                kind="queue",
                text=f"waited {phase.ms / 1000:.1f} s in the queue of {request.engine}",
                cost_ms=cost_ms,
                share=share,
                confidence="sure",
                advice="wake e2, or raise the number of sequences in a batch",
                evidence=[evidence, Evidence(text="6 requests were in its batch: it was full")],
            )
        case "prefill":
            return Cause(
                kind="long_prompt",
                text=f"its prompt has {request.prompt_tokens} tokens, none of them cached",
                cost_ms=cost_ms,
                share=share,
                confidence="likely",
                advice="send what prompts have in common first: it is cached then",
                evidence=[evidence],
            )
        case "decode" if request.completion_tokens > _USUAL_TOKENS:
            return Cause(
                kind="long_output",
                text=f"it made {request.completion_tokens} tokens, {_USUAL_TOKENS} are usual",
                cost_ms=cost_ms,
                share=share,
                confidence="sure",
                evidence=[evidence],
            )
        case "decode":
            each_ms = phase.ms / max(1, request.completion_tokens)
            return Cause(
                kind="slow_steps",
                text=f"each token took {each_ms:.0f} ms, {_TOKEN_MS:.0f} ms are usual",
                cost_ms=cost_ms,
                share=share,
                confidence="likely",
                evidence=[evidence],
            )
        case _:
            return None
