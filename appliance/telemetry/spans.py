"""Builds the spans of a request from its record: the HTTP server span and all phases below it.

Attributes follow the HTTP and GenAI conventions. The spans of the messages are built from hops
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
from appliance.telemetry.request_facts import duration_ns, preemptions, ttft_ns
from appliance.telemetry.request_ids import request_key
from appliance.telemetry.span_data import Attributes, AttributeValue, SpanData, present
from engine.wire.header import new_span_id
from engine.wire.messages import Timeline

SERVER_ERROR = 500
RESPONSE_PREFIXES = {"chat": "chatcmpl-", "text_completion": "cmpl-"}


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
        span = SpanData(
            trace_id=self._record.trace_id,
            span_id=span_id or new_span_id(),
            parent_id=parent_id,
            name=phase.name,
            kind="internal",
            process=process or self._record.gateway,
            start_ns=phase.start_ns,
            end_ns=phase.end_ns,
            attributes=attributes,
            flags=self._record.flags,
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
            _server_attributes(record),
            span_id=record.span_id,
        )
        span.kind = "server"
        span.error = self._error
        if span.error is None and record.status >= SERVER_ERROR:
            span.error = record.error_code or str(record.status)

    def _generation(self, start_ns: int) -> None:
        record = self._record
        if record.chat_span_id is None:
            self._phase(Phase("stream", start_ns, record.ended_ns), record.span_id)
            return
        end_ns = chat_end_ns(record)
        chat = self._add(
            Phase(f"{record.operation} {record.model or 'other'}", start_ns, end_ns),
            record.span_id,
            _chat_attributes(record),
            span_id=record.chat_span_id,
        )
        chat.error = self._error
        for choice in record.choices or (None,):
            self._choice(choice, chat)
        if end_ns < record.ended_ns or record.last_token_ns is not None:
            attributes: Attributes = {
                "quarterdeck.stream.frames": record.frames,
                "quarterdeck.stream.detokenize_ns": record.detokenize_ns,
            }
            self._phase(Phase("stream", end_ns, record.ended_ns), record.span_id, attributes)

    def _choice(self, choice: ChoiceRecord | None, chat: SpanData) -> None:
        phases = choice_phases(choice, chat.start_ns, chat.end_ns)
        parent_id = chat.span_id
        if choice is not None and len(self._record.choices) > 1:
            whole = Phase(f"choice {choice.index}", chat.start_ns, phases[-1].end_ns)
            parent_id = self._add(whole, chat.span_id, _choice_attributes(choice)).span_id
        for phase in phases:
            in_engine = choice is not None and phase.name != "dispatch"
            span = self._phase(
                phase,
                parent_id,
                self._phase_attributes(phase, choice),
                choice.engine_id if choice is not None and in_engine else None,
            )
            if choice is None:
                continue
            if phase.name == "dispatch":
                self._built.dispatch_of[choice.send_span_id] = span.span_id
            elif phase.name == "prefill" and choice.timeline is not None:
                self._chunks(choice.timeline, span)
        if self._error is not None:
            self._built.spans[-1].error = self._error

    def _chunks(self, timeline: Timeline, prefill: SpanData) -> None:
        """A span for each step's share of a prompt that took several."""
        if len(timeline.chunks) < 2:  # noqa: PLR2004 - one chunk is the phase itself
            return
        for chunk in timeline.chunks:
            start_ns = min(max(chunk.start_ns, prefill.start_ns), prefill.end_ns)
            end_ns = min(max(chunk.end_ns, start_ns), prefill.end_ns)
            self._add(
                Phase("prefill chunk", start_ns, end_ns),
                prefill.span_id,
                {"quarterdeck.tokens": chunk.tokens, names.STEP: chunk.step},
                process=prefill.process,
            )

    def _phase_attributes(self, phase: Phase, choice: ChoiceRecord | None) -> Attributes:
        if phase.name == "dispatch":
            return {"quarterdeck.held_ns": self._record.held_ns} if self._record.held_ns else {}
        timeline = choice.timeline if choice is not None else None
        if choice is None or timeline is None:
            return {}
        attributes: dict[str, AttributeValue | None] = {
            names.ENGINE_REQUEST_ID: choice.engine_request_id,
            names.ENGINE_ID: choice.engine_id,
        }
        if phase.name == "prefill":
            attributes |= {
                "quarterdeck.tokens": choice.prompt_tokens - choice.cached_tokens,
                "quarterdeck.prefill.chunks": len(timeline.chunks),
                "quarterdeck.prefill.cached_tokens": choice.cached_tokens,
                "quarterdeck.first_step": timeline.first_step,
            }
        elif phase.name == "decode":
            attributes |= {
                "quarterdeck.tokens": choice.completion_tokens,
                "quarterdeck.first_step": timeline.chunks[-1].step if timeline.chunks else None,
                "quarterdeck.last_step": timeline.last_step,
                "quarterdeck.max_batch": timeline.max_batch,
                "quarterdeck.preemptions": len(timeline.preempted_ns),
                "quarterdeck.drafted_tokens": timeline.drafted_tokens or None,
                "quarterdeck.accepted_tokens": timeline.accepted_tokens or None,
            }
        return present(attributes)


def _server_attributes(record: RequestRecord) -> Attributes:
    failed = record.outcome is Outcome.FAILED or record.status >= SERVER_ERROR
    return present(
        {
            "http.request.method": record.method,
            "http.route": record.route,
            "url.path": record.route,
            "url.scheme": "http",
            "http.response.status_code": record.status,
            names.ERROR_TYPE: (record.error_code or str(record.status)) if failed else None,
            "quarterdeck.error_code": record.error_code,
            names.REQUEST_ID: record.request_id,
            names.OUTCOME: record.outcome.value,
            "quarterdeck.client_request.id": record.client_request_id,
            "quarterdeck.key.id": record.key_id,
            "quarterdeck.requeues": record.requeues or None,
            "quarterdeck.preemptions": preemptions(record) or None,
            "quarterdeck.duration_ns": duration_ns(record),
        }
    )


def _chat_attributes(record: RequestRecord) -> Attributes:
    first_ns = ttft_ns(record)
    reasons = tuple(c.finish_reason for c in record.choices if c.finish_reason is not None)
    prefix = RESPONSE_PREFIXES.get(record.operation)
    return present(
        {
            "gen_ai.operation.name": record.operation,
            "gen_ai.provider.name": names.PROVIDER,
            "gen_ai.request.model": record.model,
            "gen_ai.response.model": record.model,
            "gen_ai.response.id": prefix and prefix + request_key(record.request_id),
            "gen_ai.request.max_tokens": record.max_tokens,
            "gen_ai.request.temperature": record.temperature,
            "gen_ai.request.top_p": record.top_p,
            "gen_ai.request.stream": record.stream,
            "gen_ai.request.choice.count": len(record.choices) if len(record.choices) > 1 else None,
            "gen_ai.response.finish_reasons": reasons or None,
            "gen_ai.response.time_to_first_chunk": None if first_ns is None else first_ns / 1e9,
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
            names.ERROR_TYPE: record.error_code if record.outcome is Outcome.FAILED else None,
        }
    )


def _choice_attributes(choice: ChoiceRecord) -> Attributes:
    return present(
        {
            "quarterdeck.choice": choice.index,
            names.ENGINE_REQUEST_ID: choice.engine_request_id,
            names.ENGINE_ID: choice.engine_id,
            names.ENGINE_EPOCH: choice.engine_epoch,
            "quarterdeck.finish_reason": choice.finish_reason,
            "gen_ai.usage.output_tokens": choice.completion_tokens,
        }
    )
