"""The last word on a request: how sure it is, what failed, what is not known, in one line."""

from collections.abc import Sequence
from typing import Final, Literal

from appliance.supervisor.admin.insight_schemas import Cause, CauseKind
from appliance.telemetry.explain_case import Case, Finding, front_parts
from appliance.telemetry.explain_cohort import NS_PER_MS, PHASES
from appliance.telemetry.explain_words import count_text, figure, time_text
from appliance.telemetry.records import Outcome

SURE_SHARE: Final = 0.3
LIKELY_SHARE: Final = 0.15
MOST_SHARE: Final = 0.5
"""Of its whole time."""
PERCENT: Final = 100
SECOND_SHARE: Final = 0.15
"""Of the excess: a second cause with more is in the verdict."""
ERROR: Final = 400
"""A smaller status: the answer had begun."""
ENGINE_DIED: Final = frozenset({"engine_restarted", "request_crashed_engine"})

DIED_ADVICE: Final = "`quarterdeck postmortem` shows what its engine did last."

WHERE: dict[str, tuple[CauseKind, str]] = {
    "front": ("tokenizer", "before it was sent to an engine"),
    "dispatch": ("wire", "on the way to its engine"),
    "queue": ("queue", "in the engine's queue"),
    "prefill": ("long_prompt", "computing its prompt"),
    "decode": ("long_output", "making its tokens"),
    "stream": ("unknown", "sending the rest of its answer"),
}


def confidence_of(
    case: Case, finding: Finding, share: float, *, is_known: bool
) -> Literal["sure", "likely", "weak"]:
    """Say how sure a cause is.

    Measured where it happened and a large part: sure. What the request's own record tells is still
    likely when other records were lost, or when there is no cohort; what was inferred is not.
    """
    if not is_known or share < LIKELY_SHARE:
        return "weak"
    if not case.facts.complete:
        return "likely" if finding.certain else "weak"
    if case.cohort.is_enough:
        return "sure" if finding.certain and share >= SURE_SHARE else "likely"
    duration_ns = case.record.ended_ns - case.record.received_ns
    is_most = finding.cost_ns >= MOST_SHARE * duration_ns
    return "likely" if finding.certain or is_most else "weak"


def failure_of(case: Case) -> Cause | None:
    """Return why there is no whole answer; None: there is one, or its client went away."""
    record = case.record
    duration_ns = record.ended_ns - record.received_ns
    if record.outcome is Outcome.REJECTED:
        text = f"it was refused with {record.status}{_code(case)}"
    elif record.outcome is Outcome.FAILED:
        how = "its answer broke off" if record.status < ERROR else f"it failed with {record.status}"
        text = f"{how}{_code(case)} after {time_text(duration_ns)}"
    else:
        return None
    return Cause(
        kind="engine_died" if record.error_code in ENGINE_DIED else "failed",
        text=text,
        cost_ms=round(duration_ns / NS_PER_MS, 3),
        share=1.0,
        confidence="sure",
        advice=DIED_ADVICE if record.error_code in ENGINE_DIED else record.error_detail,
        evidence=[figure("until it ended", duration_ns, None, record.span_id)],
    )


def _code(case: Case) -> str:
    return f" ({case.record.error_code})" if case.record.error_code else ""


def unknown_of(case: Case, missing_ns: float, excess_ns: float) -> Cause:
    """Return what says that most of the excess is not accounted for."""
    worst = max(case.phases, key=lambda name: case.took_ns(name))
    text = f"{time_text(missing_ns)} of {time_text(excess_ns)} are not accounted for"
    if not case.facts.complete:
        text += "; records of that time were lost"
    elif case.timeline is None:
        text += "; its engine did not tell what it did with it"
    shown = figure(
        f"most of its time was spent {WHERE[worst][1]}",
        case.took_ns(worst),
        case.cohort.phase(worst).median or None,
        case.span_ids.get(worst),
    )
    return Cause(
        kind="unknown",
        text=text,
        cost_ms=round(missing_ns / NS_PER_MS, 3),
        share=round(min(1.0, missing_ns / excess_ns), 3),
        confidence="weak",
        advice="`quarterdeck trace` shows where the time went, if not why.",
        evidence=[shown],
    )


def usual_of(case: Case) -> Cause:
    """Return where the time of a request went that cannot be compared with others."""
    name = max(PHASES, key=case.took_ns)
    kind, where = WHERE[name]
    if name == "front":
        parts = front_parts(case.record)
        kind = "tokenizer" if max(parts, key=parts.__getitem__) == "tokenize" else "admission"
    duration_ns = max(1, case.record.ended_ns - case.record.received_ns)
    share = case.took_ns(name) / duration_ns
    return Cause(
        kind=kind,
        text=f"{PERCENT * share:.0f} % of its time was spent {where}",
        cost_ms=round(case.took_ns(name) / NS_PER_MS, 3),
        share=round(min(1.0, share), 3),
        confidence="weak",
        evidence=[figure(where, case.took_ns(name), None, case.span_ids.get(name))],
    )


def size_text(case: Case) -> str:
    """Say whom it is compared with."""
    model = case.record.model or "this route"
    text = f"{count_text(len(case.cohort), 'request')} of {model} in the last hour"
    return text if case.cohort.is_enough else f"only {text}: too few to compare with"


def verdict_of(case: Case, causes: Sequence[Cause], excess_ns: float) -> str:
    """Say it in one line."""
    duration_ns = case.record.ended_ns - case.record.received_ns
    took = time_text(duration_ns)
    if not causes:
        usual = case.cohort.duration
        most = f"95 % took at most {time_text(usual.p95)}"
        return f"Not slow: {took}, the median of this hour is {time_text(usual.median)}; {most}."
    first, more = causes[0], _second(causes)
    if case.record.outcome in (Outcome.REJECTED, Outcome.FAILED):
        return f"{first.text[0].upper()}{first.text[1:]}{more}."
    if not case.cohort.is_enough:
        start = f"{took}, with {size_text(case)}"
        hint = "probably " if first.confidence != "weak" else ""
        return f"{start}. {hint.capitalize()}{_capital(first.text, not hint)}{more}."
    if first.kind == "unknown":
        return f"Slow, but it is not known why: {first.text}."
    return f"{time_text(excess_ns)} slower than usual{_sure(first)}: {first.text}{more}."


def _capital(text: str, wanted: bool) -> str:
    return text[0].upper() + text[1:] if wanted else text


def _sure(cause: Cause) -> str:
    return {"sure": "", "likely": ", probably", "weak": ", perhaps"}[cause.confidence]


def _second(causes: Sequence[Cause]) -> str:
    others = [c for c in causes[1:2] if c.share >= SECOND_SHARE and c.confidence != "weak"]
    return "".join(f"; and {cause.text}" for cause in others)
