"""What an explanation is made from: the facts about one request and about those around it.

The trace store collects it (`TraceStore.evidence`), `appliance.telemetry.explain` reads it. Times
are `engine.clock` readings of the hub's run unless the name says `unix`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import NamedTuple

from appliance.supervisor.admin.schemas import JournalEvent
from appliance.telemetry.records import RequestRecord


class CohortMember(NamedTuple):
    """An ended request of the same model and route; None: it has no such phase."""

    request: str
    ended_unix_ns: int
    outcome: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    duration_ms: float
    ttft_ms: float | None
    front_ms: float
    """Arrival to the end of `tokenize`."""
    dispatch_ms: float | None
    queue_ms: float | None
    prefill_ms: float | None
    decode_ms: float | None
    stream_ms: float | None
    tpot_ms: float | None
    max_batch: int = 0
    """Most requests that shared a step with it; 0: not known."""


class StepFacts(NamedTuple):
    """One scheduler step of an engine."""

    engine_id: str
    epoch: int
    step: int
    start_ns: int
    scheduled_ns: int
    built_ns: int
    forwarded_ns: int
    executed_ns: int
    end_ns: int
    prefill_tokens: int
    decode_tokens: int
    requests: int
    used_blocks: int
    preempted: int
    waiting: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known about one ended request."""

    record: RequestRecord
    cohort: Sequence[CohortMember]
    """Newest first, at most 1,000, of the hour before the request ended; without itself."""
    steps: Sequence[StepFacts]
    """Of its engine, between its dispatch and its end, in order; at most 20,000."""
    events: Sequence[tuple[int, str, str, str]] = field(default_factory=tuple)
    """(reading, kind, subject, text) of the journal while it ran."""
    complete: bool = True
    """No record of its time was dropped."""


class MomentRequest(NamedTuple):
    """A request that ran at the moment asked for."""

    member: CohortMember
    model: str | None
    key_id: str | None
    engine: str | None
    headline: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentFacts:
    """All that is known about a span of time; `TraceStore.moment_facts` collects it."""

    since_unix_ns: int
    until_unix_ns: int
    offset_unix_ns: int
    """Added to a reading in `steps` to make it Unix time."""
    requests: Sequence[MomentRequest]
    """Those that overlap the time, newest first; at most 5,000."""
    steps: Sequence[StepFacts]
    """Of all engines, in order; at most 50,000."""
    events: Sequence[JournalEvent]
    """Of the journal, newest first; at most 500."""
    hour_ttft_ms: Sequence[float]
    """Of the requests that ended in the hour before; at most 5,000."""
    complete: bool = True
    """No record of that time was dropped."""
    zone: tzinfo = UTC
    """In which the one who asks reads a clock."""
