"""What is said of an engine's last steps when it has died: short texts for people. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.supervisor.admin.schemas import FlightReport, FlightStep

NUM_IDS = 8
NUM_EVENTS = 5
NUM_LINES = 3
_STAGES = {
    "planned": "while its batch was built",
    "built": "in the forward pass",
    "forward": "while it sampled",
    "sampled": "while its outputs were sent",
    "done": "after it was done",
}


@dataclass(frozen=True, slots=True)
class Crash:
    """What a recording tells of an engine's end."""

    moment: str | None
    """Where it was, in half a sentence; None: it never made a step."""
    text: str
    """All that is of use, on one line."""


def crash_of(report: FlightReport) -> Crash:
    """Say what a recording tells."""
    return Crash(last_moment(report), postmortem(report))


def last_moment(report: FlightReport) -> str | None:
    """Say in half a sentence where the engine was; None when it never made a step."""
    if not report.steps:
        return None
    step = report.steps[0]
    if step.finished:
        return f"step {step.step} was done, no other had begun"
    return f"in step {step.step} {_STAGES[step.stage]}, with {requests_of(step)}"


def requests_of(step: FlightStep, limit: int = NUM_IDS) -> str:
    """Name the requests of a step's batch, as many as are of use."""
    named = step.request_ids[:limit]
    more = step.requests - len(named)
    noun = "request" if step.requests == 1 else "requests"
    tail = f" and {more} more" if more > 0 else ""
    return f"{step.requests} {noun}: {', '.join(named)}{tail}"


def postmortem(report: FlightReport) -> str:
    """Say what is known of an engine's end, on one line."""
    parts = [f"epoch {report.epoch}: {report.last_exit or 'it ended'}"]
    if report.steps:
        step = report.steps[0]
        parts.append(
            f"last step {step.step} ({step.stage}): {step.prefill_tokens} prompt and"
            f" {step.decode_tokens} decode tokens, {step.used_blocks} KV blocks,"
            f" {step.waiting} waiting; {requests_of(step)}"
        )
    else:
        parts.append("it made no step")
    parts += _listed("events", [f"{e.kind} {e.text}" for e in report.events[:NUM_EVENTS]])
    parts += _listed("log", [line for line in report.log_tail if line.strip()][-NUM_LINES:])
    return "; ".join(parts)


def _listed(title: str, items: Sequence[str]) -> list[str]:
    return [f"{title}: {' | '.join(items)}"] if items else []
