"""A request as the engine sees it: its tokens, its KV blocks and its timeline."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from engine.core.batch import AdapterLease, Prerequisite, RequestGrammar
from engine.wire.calls import RequestState
from engine.wire.header import TraceContext
from engine.wire.hops import HopLink
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
    eos_token_ids: tuple[int, ...] = ()
    """The model's end tokens: a finished grammar ends with one even if the request ignores them."""
    adapter: AdapterLease | None = None
    adapter_name: str | None = None
    """As the request has it; the content behind it is `adapter`'s."""
    grammar: RequestGrammar | None = None
    cache_salt: str | None = None
    arrival: int = 0
    """Its place in the order of arrivals; set by the scheduler."""
    running: bool = False
    in_step: bool = False
    """In the step that is being computed: its blocks are in use whatever becomes of it."""
    is_over: bool = False
    num_computed_tokens: int = 0
    """Tokens whose keys and values are in the cache."""
    block_table: list[int] = field(default_factory=list)
    window_table: list[int] = field(default_factory=list)
    """Blocks of the sliding-window layers, by the same index; -1 before the window."""
    num_passed_blocks: int = 0
    """Leading entries of `window_table` that are -1."""
    block_hashes: list[bytes] = field(default_factory=list)
    num_registered_blocks: int = 0
    """Leading blocks that the prefix cache knows."""
    growth_blocks: int = 0
    """Blocks that it will still need, by the prediction of its length."""
    predicted_tokens: int | None = None
    """Output that was predicted when it was first admitted."""
    overtaken: int = 0
    """Requests that were admitted before it while it got no place for its adapter or no tokens."""
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache at the first admission."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Collected over the chunks of the prompt."""
    preemptions: int = 0
    scheduled_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    chunks: list[PrefillChunk] = field(default_factory=list)
    preempted_ns: list[int] = field(default_factory=list)
    resumed_ns: list[int] = field(default_factory=list)
    """First step after each preemption that was told."""
    prepared_ns: int | None = None
    waited_for: str | None = None
    """See `Timeline.waited_for`."""
    looked_ns: int = 0
    """When that was found out."""
    lost_tokens: int = 0
    """Computed before it was preempted, while it waits to get on."""
    recomputed_tokens: int = 0
    max_batch: int = 0
    link: HopLink = field(init=False)
    """What spans of steps and their messages link."""

    def __post_init__(self) -> None:
        self.link = HopLink(self.request_id, self.context)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that are known but not in the cache yet; 1 while decoding."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def prerequisites(self) -> tuple[Prerequisite, ...]:
        """What must be ready before it can run."""
        return tuple(need for need in (self.adapter, self.grammar) if need is not None)

    @property
    def adapter_hash(self) -> str | None:
        """Identity of its adapter's content."""
        return None if self.adapter is None else self.adapter.content_hash

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether logprobs of its prompt are wanted and not told yet."""
        return self.sampling.prompt_logprobs is not None and self.num_output_tokens == 0

    def note_share(self, tokens: int, step: "StepTimes", *, prefill: bool) -> None:
        """Write a step that computed `tokens` of this request into the timeline."""
        if self.scheduled_ns is None:
            self.scheduled_ns, self.first_step = step.started_ns, step.number
        if len(self.resumed_ns) < len(self.preempted_ns):
            self.resumed_ns.append(step.started_ns)
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
        self.lost_tokens += self.num_computed_tokens
        self.num_computed_tokens = 0
        self.running = False
        self.prompt_logprobs.clear()
        self.preemptions += 1
        if len(self.preempted_ns) < MAX_PREEMPTIONS_TOLD:
            self.preempted_ns.append(at_ns)

    def note_start(self) -> None:
        """It runs (again): what is not in the cache any more has to be computed once more."""
        if self.lost_tokens:
            self.recomputed_tokens += max(0, self.lost_tokens - self.num_computed_tokens)
            self.lost_tokens = 0

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
            cached_tokens=self.cached_tokens,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            prepared_ns=self.prepared_ns,
            resumed_ns=tuple(self.resumed_ns),
            waited_for=self.waited_for,
            recomputed_tokens=self.recomputed_tokens,
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


class StepTimes(Struct, frozen=True, gc=False):
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


class Produced(Struct, frozen=True):
    """An output and the request it is of."""

    request: EngineRequest
    output: RequestOutput


def engine_request(  # noqa: PLR0913 - a request is made of all of these
    message: AddRequest,
    owner: Owner | None,
    context: TraceContext,
    eos_token_ids: tuple[int, ...],
    received_ns: int,
    *,
    adapter: AdapterLease | None = None,
    grammar: RequestGrammar | None = None,
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
        eos_token_ids=eos_token_ids,
        adapter=adapter,
        adapter_name=message.adapter,
        grammar=grammar,
        cache_salt=message.cache_salt,
    )


def produced_tokens(
    request: EngineRequest,
    count: int,
    logprobs: Sequence[TokenLogprobs] | None,
    ending: Ending | None,
    at_ns: int,
) -> Produced:
    """Report the newest `count` tokens of a request, and its end if they are the last ones."""
    if request.num_output_tokens == count:
        return _produced_first(request, count, logprobs, ending, at_ns)
    output = RequestOutput(
        request_id=request.request_id,
        new_token_ids=tuple(request.token_ids[-count:]),
        logprobs=None if logprobs is None else tuple(logprobs),
    )
    return Produced(request, output if ending is None else _ended(request, output, ending, at_ns))


def _produced_first(
    request: EngineRequest,
    count: int,
    logprobs: Sequence[TokenLogprobs] | None,
    ending: Ending | None,
    at_ns: int,
) -> Produced:
    """Report a request's first tokens, and what is told with them."""
    wants = request.sampling.prompt_logprobs is not None
    output = RequestOutput(
        request_id=request.request_id,
        new_token_ids=tuple(request.token_ids[-count:]),
        logprobs=None if logprobs is None else tuple(logprobs),
        timeline=request.timeline(),
        cached_tokens=request.cached_tokens,
        prompt_logprobs=tuple(request.prompt_logprobs) if wants else None,
        warnings=request.grammar.warnings if request.grammar else (),
    )
    request.prompt_logprobs.clear()
    return Produced(request, output if ending is None else _ended(request, output, ending, at_ns))


def _ended(
    request: EngineRequest, output: RequestOutput, ending: Ending, at_ns: int
) -> RequestOutput:
    return replace(
        output,
        finish_reason=ending.reason,
        stop_token_id=ending.stop_token_id,
        error=ending.error,
        timeline=request.timeline(at_ns),
        cached_tokens=request.cached_tokens,
    )


def produced_end(request: EngineRequest, ending: Ending, at_ns: int) -> Produced:
    """Report a request's end without a token."""
    output = RequestOutput(request_id=request.request_id)
    return Produced(request, _ended(request, output, ending, at_ns))
