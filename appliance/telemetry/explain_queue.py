"""What waiting in an engine's queue cost beyond the usual, and what for."""

from appliance.telemetry.explain_case import Case, Finding, PhaseFindings
from appliance.telemetry.explain_shares import beside, slow
from appliance.telemetry.explain_steps import walk
from appliance.telemetry.explain_words import against_text, amount, figure, time_text
from engine.wire.messages import Timeline

LEAST_NS = 3e6
LONG_PROMPT = 256
"""Prompt tokens for each prompt in a step: fewer are a crowd of short ones."""

WAITED: dict[str, tuple[str, str]] = {
    "seats": (
        "because all places of the batch were taken",
        "Raise --max-num-seqs if memory and latency allow it, or add an engine.",
    ),
    "kv_blocks": (
        "because no KV blocks were free",
        "Raise --kv-cache-bytes, lower --max-num-seqs or the lengths of requests.",
    ),
    "budget": (
        "because other prompts took the token budget of each step",
        "Raise --max-num-batched-tokens, or spread the arrivals.",
    ),
}
PREPARED = {
    "grammar": "Reuse the same schema: compiled ones are kept; simpler schemas compile faster.",
    "adapter": "Raise --max-loras so that the adapters in use stay in their slots.",
}


def judge_queue(case: Case) -> PhaseFindings:
    """Waiting in the engine for the first step."""
    phase, timeline = case.phases.get("queue"), case.timeline
    if phase is None or timeline is None:
        return PhaseFindings(0.0, ())
    took_ns = float(case.took_ns("queue"))
    excess_ns = case.excess_ns("queue") if case.cohort.is_enough else took_ns
    left_ns, found = excess_ns, list[Finding]()
    prepared_ns = (timeline.prepared_ns or phase.end_ns) - phase.start_ns
    needed = _needed(case, timeline)
    if timeline.waited_for == "adapter":  # loaded or not, it had no slot until the end
        prepared_ns = phase.end_ns - phase.start_ns
    if needed is not None and prepared_ns > LEAST_NS:
        cost_ns = min(left_ns, prepared_ns)
        found.append(_preparation(case, needed, cost_ns))
        left_ns -= cost_ns
    if left_ns > LEAST_NS:
        found += _wait(case, timeline, left_ns)
    if case.cohort.is_enough:
        return PhaseFindings(excess_ns, found)
    return PhaseFindings(sum(finding.cost_ns for finding in found), found)


def _needed(case: Case, timeline: Timeline) -> str | None:
    """What it had to wait for before it could stand in the queue."""
    if timeline.waited_for in PREPARED:
        return timeline.waited_for
    if timeline.prepared_ns is None or timeline.prepared_ns - timeline.received_ns < LEAST_NS:
        return None
    return "adapter" if case.record.model != case.record.base_model else "grammar"


def _preparation(case: Case, needed: str, cost_ns: float) -> Finding:
    span_id = case.span_ids.get("queue")
    if needed == "adapter":
        text = f"its adapter was not in a slot of the engine for {time_text(cost_ns)}"
        return Finding(
            "adapter",
            cost_ns,
            text,
            True,
            PREPARED[needed],
            (figure(text, cost_ns, None, span_id),),
        )
    text = f"its grammar was compiled for {time_text(cost_ns)}"
    shown = figure(text, cost_ns, None, span_id)
    return Finding("grammar", cost_ns, text, True, PREPARED[needed], (shown,))


def _wait(case: Case, timeline: Timeline, left_ns: float) -> list[Finding]:
    """A place was not free, or the engine was in a step all the time."""
    phase, found, reason = case.phases["queue"], list[Finding](), timeline.waited_for
    start_ns = max(phase.start_ns, timeline.prepared_ns or 0)
    costs = walk(case.steps, start_ns, phase.end_ns, case.norm, {}, takes_part=False)
    stood_still_ns = costs.stall_ns + costs.gap_ns  # other slowness of steps is what a queue is
    slow_ns = min(left_ns, costs.slow_ns + costs.gap_ns if reason is None else stood_still_ns)
    if slow_ns > LEAST_NS:
        found.append(slow(case, costs, slow_ns, "queue"))
        left_ns -= slow_ns
    if left_ns <= LEAST_NS:
        return found
    if reason in (None, "budget") and _is_long_prompt(case, start_ns, phase.end_ns):
        found.append(beside(case, costs, min(left_ns, max(costs.prompts_ns, left_ns)), "queue"))
    elif reason is not None:
        found.append(_queue(case, left_ns, reason))
    elif costs.prompts_ns > LEAST_NS:
        found.append(beside(case, costs, min(left_ns, costs.prompts_ns), "queue"))
    return found


def _queue(case: Case, cost_ns: float, reason: str) -> Finding:
    why, advice = WAITED.get(reason, WAITED["seats"])
    took_ns, usual_ns = case.took_ns("queue"), case.cohort.phase("queue").median
    against = against_text(took_ns, usual_ns)
    text = f"waited {time_text(took_ns)} in the queue{against}, {why}"
    waiting = max((step.waiting for step in case.steps), default=0)
    evidence = [figure("time in the queue", took_ns, usual_ns, case.span_ids.get("queue"))]
    if waiting:
        evidence.append(amount(f"{waiting} requests waited at once", waiting, "requests"))
    return Finding("queue", cost_ns, text, True, advice, tuple(evidence))


def _is_long_prompt(case: Case, start_ns: int, end_ns: int) -> bool:
    """Whether the steps of a span computed few prompts with many tokens each."""
    tokens = prompts = 0
    for step in case.steps:
        if step.end_ns > start_ns and step.start_ns < end_ns and step.prefill_tokens:
            tokens += step.prefill_tokens
            prompts += max(1, step.requests - step.decode_tokens)
    return prompts > 0 and tokens / prompts >= LONG_PROMPT
