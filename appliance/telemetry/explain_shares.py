"""Who gets the blame for what steps took: prompts beside it, a crowd, slow steps, preemption."""

from collections.abc import Sequence

from appliance.telemetry.explain_case import Case, Finding
from appliance.telemetry.explain_steps import StepCosts
from appliance.telemetry.explain_words import amount, count_text, figure, time_text
from engine.wire.messages import Timeline

LEAST_NS = 3e6
BESIDE_ADVICE = (
    "Lower --long-prefill-threshold so that long prompts take less of each step, or send them to an"
    " engine of their own."
)
PREEMPTED_ADVICE = "KV blocks ran out: raise --kv-cache-bytes or lower --max-num-seqs."
SLOW_ADVICE = (
    "The work in these steps does not account for it: see the machine's CPU and whether the"
    " process was stopped; `quarterdeck profile` shows where steps go."
)


def preempted(
    case: Case, timeline: Timeline, start_ns: int, end_ns: int
) -> tuple[float, list[Finding]]:
    """Time without KV blocks, and the time to compute again what was lost with them."""
    away_ns = times = 0
    resumed = timeline.resumed_ns
    for index, at_ns in enumerate(timeline.preempted_ns):
        back_ns = resumed[index] if index < len(resumed) else end_ns
        overlap_ns = min(back_ns, end_ns) - max(at_ns, start_ns)
        if overlap_ns > 0:
            away_ns, times = away_ns + overlap_ns, times + 1
    if not times:
        return 0.0, []
    first_ns = timeline.preempted_ns[0]
    again_ns = sum(
        min(chunk.end_ns, end_ns) - max(chunk.start_ns, start_ns, first_ns)
        for chunk in timeline.chunks
        if chunk.start_ns >= max(first_ns, start_ns) and chunk.end_ns <= end_ns
    )
    cost_ns = float(away_ns + again_ns)
    text = (
        f"it lost its place {count_text(times, 'time')}, waited {time_text(away_ns)} for another"
        f" and computed {timeline.recomputed_tokens:,} tokens again"
    )
    evidence = (
        figure("without KV blocks", away_ns, None, case.span_ids.get("decode")),
        amount("computed again", timeline.recomputed_tokens, "tokens"),
    )
    return cost_ns, [Finding("preemption", cost_ns, text, True, PREEMPTED_ADVICE, evidence)]


def of_steps(case: Case, costs: StepCosts, left_ns: float, phase: str) -> Sequence[Finding]:
    """Hand the excess of a phase out to what lengthened its steps."""
    found: list[Finding] = []
    parts = (
        (costs.prompts_ns, beside),
        (costs.crowd_ns, crowd),
        (costs.slow_ns + costs.gap_ns, slow),
    )
    for bound_ns, make in parts:
        cost_ns = min(left_ns, bound_ns)
        if cost_ns > LEAST_NS:
            found.append(make(case, costs, cost_ns, phase))
            left_ns -= cost_ns
    return found


def beside(case: Case, costs: StepCosts, cost_ns: float, phase: str) -> Finding:
    """Blame the prompts of others."""
    where = {"queue": "before it had a place", "prefill": "beside its prompt"}.get(
        phase, "between its tokens"
    )
    text = (
        f"{costs.prompt_tokens:,} prompt tokens of others were computed {where},"
        f" in {count_text(costs.prompt_steps, 'step')}"
    )
    shown = amount(
        "prompt tokens of others", costs.prompt_tokens, "tokens", None, case.span_ids.get(phase)
    )
    return Finding("long_prefill_beside", cost_ns, text, False, BESIDE_ADVICE, (shown,))


def crowd(case: Case, costs: StepCosts, cost_ns: float, phase: str) -> Finding:
    """Blame the size of the batch."""
    text = f"it shared its steps with up to {costs.max_batch - 1} others"
    if case.norm.batch:
        text += f", usually {max(0, round(case.norm.batch) - 1)}"
    shown = amount(
        "largest batch", costs.max_batch, "requests", case.norm.batch, case.span_ids.get(phase)
    )
    advice = "Lower --max-num-seqs for faster tokens and a longer queue, or add an engine."
    return Finding("crowded_batch", cost_ns, text, False, advice, (shown,))


def slow(case: Case, costs: StepCosts, cost_ns: float, phase: str) -> Finding:
    """Blame nobody: steps took too long for what was in them, or none were taken."""
    if costs.gap_ns > costs.slow_ns:
        text = f"the engine did something else than steps for {time_text(costs.gap_ns)}"
    elif costs.slow_steps == 1:
        text = f"step {costs.worst_step} took {time_text(costs.worst_ns)} too long for its work"
    else:
        text = (
            f"{count_text(costs.slow_steps, 'step')} took too long for their work, step"
            f" {costs.worst_step} by {time_text(costs.worst_ns)}"
        )
    span_id = case.span_ids.get(phase)
    evidence = (
        figure("in steps beyond the usual", costs.slow_ns, None, span_id),
        figure("the worst step", costs.worst_ns + case.norm.step_ns, case.norm.step_ns, span_id),
    )
    return Finding("slow_steps", cost_ns, text, False, SLOW_ADVICE, evidence)
