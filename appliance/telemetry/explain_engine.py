"""What the engine's phases cost beyond the usual: computing the prompt, making the answer."""

from appliance.telemetry.explain_case import Case, Finding, PhaseFindings
from appliance.telemetry.explain_cohort import NOISE_SHARE
from appliance.telemetry.explain_shares import of_steps, preempted
from appliance.telemetry.explain_steps import are_known, walk
from appliance.telemetry.explain_words import amount, figure

LEAST_NS = 3e6
LONGER = 1.5
"""Times the usual number of tokens: a long prompt, a long output."""
COLD_SHARE = 0.3
"""Of similar prompts, usually cached; from here on a cold one is worth a word."""
MORE_TOKENS = 16


def judge_prefill(case: Case) -> PhaseFindings:
    """From the first step to the first token."""
    phase, timeline = case.phases.get("prefill"), case.timeline
    if phase is None or timeline is None:
        return PhaseFindings(0.0, ())
    took_ns, usual = float(case.took_ns("prefill")), case.cohort.phase("prefill")
    excess_ns = case.excess_ns("prefill")
    if case.cohort.is_enough and not excess_ns:
        return PhaseFindings(0.0, ())
    known = are_known(case.steps, timeline.first_step, timeline.last_step)
    away_ns, found = preempted(case, timeline, phase.start_ns, phase.end_ns)
    costs = walk(case.steps, phase.start_ns, phase.end_ns, case.norm, case.own, takes_part=False)
    most_ns = excess_ns if case.cohort.is_enough else took_ns
    if known:
        found += of_steps(case, costs, max(0.0, most_ns - away_ns), "prefill")
    explained_ns = sum(finding.cost_ns for finding in found)
    if not case.cohort.is_enough:
        return PhaseFindings(explained_ns, found)
    found += _of_size(case, min(excess_ns - explained_ns, took_ns - explained_ns - usual.median))
    return PhaseFindings(excess_ns, found)


def _of_size(case: Case, left_ns: float) -> list[Finding]:
    """Its own prompt: more tokens than others have, or tokens that others found cached."""
    if left_ns <= LEAST_NS or case.choice is None:
        return []
    prompt, cached = case.choice.prompt_tokens, case.choice.cached_tokens
    share = case.cohort.cached_share(prompt)
    cold = 0.0
    if share is not None and share >= COLD_SHARE and cached <= prompt * share / 2:
        cold = prompt * share - cached
    usual = case.cohort.uncached_tokens
    more = prompt - cached - cold - usual
    if more < MORE_TOKENS or prompt - cached - cold < LONGER * usual:
        more = 0.0
    if cold + more < MORE_TOKENS:
        return []
    found: list[Finding] = []
    if cold >= MORE_TOKENS:
        found.append(_cold(case, left_ns * cold / (cold + more), cold, share or 0.0))
    if more:
        found.append(_long_prompt(case, left_ns * more / (cold + more), prompt - cached, usual))
    return found


def _cold(case: Case, cost_ns: float, tokens: float, share: float) -> Finding:
    assert case.choice is not None, "only prompts that were computed are cold"
    prompt, cached = case.choice.prompt_tokens, case.choice.cached_tokens
    text = (
        f"{round(tokens):,} tokens of its prompt were computed that similar requests found cached"
        f" ({100 * cached / max(1, prompt):.0f} % cached, usually {100 * share:.0f} %)"
    )
    span_id = case.span_ids.get("prefill")
    evidence = (
        amount("cached prompt tokens", cached, "tokens", round(prompt * share), span_id),
        figure("prefill", case.took_ns("prefill"), case.cohort.phase("prefill").median, span_id),
    )
    advice = (
        "Its prefix was new, evicted, or of another salt or adapter: keep the beginnings of prompts"
        " equal; more --kv-cache-bytes keeps prefixes longer."
    )
    return Finding("cold_prefix", cost_ns, text, False, advice, evidence)


def _long_prompt(case: Case, cost_ns: float, tokens: int, usual: float) -> Finding:
    took_ns, span_id = case.took_ns("prefill"), case.span_ids.get("prefill")
    text = f"its prompt had {tokens:,} tokens to compute, usually {usual:,.0f}"
    evidence = (
        amount("prompt tokens to compute", tokens, "tokens", usual, span_id),
        figure("prefill", took_ns, case.cohort.phase("prefill").median, span_id),
    )
    advice = "This is the work that it asked for: a shorter or a shared beginning costs less."
    return Finding("long_prompt", cost_ns, text, False, advice, evidence)


def judge_decode(case: Case) -> PhaseFindings:
    """From the first token to the engine's last."""
    phase, timeline = case.phases.get("decode"), case.timeline
    if phase is None or timeline is None or case.choice is None:
        return PhaseFindings(0.0, ())
    took_ns, tokens = float(case.took_ns("decode")), max(0, case.choice.completion_tokens - 1)
    known = are_known(case.steps, timeline.first_step, timeline.last_step)
    away_ns, found = preempted(case, timeline, phase.start_ns, phase.end_ns)
    costs = walk(case.steps, phase.start_ns, phase.end_ns, case.norm, case.own, takes_part=True)
    if not case.cohort.is_enough:
        most_ns = max(0.0, took_ns - away_ns - tokens * case.norm.step_ns)
        found += of_steps(case, costs, most_ns, "decode") if known else []
        return PhaseFindings(sum(finding.cost_ns for finding in found), found)
    token, usual = case.cohort.token, case.cohort.phase("decode")
    expected_ns = tokens * token.median
    noise_ns = max(LEAST_NS, NOISE_SHARE * expected_ns, 2.0 * token.spread * tokens)
    fault_ns = took_ns - expected_ns if took_ns - expected_ns > noise_ns else 0.0
    direct_ns = away_ns + costs.stall_ns + costs.gap_ns + costs.prompts_ns
    if direct_ns > max(LEAST_NS, NOISE_SHARE * expected_ns):  # seen in the steps themselves
        fault_ns = max(fault_ns, min(direct_ns, took_ns))
    if known:
        found += of_steps(case, costs, fault_ns - away_ns, "decode")
    length_ns = min(expected_ns, took_ns - fault_ns) - usual.median
    if tokens >= LONGER * case.cohort.tokens and length_ns > LEAST_NS:
        found.append(_long_output(case, length_ns, tokens + 1))
    else:
        length_ns = 0.0
    return PhaseFindings(fault_ns + length_ns, found)


def _long_output(case: Case, cost_ns: float, tokens: int) -> Finding:
    usual, token = case.cohort.tokens, case.cohort.token
    text = f"its answer had {tokens:,} tokens, usually {usual:,.0f}"
    mine_ns = case.took_ns("decode") / max(1, tokens - 1)
    span_id = case.span_ids.get("decode")
    evidence = (
        amount("output tokens", tokens, "tokens", usual, span_id),
        figure("time per token", mine_ns, token.median, span_id),
    )
    advice = "This is the work that it asked for: a smaller max_tokens bounds it."
    return Finding("long_output", cost_ns, text, False, advice, evidence)
