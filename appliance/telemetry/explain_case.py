"""One request to be explained: its phases, its figures, and what is usual. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from appliance.supervisor.admin import insight_schemas as schemas
from appliance.telemetry.cohort import cohort_member
from appliance.telemetry.evidence import CohortMember, StepFacts
from appliance.telemetry.evidence import Evidence as Facts
from appliance.telemetry.explain_cohort import Cohort
from appliance.telemetry.explain_steps import StepNorm, norm_of
from appliance.telemetry.phases import (
    Phase,
    chat_end_ns,
    chat_start_ns,
    choice_phases,
    front_phases,
)
from appliance.telemetry.records import ChoiceRecord, RequestRecord
from appliance.telemetry.spans import request_spans
from engine.wire.messages import Timeline

BUSY_NOISE = 0.05
"""An idle loop's timers are late by about this share of the time: the kernel's coarse timers."""
BUSY_NOISE_NS = 10_000_000


class Finding(NamedTuple):
    """One thing that cost time."""

    kind: schemas.CauseKind
    cost_ns: float
    text: str
    certain: bool
    """It was measured where it happened, not inferred from what others needed."""
    advice: str | None = None
    evidence: tuple[schemas.Evidence, ...] = ()


class PhaseFindings(NamedTuple):
    """What was found about one phase."""

    excess_ns: float
    """Beyond what is usual."""
    findings: Sequence[Finding]

    @property
    def explained_ns(self) -> float:
        """What the findings account for."""
        return sum(finding.cost_ns for finding in self.findings)


@dataclass(slots=True)
class Busy:
    """How long the gateway's loop was held up; phases take from it what they can prove."""

    left_ns: float

    def take(self, most_ns: float) -> float:
        """Take up to so much."""
        taken_ns = max(0.0, min(self.left_ns, most_ns))
        self.left_ns -= taken_ns
        return taken_ns


@dataclass(slots=True)
class Case:
    """All that the judges of the single phases look at."""

    facts: Facts
    record: RequestRecord
    member: CohortMember
    cohort: Cohort
    choice: ChoiceRecord | None
    """The one that ended last."""
    timeline: Timeline | None
    phases: Mapping[str, Phase]
    """`front`, then those of the choice, then `stream`, as far as it came."""
    norm: StepNorm
    own: Mapping[int, int]
    """Tokens of its prompt by step."""
    busy: Busy
    span_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    """By phase."""

    @property
    def steps(self) -> Sequence[StepFacts]:
        """Of its engine, while it was there."""
        return self.facts.steps

    def took_ns(self, phase: str) -> int:
        """Return how long a phase lasted; 0: it was not reached."""
        found = self.phases.get(phase)
        return 0 if found is None else found.end_ns - found.start_ns

    def excess_ns(self, phase: str) -> float:
        """Return how far a phase is beyond the usual."""
        return self.cohort.phase(phase).excess(self.took_ns(phase))


def case_of(facts: Facts) -> Case:
    """Put together what the judges need."""
    record = facts.record
    cohort = Cohort(facts.cohort)
    choice = max(record.choices, key=_end_ns, default=None)
    timeline = choice.timeline if choice is not None else None
    batch = timeline.max_batch if timeline is not None else 0
    steps = _steps_of(facts, choice)
    duration_ns = record.ended_ns - record.received_ns
    noise_ns = BUSY_NOISE * duration_ns + BUSY_NOISE_NS
    return Case(
        facts=facts,
        record=record,
        member=cohort_member(record, 0),
        cohort=cohort,
        choice=choice,
        timeline=timeline,
        phases=_phases(record, choice),
        norm=norm_of(
            steps,
            cohort.token.median,
            cohort.prompt_token_ns,
            cohort.batch,
            cohort.token_in_batch(batch) if batch else None,
        ),
        own={chunk.step: chunk.tokens for chunk in timeline.chunks} if timeline else {},
        busy=Busy(max(0.0, record.gateway_busy_ns - noise_ns)),
        span_ids=_span_ids(record),
    )


def _steps_of(facts: Facts, choice: ChoiceRecord | None) -> Sequence[StepFacts]:
    """The steps of the incarnation that answered."""
    if choice is None:
        return facts.steps
    who = (choice.engine_id, choice.engine_epoch)
    return [step for step in facts.steps if (step.engine_id, step.epoch) == who]


def _end_ns(choice: ChoiceRecord) -> float:
    ended_ns = choice.timeline.finished_ns if choice.timeline is not None else None
    return float("inf") if ended_ns is None else ended_ns


def _phases(record: RequestRecord, choice: ChoiceRecord | None) -> dict[str, Phase]:
    start_ns = chat_start_ns(record)
    if start_ns is None or record.chat_span_id is None:
        return {"front": Phase("front", record.received_ns, start_ns or record.ended_ns)}
    end_ns = chat_end_ns(record)
    phases = {"front": Phase("front", record.received_ns, start_ns)}
    of_choice = choice_phases(choice, start_ns, end_ns)
    phases |= {phase.name: phase for phase in of_choice}
    # with several choices the gateway may still be busy with them when the engine is done
    phases["stream"] = Phase("stream", of_choice[-1].end_ns, record.ended_ns)
    return phases


def front_parts(record: RequestRecord) -> dict[str, int]:
    """Return how long `auth`, `admission` and `tokenize` took."""
    return {phase.name: phase.end_ns - phase.start_ns for phase in front_phases(record)}


def _span_ids(record: RequestRecord) -> dict[str, str]:
    """Where each phase shows in the trace; the front is at its longest part."""
    found = {span.name: span.span_id for span in request_spans(record).spans}
    parts = front_parts(record)
    if parts:
        found["front"] = found[max(parts, key=parts.__getitem__)]
    found["request"] = record.span_id
    return found
