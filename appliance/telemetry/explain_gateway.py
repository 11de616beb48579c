"""What the gateway's phases cost beyond the usual: the front, the way to an engine, the answer."""

from appliance.supervisor.admin.insight_schemas import CauseKind
from appliance.telemetry.explain_case import Case, Finding, PhaseFindings, front_parts
from appliance.telemetry.explain_steps import walk
from appliance.telemetry.explain_words import against_text, amount, count_text, figure, time_text

DETOKENIZE_SHARE = 0.4
"""Of the time in which the answer came: more, and making text is what it waited for."""
LEAST_NS = 3e6
LONGER = 1.5

HELD: dict[str, tuple[CauseKind, str, str]] = {
    "asleep": (
        "asleep_engine",
        "waited {time} for its engine to wake",
        "Keep the engine awake while requests come (raise or switch off its idle time), or wake it"
        " ahead of them with `quarterdeck wake`.",
    ),
    "starting": (
        "engine_start",
        "waited {time} for its engine to start",
        "Send traffic only when /readyz says ready; a second engine covers the start of one.",
    ),
    "backoff": (
        "engine_died",
        "waited {time} for its engine to be started again",
        "See why it died with `quarterdeck events` and `quarterdeck postmortem`; a second engine"
        " takes over at once.",
    ),
    "adapter": (
        "adapter",
        "waited {time} for its adapter to be loaded",
        "Load the adapter ahead of its requests with `quarterdeck lora load`.",
    ),
}
HELD["waking"] = HELD["asleep"]
BUSY_ADVICE = (
    "The gateway's process had no time: see its CPU and its event-loop lag; run more gateways"
    " (--gateways) or give it a core."
)


def judge_front(case: Case) -> PhaseFindings:
    """Authentication, admission and tokenizing."""
    excess_ns = case.excess_ns("front")
    left_ns = excess_ns or (0.0 if case.cohort.is_enough else float(case.took_ns("front")))
    busy_ns = case.busy.take(left_ns)
    found = [_busy(case, busy_ns, "before it was sent to an engine")] if busy_ns else []
    left_ns = max(0.0, excess_ns - busy_ns)
    if left_ns > LEAST_NS:
        found += _front_parts(case, left_ns)
    return PhaseFindings(excess_ns or busy_ns, found)


def _front_parts(case: Case, left_ns: float) -> list[Finding]:
    """The size of the prompt, then tokenizing, then what came before it."""
    found: list[Finding] = []
    usual = case.cohort.phase("front")
    ratio = (
        case.record.prompt_tokens / case.cohort.prompt_tokens if case.cohort.prompt_tokens else 1
    )
    if ratio > LONGER:
        size_ns = min(left_ns, usual.median * (ratio - 1.0))
        text = f"its prompt of {case.record.prompt_tokens:,} tokens took longer to tokenize"
        found.append(Finding("long_prompt", size_ns, text, certain=False))
        left_ns -= size_ns
    parts = front_parts(case.record)
    tokenize_ns = min(left_ns, parts.get("tokenize", 0))
    if tokenize_ns > LEAST_NS:
        text = f"tokenizing took {time_text(parts['tokenize'])}"
        evidence = (figure(text, parts["tokenize"], usual.median, case.span_ids.get("tokenize")),)
        advice = "See the gateway's CPU; a first request also waits for the tokenizer to be loaded."
        found.append(Finding("tokenizer", tokenize_ns, text, False, advice, evidence))
    rest_ns = left_ns - tokenize_ns
    if rest_ns > LEAST_NS:
        before_ns = parts.get("auth", 0) + parts.get("admission", 0)
        text = f"{time_text(before_ns)} passed before it was admitted"
        evidence = (figure(text, before_ns, usual.median, case.span_ids.get("admission")),)
        advice = "A large body that arrives slowly counts here: see how fast the client sends it."
        found.append(Finding("admission", rest_ns, text, False, advice, evidence))
    return found


def judge_dispatch(case: Case) -> PhaseFindings:
    """From the tokenized prompt to the engine's waiting list."""
    phase = case.phases.get("dispatch")
    if phase is None:
        return PhaseFindings(0.0, ())
    took_ns = case.took_ns("dispatch")
    found: list[Finding] = []
    if case.record.requeues:
        found.append(_died(case, max(0.0, took_ns - case.cohort.phase("dispatch").median)))
    elif case.record.held_ns > LEAST_NS:
        found.append(_held(case, min(case.record.held_ns, took_ns)))
    excess_ns = max(case.excess_ns("dispatch"), sum(finding.cost_ns for finding in found))
    left_ns = excess_ns - sum(finding.cost_ns for finding in found)
    if left_ns > LEAST_NS and case.timeline is not None:  # else it is the engine's whole time
        found += _on_the_way(case, left_ns)
    return PhaseFindings(excess_ns, found)


def _died(case: Case, cost_ns: float) -> Finding:
    times = count_text(case.record.requeues, "time")
    text = f"its engine died and it was sent again ({times}), which took {time_text(cost_ns)}"
    evidence = [
        amount(f"sent again {times}", case.record.requeues, "times"),
        figure("from its first dispatch to the last", cost_ns, None, case.span_ids.get("dispatch")),
    ]
    if case.record.held_ns:
        evidence.append(figure("of it waiting for an engine", case.record.held_ns))
    return Finding("engine_died", cost_ns, text, True, HELD["backoff"][2], tuple(evidence))


def _held(case: Case, cost_ns: float) -> Finding:
    reason = case.record.held_for or "starting"
    if reason in ("starting", "unclear") and _has_died(case):
        reason = "backoff"
    kind, text, advice = HELD.get(reason, HELD["starting"])
    usual_ns = case.cohort.phase("dispatch").median
    said = text.format(time=time_text(cost_ns))
    shown = figure(said, cost_ns, usual_ns, case.span_ids.get("dispatch"))
    return Finding(kind, cost_ns, said, True, advice, (shown,))


def _has_died(case: Case) -> bool:
    """Whether its engine starts, or cannot be reached, because it died."""
    engines = {choice.engine_id for choice in case.record.choices}
    events = case.facts.events
    return any(kind == "engine.died" and subject in engines for _, kind, subject, _ in events)


def _on_the_way(case: Case, left_ns: float) -> list[Finding]:
    """An engine in a step does not take messages; else the gateway or the socket was slow."""
    phase, found = case.phases["dispatch"], list[Finding]()
    busy_ns = case.busy.take(left_ns)
    if busy_ns > LEAST_NS:
        found.append(_busy(case, busy_ns, "on its way to the engine"))
        left_ns -= busy_ns
    costs = walk(case.steps, phase.start_ns, phase.end_ns, case.norm, {}, takes_part=False)
    prompts_ns = min(left_ns, costs.prompts_ns)
    if prompts_ns > LEAST_NS:
        text = f"{costs.prompt_tokens:,} prompt tokens of others kept the engine from taking it"
        shown = amount(text, costs.prompt_tokens, "tokens", span_id=case.span_ids.get("dispatch"))
        found.append(Finding("long_prefill_beside", prompts_ns, text, False, None, (shown,)))
        left_ns -= prompts_ns
    slow_ns = min(left_ns, costs.slow_ns)
    if slow_ns > LEAST_NS:
        text = f"the engine was in a step that took {time_text(costs.worst_ns)} too long"
        shown = figure(text, costs.worst_ns, case.norm.step_ns)
        found.append(Finding("slow_steps", slow_ns, text, False, None, (shown,)))
        left_ns -= slow_ns
    if left_ns > LEAST_NS and case.cohort.is_enough:
        found.append(_wire(case, left_ns))
    return found


def _wire(case: Case, cost_ns: float) -> Finding:
    took_ns, usual_ns = case.took_ns("dispatch"), case.cohort.phase("dispatch").median
    text = f"its message took {time_text(took_ns)} to the engine{against_text(took_ns, usual_ns)}"
    shown = figure(text, took_ns, usual_ns, case.span_ids.get("dispatch"))
    advice = (
        "The engine was in no step and did not take it: see its CPU and whether it was stopped."
    )
    return Finding("wire", cost_ns, text, False, advice, (shown,))


def judge_stream(case: Case) -> PhaseFindings:
    """From the engine's last token to the last byte of the answer."""
    record, took_ns = case.record, case.took_ns("stream")
    usual = case.cohort.phase("stream")
    excess_ns = case.excess_ns("stream")
    most_ns = left_ns = excess_ns if case.cohort.is_enough else float(took_ns)
    found: list[Finding] = []
    # a process that stood still inside a send was not held up by its client
    blocked_ns = min(left_ns, max(0.0, record.send_blocked_ns - case.busy.left_ns))
    if blocked_ns > LEAST_NS:
        found.append(_slow_client(case, blocked_ns))
        left_ns -= blocked_ns
    if record.detokenize_ns >= DETOKENIZE_SHARE * (case.took_ns("decode") + took_ns):
        cost_ns = min(left_ns, record.detokenize_ns)
        if cost_ns > LEAST_NS:
            found.append(_detokenizer(case, cost_ns))
            left_ns -= cost_ns
    found += _late(case, left_ns)
    explained_ns = sum(finding.cost_ns for finding in found)
    if not case.cohort.is_enough:
        return PhaseFindings(explained_ns, found)
    return PhaseFindings(min(most_ns, max(0.0, took_ns - usual.median)), found)


def _late(case: Case, left_ns: float) -> list[Finding]:
    """Outputs lay in the gateway, or were late there."""
    record, found = case.record, list[Finding]()
    waited_ns = max(0, record.collected_ns - record.send_blocked_ns) / max(1, len(record.choices))
    busy_ns = case.busy.take(left_ns)
    cost_ns = min(left_ns, busy_ns + waited_ns)
    if cost_ns > LEAST_NS:
        found.append(_busy(case, cost_ns, "while its answer was made"))
        left_ns -= cost_ns
    late_ns = min(left_ns, record.reply_transit_ns)
    if late_ns > LEAST_NS:
        text = f"its outputs took up to {time_text(late_ns)} from the engine to the gateway"
        shown = figure("transit of its outputs, summed up", record.reply_transit_ns)
        found.append(Finding("wire", late_ns, text, False, None, (shown,)))
    return found


def _slow_client(case: Case, cost_ns: float) -> Finding:
    record, span_id = case.record, case.span_ids.get("stream")
    text = f"the client did not read for {time_text(record.send_blocked_ns)}"
    evidence = (
        figure(
            "sends of the answer that the client held up", record.send_blocked_ns, None, span_id
        ),
        figure(
            "from the engine's last token to the last byte",
            case.took_ns("stream"),
            case.cohort.phase("stream").median,
            span_id,
        ),
    )
    advice = "The answer was ready: look at the client and at the network and proxies before it."
    return Finding("slow_client", cost_ns, text, True, advice, evidence)


def _detokenizer(case: Case, cost_ns: float) -> Finding:
    record = case.record
    text = f"making text of {record.completion_tokens:,} tokens took the gateway" + (
        f" {time_text(record.detokenize_ns)}"
    )
    shown = figure(text, record.detokenize_ns, None, case.span_ids.get("stream"))
    advice = "Fewer logprobs, stop strings and choices make less work; or run more gateways."
    return Finding("detokenizer", cost_ns, text, True, advice, (shown,))


def _busy(case: Case, cost_ns: float, when: str) -> Finding:
    record = case.record
    text = f"the gateway was busy with other things {when}, for {time_text(cost_ns)}"
    evidence = (
        figure("lateness of the gateway's own timers, summed up", record.gateway_busy_ns),
        figure("its outputs lay in the gateway, summed up", record.collected_ns),
        figure("the longest of these waits", record.max_collected_ns),
    )
    return Finding("collector", cost_ns, text, True, BUSY_ADVICE, evidence)
