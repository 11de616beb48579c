"""What the trace store keeps: facts, not spans. Spans are built when somebody reads them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from appliance.supervisor.admin.schemas import JournalEvent
from appliance.telemetry.cohort import cohort_member
from appliance.telemetry.evidence import CohortMember, StepFacts
from appliance.telemetry.hop_join import Hop
from appliance.telemetry.records import RequestRecord
from appliance.telemetry.request_ids import request_key
from appliance.telemetry.span_data import SpanData
from engine.wire.hops import StepRecord


class StepChunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one engine reported of its steps within one flush: one row of the file."""

    steps: tuple[StepRecord, ...]
    outputs: tuple[Hop, ...]
    """The `EngineOutputs` of steps, these or earlier ones."""


class Loss(NamedTuple):
    """Records of a process went missing in this time; readings."""

    process: str
    stage: str
    since_ns: int
    until_ns: int
    dropped: int


class StoredRequest(NamedTuple):
    """A row of `requests`, without its record."""

    key: str
    """What all forms of its id share."""
    trace_id: str
    received_unix_ns: int
    model: str | None
    route: str
    key_id: str | None
    engine: str | None
    name: str
    headline: str
    offset_ns: int
    """Of the run that wrote it: what makes its readings Unix time."""
    member: CohortMember


class StoredTrace(NamedTuple):
    """All facts about one request."""

    request: StoredRequest
    record: RequestRecord
    hops: list[Hop]
    """Messages in its trace."""
    outputs: list[Hop]
    """Messages of steps that carried something for it."""
    spans: list[SpanData]
    """Others of its trace."""
    is_alone: bool
    """No other request is in its trace."""
    lost_records: bool
    """Records of its processes were lost while it ran."""


@dataclass(slots=True)
class Facts:
    """A batch on its way into the file."""

    steps: list[StepRecord] = field(default_factory=list)
    outputs: list[Hop] = field(default_factory=list)
    hops: list[Hop] = field(default_factory=list)
    spans: list[SpanData] = field(default_factory=list)
    requests: list[tuple[RequestRecord, str]] = field(default_factory=list)
    """Each with its headline."""
    events: list[JournalEvent] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)

    def __len__(self) -> int:
        return (
            len(self.steps)
            + len(self.outputs)
            + len(self.hops)
            + len(self.spans)
            + len(self.requests)
            + len(self.events)
            + len(self.losses)
        )


def stored_request(record: RequestRecord, headline: str, offset_ns: int) -> StoredRequest:
    """Return the row of an ended request."""
    return StoredRequest(
        key=request_key(record.request_id),
        trace_id=record.trace_id,
        received_unix_ns=record.received_ns + offset_ns,
        model=record.model,
        route=record.route,
        key_id=record.key_id,
        engine=record.choices[-1].engine_id if record.choices else None,
        name=f"{record.method} {record.route}",
        headline=headline,
        offset_ns=offset_ns,
        member=cohort_member(record, offset_ns),
    )


def step_facts(step: StepRecord) -> StepFacts:
    """Return what an explanation reads of a step."""
    return StepFacts(
        step.engine_id,
        step.epoch,
        step.step,
        step.start_ns,
        step.scheduled_ns,
        step.built_ns,
        step.forwarded_ns,
        step.executed_ns,
        step.end_ns,
        step.prefill_tokens,
        step.decode_tokens,
        step.requests,
        step.used_blocks,
        step.preempted,
        step.waiting,
        step.rows,
    )


def serves(hop: Hop, key: str) -> str | None:
    """Return which choice of a request a message serves, for example `-1`; None: it does not."""
    for link in hop.sent.links if hop.sent is not None else ():
        start = link.request_id.find(key)
        if start >= 0:
            return link.request_id[start + len(key) :]
    return None


def bounds_ns(steps: Sequence[StepRecord], outputs: Sequence[Hop]) -> tuple[int, int]:
    """Return the first and the last reading of a chunk."""
    sent = [hop.sent.start_ns for hop in outputs if hop.sent is not None]
    done = [hop.received.done_ns for hop in outputs if hop.received is not None]
    starts = [*(step.start_ns for step in steps), *sent, *done]
    ends = [*(step.end_ns for step in steps), *sent, *done]
    return min(starts), max(ends)
