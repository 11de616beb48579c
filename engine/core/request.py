"""A request as the engine sees it: its tokens, its KV blocks and its timeline."""

from dataclasses import dataclass, field

from engine.wire.calls import RequestState
from engine.wire.header import TraceContext
from engine.wire.messages import (
    AddRequest,
    FinishReason,
    PrefillChunk,
    RequestError,
    RequestOutput,
    SamplingParams,
    Timeline,
    TokenLogprobs,
)

MAX_CHUNKS = 256
"""Prefill chunks told apart in a timeline; later ones extend the last."""
MAX_PREEMPTIONS_TOLD = 64


@dataclass(slots=True, frozen=True)
class Owner:
    """The client that a request belongs to; None in its place: the engine itself."""

    index: int
    """Into `EngineConfig.clients`."""
    name: str
    epoch: int


@dataclass(slots=True, eq=False)
class EngineRequest:
    """One request from its admission to its end. Only the scheduler changes it."""

    request_id: str
    owner: Owner | None
    context: TraceContext
    """Of the `AddRequest`'s header."""
    sampling: SamplingParams
    token_ids: list[int]
    """Prompt and output so far."""
    num_prompt_tokens: int
    received_ns: int
    end_token_ids: tuple[int, ...] = ()
    """Its stop tokens, and the model's unless it ignores them."""
    deadline_ns: int | None = None
    priority: int = 0
    tenant: str | None = None
    running: bool = False
    num_computed_tokens: int = 0
    """Tokens whose keys and values are in the cache."""
    block_table: list[int] = field(default_factory=list)
    preemptions: int = 0
    scheduled_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    chunks: list[PrefillChunk] = field(default_factory=list)
    preempted_ns: list[int] = field(default_factory=list)
    max_batch: int = 0

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that are known but not in the cache yet; 1 while decoding."""
        return len(self.token_ids) - self.num_computed_tokens

    def note_share(self, tokens: int, step: "StepTimes", *, prefill: bool) -> None:
        """Write a step that computed `tokens` of this request into the timeline."""
        if self.scheduled_ns is None:
            self.scheduled_ns, self.first_step = step.started_ns, step.number
        self.last_step = step.number
        self.max_batch = max(self.max_batch, step.batch_size)
        if prefill:
            self._note_chunk(
                PrefillChunk(
                    start_ns=step.started_ns,
                    end_ns=step.executed_ns,
                    tokens=tokens,
                    step=step.number,
                )
            )

    def _note_chunk(self, chunk: PrefillChunk) -> None:
        if len(self.chunks) < MAX_CHUNKS:
            self.chunks.append(chunk)
            return
        last = self.chunks[-1]
        self.chunks[-1] = PrefillChunk(
            start_ns=last.start_ns,
            end_ns=chunk.end_ns,
            tokens=last.tokens + chunk.tokens,
            step=last.step,
        )

    def note_preemption(self, at_ns: int) -> None:
        """Forget what was computed: its blocks went to another request."""
        self.num_computed_tokens = 0
        self.running = False
        self.preemptions += 1
        if len(self.preempted_ns) < MAX_PREEMPTIONS_TOLD:
            self.preempted_ns.append(at_ns)

    def note_token(self, token_id: int, at_ns: int) -> None:
        """Append a generated token."""
        self.token_ids.append(token_id)
        if self.first_token_ns is None:
            self.first_token_ns = at_ns
        self.last_token_ns = at_ns

    def timeline(self, finished_ns: int | None = None) -> Timeline:
        """Return the timeline so far."""
        return Timeline(
            received_ns=self.received_ns,
            scheduled_ns=self.scheduled_ns,
            first_token_ns=self.first_token_ns,
            last_token_ns=self.last_token_ns,
            finished_ns=finished_ns,
            first_step=self.first_step,
            last_step=self.last_step,
            chunks=tuple(self.chunks),
            preempted_ns=tuple(self.preempted_ns),
            max_batch=self.max_batch,
        )

    def state(self, now_ns: int) -> RequestState:
        """Describe the request for operators."""
        return RequestState(
            request_id=self.request_id,
            client=self.owner.name if self.owner else "engine",
            state="running" if self.running else "waiting",
            prompt_tokens=self.num_prompt_tokens,
            output_tokens=self.num_output_tokens,
            computed_tokens=self.num_computed_tokens,
            num_blocks=len(self.block_table),
            preemptions=self.preemptions,
            age_ns=now_ns - self.received_ns,
        )


@dataclass(slots=True, frozen=True)
class StepTimes:
    """What a timeline needs to know of a step."""

    number: int
    started_ns: int
    executed_ns: int
    batch_size: int


@dataclass(slots=True, frozen=True)
class Ending:
    """Why a request is over."""

    reason: FinishReason
    stop_token_id: int | None = None
    error: RequestError | None = None


@dataclass(slots=True, frozen=True)
class Produced:
    """An output and the request it is of."""

    request: EngineRequest
    output: RequestOutput


def engine_request(
    message: AddRequest,
    owner: Owner | None,
    context: TraceContext,
    eos_token_ids: tuple[int, ...],
    received_ns: int,
) -> EngineRequest:
    """Make the engine's request of a client's message."""
    sampling = message.sampling
    return EngineRequest(
        request_id=message.request_id,
        owner=owner,
        context=context,
        sampling=sampling,
        token_ids=list(message.prompt_token_ids),
        num_prompt_tokens=len(message.prompt_token_ids),
        received_ns=received_ns,
        end_token_ids=sampling.stop_token_ids + (() if sampling.ignore_eos else eos_token_ids),
        deadline_ns=message.deadline_ns,
        priority=message.priority,
        tenant=message.tenant,
    )


def produced_token(
    request: EngineRequest, logprobs: TokenLogprobs | None, ending: Ending | None, at_ns: int
) -> Produced:
    """Report the newest token of a request, and its end if it is the last one."""
    first = request.num_output_tokens == 1
    return Produced(
        request,
        RequestOutput(
            request_id=request.request_id,
            new_token_ids=(request.token_ids[-1],),
            logprobs=None if logprobs is None else (logprobs,),
            finish_reason=ending.reason if ending else None,
            stop_token_id=ending.stop_token_id if ending else None,
            timeline=request.timeline(at_ns if ending else None) if first or ending else None,
        ),
    )


def produced_end(request: EngineRequest, ending: Ending, at_ns: int) -> Produced:
    """Report a request's end without a token."""
    return Produced(
        request,
        RequestOutput(
            request_id=request.request_id,
            finish_reason=ending.reason,
            error=ending.error,
            timeline=request.timeline(at_ns),
        ),
    )
