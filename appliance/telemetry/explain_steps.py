"""What happened in an engine's steps during a span of a request: whose work took the time. Pure.

A step's time beyond the usual is given to what is known to lengthen steps, each up to a bound that
follows from its amount: prompts of others, a larger batch. What is left over, no work explains.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from appliance.telemetry.evidence import StepFacts

PROMPT_SLACK: Final = 3.0
"""A prompt's tokens may take so many times the usual before something else is to blame."""
OWN_SLACK: Final = 2.0
JITTER: Final = 0.2
"""Of a step's expected time: less is noise."""
LEAST_GAP_NS: Final = 3_000_000
"""The engine takes messages and sends outputs between steps; longer, it did something else."""
MIN_PROMPT_STEPS: Final = 5
MIN_PROMPT_TOKENS: Final = 16
KNOWN_SHARE: Final = 0.9
STALL_RATIO: Final = 8.0
STALL_NS: Final = 50e6
"""A step that is longer by both has stood still."""


class StepNorm(NamedTuple):
    """What is usual of a step."""

    step_ns: float
    """With decodes alone."""
    prompt_token_ns: float
    batch: float
    """0: not known."""
    crowd_ns: float | None
    """Step of a batch as large as this request's, where others had such; None: not known."""


@dataclass(slots=True)
class StepCosts:
    """Nanoseconds beyond the usual, by what took them, and the figures that show it."""

    prompts_ns: float = 0.0
    prompt_tokens: int = 0
    """Of others."""
    prompt_steps: int = 0
    crowd_ns: float = 0.0
    max_batch: int = 0
    slow_ns: float = 0.0
    slow_steps: int = 0
    worst_step: int | None = None
    worst_ns: float = 0.0
    stall_ns: float = 0.0
    """Of `slow_ns`, in steps that are beyond doubt."""
    gap_ns: float = 0.0
    foreign_ns: float = 0.0
    """Whole steps in which the request had no share, whatever they did."""
    requests: int = 0
    """Of the largest batch."""


def norm_of(
    steps: Sequence[StepFacts],
    usual_step_ns: float,
    usual_prompt_ns: float | None,
    batch: float,
    crowd_ns: float | None,
) -> StepNorm:
    """Return what is usual; where the cohort does not say, the steps themselves do."""
    step_ns = usual_step_ns or _plain_step_ns(steps)
    rates = [
        max(0.0, _took_ns(step) - step_ns) / step.prefill_tokens
        for step in steps
        if step.prefill_tokens >= MIN_PROMPT_TOKENS
    ]
    if len(rates) >= MIN_PROMPT_STEPS:
        prompt_ns = statistics.median(rates)
    else:
        prompt_ns = step_ns / MIN_PROMPT_TOKENS if usual_prompt_ns is None else usual_prompt_ns
    return StepNorm(step_ns, prompt_ns, batch, crowd_ns)


def are_known(steps: Sequence[StepFacts], first: int | None, last: int | None) -> bool:
    """Whether nearly all steps between two numbers are there."""
    if first is None or last is None:
        return True
    found = sum(first <= step.step <= last for step in steps)
    return found >= KNOWN_SHARE * (last - first + 1)


def walk(
    steps: Sequence[StepFacts],
    start_ns: int,
    end_ns: int,
    norm: StepNorm,
    own: Mapping[int, int],
    *,
    takes_part: bool,
) -> StepCosts:
    """Go through the steps between two times.

    Args:
        steps: In order.
        start_ns: From here on.
        end_ns: Up to here.
        norm: What is usual.
        own: Prompt tokens of the request by step.
        takes_part: Whether the request decodes: then every step is its own, else only those in
            `own` are.
    """
    costs, before = StepCosts(), None
    for step in steps:
        if step.end_ns <= start_ns or step.start_ns >= end_ns:
            continue
        if before is not None and step.step == before.step + 1:
            gap_ns = step.start_ns - before.end_ns
            costs.gap_ns += gap_ns if gap_ns > LEAST_GAP_NS else 0
        before = step
        took_ns = min(step.end_ns, end_ns) - max(step.start_ns, start_ns)
        if start_ns >= step.executed_ns:  # its work was done: only what came after is inside
            costs.gap_ns += took_ns if took_ns > LEAST_GAP_NS else 0
            continue
        is_own = takes_part or step.step in own
        _add(costs, step, took_ns, norm, own.get(step.step, 0) if is_own else None)
    return costs


def _add(
    costs: StepCosts, step: StepFacts, took_ns: float, norm: StepNorm, own: int | None
) -> None:
    """Account for one step; `own`: tokens of the request's prompt, None: it had no share."""
    costs.requests = max(costs.requests, step.requests)
    foreign = step.prefill_tokens - (own or 0)
    expected_ns = norm.step_ns + OWN_SLACK * (own or 0) * norm.prompt_token_ns
    if own is None:
        costs.foreign_ns += took_ns
        expected_ns = 0.0
    over_ns = took_ns - expected_ns
    if foreign > 0:
        costs.prompt_tokens += foreign
        costs.prompt_steps += 1
        bound_ns = PROMPT_SLACK * foreign * norm.prompt_token_ns
        given_ns = max(0.0, min(over_ns, bound_ns + (norm.step_ns if own is None else 0.0)))
        costs.prompts_ns += given_ns
        over_ns -= given_ns
    crowd_ns = max(0.0, min(over_ns, _crowd_ns(step, norm)))
    if crowd_ns:
        costs.crowd_ns += crowd_ns
        costs.max_batch = max(costs.max_batch, step.requests)
        over_ns -= crowd_ns
    if own is None:  # a step of others lasts as long as it does, unless it was far too long
        over_ns -= norm.step_ns * 2
    if over_ns > JITTER * max(expected_ns, norm.step_ns):
        _add_slow(costs, step, over_ns)
        if over_ns > max(STALL_NS, STALL_RATIO * max(expected_ns, norm.step_ns)):
            costs.stall_ns += over_ns


def _add_slow(costs: StepCosts, step: StepFacts, over_ns: float) -> None:
    costs.slow_ns += over_ns
    costs.slow_steps += 1
    if over_ns > costs.worst_ns:
        costs.worst_ns, costs.worst_step = over_ns, step.step


def _crowd_ns(step: StepFacts, norm: StepNorm) -> float:
    """How much a batch larger than usual may lengthen a step."""
    if not norm.batch or step.requests < 1.5 * norm.batch:
        return 0.0
    if norm.crowd_ns is not None:
        return max(0.0, norm.crowd_ns - norm.step_ns)
    return norm.step_ns * (step.requests / norm.batch - 1.0)


def _plain_step_ns(steps: Sequence[StepFacts]) -> float:
    plain = [_took_ns(step) for step in steps if not step.prefill_tokens]
    return statistics.median(plain or [_took_ns(step) for step in steps] or [0.0])


def _took_ns(step: StepFacts) -> float:
    return step.end_ns - step.start_ns
