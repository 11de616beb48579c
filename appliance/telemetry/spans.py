"""Builds the spans of a request from its record: the HTTP server span and all phases below it.

The same record gives the same ids. The spans of the messages are built from hops
(`message_spans`); those of its `AddRequest`s belong under the `dispatch` phases made here.
"""

from dataclasses import dataclass, field

from appliance.telemetry import names
from appliance.telemetry.phases import (
    Phase,
    chat_end_ns,
    chat_start_ns,
    choice_phases,
    front_phases,
)
from appliance.telemetry.records import ChoiceRecord, Outcome, RequestRecord
from appliance.telemetry.request_facts import has_failed
from appliance.telemetry.span_attributes import (
    chat_attributes,
    choice_attributes,
    phase_attributes,
    server_attributes,
    stream_attributes,
)
from appliance.telemetry.span_data import Attributes, SpanData
from appliance.telemetry.span_ids import derived_span_id
from engine.wire.messages import Timeline


@dataclass(slots=True)
class RequestSpans:
    """The spans of one request, parents before children."""

    spans: list[SpanData] = field(default_factory=list)
    dispatch_of: dict[str, str] = field(default_factory=dict)
    """Span id of the `dispatch` phase by the span id of its `AddRequest`'s send."""


def request_spans(record: RequestRecord) -> RequestSpans:
    """Build all spans of an ended request."""
    return _Builder(record).build()


class _Builder:
    def __init__(self, record: RequestRecord) -> None:
        self._record = record
        self._built = RequestSpans()
        self._error = record.error_code or "error" if record.outcome is Outcome.FAILED else None

    def build(self) -> RequestSpans:
        self._server()
        for phase in front_phases(self._record):
            self._phase(phase, self._record.span_id)
        start_ns = chat_start_ns(self._record)
        if start_ns is not None:
            self._generation(start_ns)
        return self._built

    def _add(
        self,
        phase: Phase,
        parent_id: str | None,
        attributes: Attributes,
        span_id: str | None = None,
        process: str | None = None,
    ) -> SpanData:
        record, place = self._record, len(self._built.spans)
        span = SpanData(
            trace_id=record.trace_id,
            span_id=span_id or derived_span_id(record.span_id, phase.name, str(place)),
            parent_id=parent_id,
            name=phase.name,
            kind="internal",
            process=process or record.gateway,
            start_ns=phase.start_ns,
            end_ns=phase.end_ns,
            attributes=attributes,
            flags=record.flags,
        )
        self._built.spans.append(span)
        return span

    def _phase(
        self,
        phase: Phase,
        parent_id: str,
        attributes: Attributes | None = None,
        process: str | None = None,
    ) -> SpanData:
        marked: Attributes = {names.PHASE: phase.name, **(attributes or {})}
        return self._add(phase, parent_id, marked, process=process)

    def _server(self) -> None:
        record = self._record
        name = f"{record.method} {record.route}"
        span = self._add(
            Phase(name, record.received_ns, record.ended_ns),
            record.parent_span_id,
            server_attributes(record),
            span_id=record.span_id,
        )
        span.kind = "server"
        if has_failed(record):
            span.error = self._error or record.error_code or str(record.status)

    def _generation(self, start_ns: int) -> None:
        record = self._record
        if record.chat_span_id is None:
            self._phase(Phase("stream", start_ns, record.ended_ns), record.span_id)
            return
        end_ns = chat_end_ns(record)
        chat = self._add(
            Phase(f"{record.operation} {record.model or 'other'}", start_ns, end_ns),
            record.span_id,
            chat_attributes(record),
            span_id=record.chat_span_id,
        )
        chat.error = self._error
        for choice in record.choices or (None,):
            self._choice(choice, chat)
        if end_ns < record.ended_ns or record.last_token_ns is not None:
            phase = Phase("stream", end_ns, record.ended_ns)
            self._phase(phase, record.span_id, stream_attributes(record))

    def _choice(self, choice: ChoiceRecord | None, chat: SpanData) -> None:
        phases = choice_phases(choice, chat.start_ns, chat.end_ns)
        parent_id = chat.span_id
        if choice is not None and len(self._record.choices) > 1:
            whole = Phase(f"choice {choice.index}", chat.start_ns, phases[-1].end_ns)
            parent_id = self._add(whole, chat.span_id, choice_attributes(choice)).span_id
        spans = [self._choice_phase(phase, parent_id, choice) for phase in phases]
        if self._error is not None:
            spans[-1].error = spans[-1].attributes[names.ERROR_TYPE] = self._error

    def _choice_phase(self, phase: Phase, parent_id: str, choice: ChoiceRecord | None) -> SpanData:
        attributes = phase_attributes(phase.name, self._record, choice)
        if choice is None:
            return self._phase(phase, parent_id, attributes)
        if phase.name == "dispatch":
            span = self._phase(phase, parent_id, attributes)
            self._built.dispatch_of[choice.send_span_id] = span.span_id
            return span
        span = self._phase(phase, parent_id, attributes, choice.engine_id)
        if choice.timeline is not None:
            self._inside(choice.timeline, span)
        return span

    def _inside(self, timeline: Timeline, phase: SpanData) -> None:
        """Spans for each step's share of a prompt that took several, and for each preemption."""
        if phase.name == "prefill" and len(timeline.chunks) > 1:
            for chunk in timeline.chunks:
                told: Attributes = {names.TOKENS: chunk.tokens, names.STEP: chunk.step}
                self._part("prefill chunk", phase, (chunk.start_ns, chunk.end_ns), told)
        resumed = (*timeline.resumed_ns, *([phase.end_ns] * len(timeline.preempted_ns)))
        for start_ns, end_ns in zip(timeline.preempted_ns, resumed, strict=False):
            if phase.name != "queue" and phase.start_ns <= start_ns < phase.end_ns:
                self._part("preempted", phase, (start_ns, end_ns), {})

    def _part(
        self, name: str, phase: SpanData, bounds: tuple[int, int], attributes: Attributes
    ) -> None:
        start_ns = min(max(bounds[0], phase.start_ns), phase.end_ns)
        end_ns = min(max(bounds[1], start_ns), phase.end_ns)
        part = Phase(name, start_ns, end_ns)
        self._add(part, phase.span_id, attributes, process=phase.process)
