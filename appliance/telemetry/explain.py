"""Why a request took as long as it did: the request against its cohort. Pure.

Each phase is judged on its own: what it took beyond the usual, and what can be proven to have
taken it. What nothing proves stays unknown, and when that is most of it, the verdict says so.
"""

from collections.abc import Sequence
from typing import Final

from appliance.supervisor.admin.insight_schemas import (
    Cause,
    CauseKind,
    Explanation,
    PhaseAgainstCohort,
)
from appliance.telemetry.evidence import Evidence
from appliance.telemetry.explain_case import Case, Finding, PhaseFindings, case_of
from appliance.telemetry.explain_cohort import NS_PER_MS, PHASES
from appliance.telemetry.explain_engine import judge_decode, judge_prefill
from appliance.telemetry.explain_gateway import judge_dispatch, judge_front, judge_stream
from appliance.telemetry.explain_queue import judge_queue
from appliance.telemetry.explain_verdict import (
    confidence_of,
    failure_of,
    size_text,
    unknown_of,
    usual_of,
    verdict_of,
)
from appliance.telemetry.records import Outcome

SLOW_SHARE: Final = 0.25
"""Of what is usual: less beyond it is not slow."""
SLOW_NS: Final = 10e6
NET_SHARE: Final = 0.1
"""Of what is usual for its length: less beyond it in all is as quick as usual."""
ACCOUNTED_SHARE: Final = 0.5
"""Of the excess that findings must account for, else it is not known."""
TELLING_SHARE: Final = 0.05
"""Causes below it are left out."""
MAX_CAUSES: Final = 6
WEAK_KINDS: Final = frozenset[CauseKind]({"unknown", "not_slow"})


def explain(evidence: Evidence) -> Explanation:
    """Explain an ended request."""
    case = case_of(evidence)
    judged = [
        judge_front(case),
        judge_dispatch(case),
        judge_queue(case),
        judge_prefill(case),
        judge_decode(case),
        judge_stream(case),
    ]
    excess_ns = sum(phase.excess_ns for phase in judged)
    causes = _causes(case, judged, excess_ns)
    failure = failure_of(case)
    if failure is not None:
        causes = [failure, *(cause for cause in causes if cause.kind not in WEAK_KINDS)]
    record = case.record
    return Explanation(
        request_id=record.request_id,
        verdict=verdict_of(case, causes, excess_ns),
        causes=causes,
        phases=_phases(case),
        cohort=size_text(case),
        cohort_size=len(case.cohort),
        duration_ms=_ms(record.ended_ns - record.received_ns),
        excess_ms=_ms(excess_ns),
        critical_path=_critical_path(case),
        complete=evidence.complete,
    )


def _causes(case: Case, judged: Sequence[PhaseFindings], excess_ns: float) -> list[Cause]:
    """Rank what was found; empty when the request was not slow."""
    findings = _merged([finding for phase in judged for finding in phase.findings])
    explained_ns = sum(finding.cost_ns for finding in findings)
    if not _is_slow(case, excess_ns) or _is_made_up_for(case):
        return [] if case.cohort.is_enough else [usual_of(case)]
    is_known = explained_ns >= ACCOUNTED_SHARE * excess_ns
    causes = [
        _cause(case, finding, excess_ns, is_known=is_known)
        for finding in findings
        if finding.cost_ns >= TELLING_SHARE * excess_ns
    ]
    missing_ns = excess_ns - explained_ns
    if not is_known:
        causes.insert(0, unknown_of(case, missing_ns, excess_ns))
    return causes[:MAX_CAUSES]


def _is_slow(case: Case, excess_ns: float) -> bool:
    duration_ns = case.record.ended_ns - case.record.received_ns
    usual_ns = max(0.0, duration_ns - excess_ns)
    return excess_ns >= max(SLOW_NS, SLOW_SHARE * usual_ns)


def _is_made_up_for(case: Case) -> bool:
    """Whether it was as quick as usual in all: one phase took longer, others less."""
    if not case.cohort.is_enough:
        return False
    token_ns = case.cohort.token.median * max(0, case.member.completion_tokens - 1)
    usual_ns = sum(case.cohort.phase(name).median for name in PHASES if name != "decode")
    usual_ns += min(token_ns, case.cohort.phase("decode").median)
    over_ns = case.record.ended_ns - case.record.received_ns - usual_ns
    return over_ns < max(SLOW_NS, NET_SHARE * usual_ns)


def _merged(findings: Sequence[Finding]) -> list[Finding]:
    """Join findings of one kind under the words of the most costly one; most costly kind first."""
    by_kind: dict[CauseKind, list[Finding]] = {}
    for finding in findings:
        by_kind.setdefault(finding.kind, []).append(finding)
    merged: list[Finding] = []
    for same in by_kind.values():
        same.sort(key=_cost, reverse=True)
        merged.append(
            same[0]._replace(
                cost_ns=sum(finding.cost_ns for finding in same),
                certain=all(finding.certain for finding in same),
                evidence=tuple(fact for finding in same for fact in finding.evidence),
            )
        )
    return sorted(merged, key=_cost, reverse=True)


def _cost(finding: Finding) -> float:
    return finding.cost_ns


def _cause(case: Case, finding: Finding, excess_ns: float, *, is_known: bool) -> Cause:
    share = min(1.0, finding.cost_ns / excess_ns)
    return Cause(
        kind=finding.kind,
        text=finding.text,
        cost_ms=_ms(finding.cost_ns),
        share=round(share, 3),
        confidence=confidence_of(case, finding, share, is_known=is_known),
        advice=finding.advice,
        evidence=list(finding.evidence),
    )


def _phases(case: Case) -> list[PhaseAgainstCohort]:
    rows: list[PhaseAgainstCohort] = []
    for name in PHASES:
        if name not in case.phases:
            continue
        took_ns, usual = case.took_ns(name), case.cohort.phase(name)
        row = PhaseAgainstCohort(phase=name, ms=_ms(took_ns))
        if case.cohort.is_enough:
            row.median_ms, row.p95_ms = _ms(usual.median), _ms(usual.p95)
            row.ratio = round(took_ns / usual.median, 2) if usual.median else None
        rows.append(row)
    return rows


def _critical_path(case: Case) -> list[str]:
    """The phases of the choice that ended last, in order; other choices ran beside them."""
    if case.record.outcome is Outcome.REJECTED:
        return [case.record.span_id]
    names = ("auth", "admission", "tokenize", "dispatch", "queue", "prefill", "decode", "stream")
    return [case.record.span_id, *(case.span_ids[n] for n in names if n in case.span_ids)]


def _ms(value_ns: float) -> float:
    return round(value_ns / NS_PER_MS, 3)
