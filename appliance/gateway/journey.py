"""What one generating request went through, written down as it happens; becomes its record."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from starlette.types import Scope

from appliance.gateway.openai.parameters import Parameters
from appliance.gateway.request_context import RequestContext
from appliance.telemetry.records import ChoiceRecord, LiveTokens, Outcome, RequestRecord
from engine.client.collector import RequestOutputCollector
from engine.clock import now_ns
from engine.wire.header import TraceContext
from engine.wire.messages import Timeline

if TYPE_CHECKING:
    from appliance.gateway.content import Content

JOURNEY_KEY = "quarterdeck.journey"
ENDED_BY_SOMEBODY = frozenset({"client_disconnected", "request_aborted", "engine_asleep"})
"""Codes of accepted requests that were ended on purpose, not by a failure."""

QUOTES_INPUT = frozenset({"invalid_prompt", "invalid_grammar"})
"""Codes whose message may quote the chat (the template's words) or the schema (the compiler's): it
stays out of records."""

TRIVIAL_SEND_NS = 1_000_000
"""A `send` takes so long without anybody holding it up."""

GENERATING: dict[str, str] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
}
"""Routes whose requests are accounted for, and their gen_ai.operation.name."""


@dataclass(slots=True)
class ChoiceState:
    """One engine request of a request."""

    index: int
    prompt_tokens: int
    engine_request_id: str = ""
    engine_id: str = ""
    engine_epoch: int = 0
    send_span_id: str = ""
    finish_reason: str | None = None
    cached_tokens: int = 0
    completion_tokens: int = 0
    timeline: Timeline | None = None

    def record(self) -> ChoiceRecord:
        """Return the choice's part of the record."""
        return ChoiceRecord(
            engine_request_id=self.engine_request_id,
            index=self.index,
            engine_id=self.engine_id,
            engine_epoch=self.engine_epoch,
            send_span_id=self.send_span_id,
            finish_reason=self.finish_reason,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.completion_tokens,
            timeline=self.timeline,
        )


@dataclass(slots=True)
class Journey:
    """Stages, counts and outcome of one request; stages that were not reached are None."""

    context: RequestContext
    route: str
    method: str
    model: str | None = None
    """A served name or an adapter's, never what an unknown client asked for."""
    base_model: str | None = None
    """The served name behind it: the closed set that metrics have as a label."""
    parameters: Parameters | None = None
    max_tokens: int | None = None
    prompt_tokens: int = 0
    admitted_ns: int | None = None
    tokenized_ns: int | None = None
    chat: TraceContext | None = None
    """Context of the `chat {model}` span, parent of what the engine did."""
    held_ns: int = 0
    held_for: str | None = None
    """What it waited for first; see `RequestRecord.held_for`."""
    first_token_ns: int | None = None
    first_frame_ns: int | None = None
    last_token_ns: int | None = None
    detokenize_ns: int = 0
    send_blocked_ns: int = 0
    collected_ns: int = 0
    max_collected_ns: int = 0
    reply_transit_ns: int = 0
    outputs: int = 0
    gateway_busy_ns: int = 0
    slo_ttft_ok: bool | None = None
    slo_tpot_ok: bool | None = None
    frames: int = 0
    requeues: int = 0
    is_held: bool = False
    is_complete: bool = False
    """All choices finished and the whole answer was handed to the socket."""
    choices: list[ChoiceState] = field(default_factory=list)
    content: "Content | None" = None
    """Prompt and output, only where they may be kept; see `appliance.gateway.content`."""

    @property
    def completion_tokens(self) -> int:
        """Tokens over all choices."""
        return sum(choice.completion_tokens for choice in self.choices)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were not computed: of each prompt, what every choice found cached.

        A prompt is counted once however many choices it has, and so is its cached part.
        """
        num_choices = self.parameters.n if self.parameters else 1
        found = [choice.cached_tokens for choice in self.choices]
        prompts = range(0, len(found), num_choices)
        return sum(min(found[start : start + num_choices]) for start in prompts)

    @property
    def outcome(self) -> Outcome:
        """Exactly one for each request."""
        if not self.context.was_accepted:
            return Outcome.REJECTED
        if self.is_complete:
            return Outcome.FINISHED
        error = self.context.error
        if error is not None and error.code in ENDED_BY_SOMEBODY:
            return Outcome.ABORTED
        return Outcome.FAILED

    @property
    def live(self) -> LiveTokens:
        """How far it is."""
        state: Literal["held", "queued", "decode"] = "queued"
        if self.is_held:
            state = "held"
        elif self.first_token_ns is not None:
            state = "decode"
        return LiveTokens(self.context.request_id, self.completion_tokens, state)

    def note_sent(self, start_ns: int) -> None:
        """A `send` of the answer that began at `start_ns` has returned, or was given up."""
        took_ns = now_ns() - start_ns
        if took_ns > TRIVIAL_SEND_NS:
            self.send_blocked_ns += took_ns - TRIVIAL_SEND_NS

    def note_collected(self, collector: RequestOutputCollector) -> None:
        """Nothing more is read from a collector: keep what it has seen."""
        self.outputs += collector.taken
        self.collected_ns += collector.waited_ns
        self.max_collected_ns = max(self.max_collected_ns, collector.max_waited_ns)
        self.reply_transit_ns += collector.transit_ns

    def record(self, gateway: str, gateway_epoch: int) -> RequestRecord:
        """Return the record of an ended request."""
        context, error, parameters = self.context, self.context.error, self.parameters
        fields = parameters.fields if parameters else {}
        return RequestRecord(
            request_id=context.request_id,
            trace_id=context.trace.trace_id,
            span_id=context.trace.span_id,
            parent_span_id=context.parent_span_id,
            flags=context.trace.flags,
            gateway=gateway,
            gateway_epoch=gateway_epoch,
            method=self.method,
            route=self.route,
            operation=GENERATING[self.route],
            status=context.status,
            outcome=self.outcome,
            error_code=error.code if error else None,
            error_detail=error.message if error and error.code not in QUOTES_INPUT else None,
            model=self.model,
            key_id=context.key.key_id if context.key else None,
            stream=parameters.stream if parameters else False,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.completion_tokens,
            max_tokens=self.max_tokens,
            temperature=fields.get("temperature"),
            top_p=fields.get("top_p"),
            received_ns=context.received_ns,
            authenticated_ns=context.authenticated_ns,
            admitted_ns=self.admitted_ns,
            tokenized_ns=self.tokenized_ns,
            chat_span_id=self.chat.span_id if self.chat else None,
            held_ns=self.held_ns,
            first_frame_ns=self.first_frame_ns,
            last_token_ns=self.last_token_ns,
            ended_ns=context.ended_ns or now_ns(),
            detokenize_ns=self.detokenize_ns,
            frames=self.frames,
            requeues=self.requeues,
            choices=tuple(choice.record() for choice in self.choices),
            client_request_id=context.client_request_id,
            base_model=self.base_model,
            held_for=self.held_for,
            send_blocked_ns=self.send_blocked_ns,
            collected_ns=self.collected_ns,
            max_collected_ns=self.max_collected_ns,
            reply_transit_ns=self.reply_transit_ns,
            gateway_busy_ns=self.gateway_busy_ns,
            outputs=self.outputs,
            slo_ttft_ok=self.slo_ttft_ok,
            slo_tpot_ok=self.slo_tpot_ok,
            input_content=self.content.prompt if self.content else None,
            output_content=self.content.output if self.content else None,
        )


def journey_of(scope: Scope, context: RequestContext) -> Journey | None:
    """Return the journey of a request to a generating route, made when it has none yet."""
    if scope["path"] not in GENERATING or scope["method"] != "POST":
        return None
    journey = scope.get(JOURNEY_KEY)
    if not isinstance(journey, Journey):
        journey = Journey(context, route=scope["path"], method=scope["method"])
        scope[JOURNEY_KEY] = journey
    return journey
