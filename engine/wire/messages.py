"""Every message between a client and an engine core.

Messages to the engine are imperatives, those from it nouns. A message's kind travels as one type
byte in front of the header (`TYPE_BYTES`), so bodies are untagged. Structs are append-only: new
fields go to the end and have a default.
"""

from enum import StrEnum

import msgspec

from engine.wire.body import Body as Body
from engine.wire.calls import AnyCall
from engine.wire.hops import HopRecord, StepRecord
from engine.wire.sampling import Grammar as Grammar
from engine.wire.sampling import GrammarKind as GrammarKind
from engine.wire.sampling import SamplingParams as SamplingParams
from engine.wire.stats import EngineStats as EngineStats

# ---------------------------------------------------------------- to the engine


class AddRequest(Body, frozen=True):
    """Generate from a prompt. Request ids are unique over all clients and epochs."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    arrival_ns: int
    """When the front accepted the request (`engine.clock`)."""
    deadline_ns: int | None = None
    priority: int = 0
    """Lower runs first; only the `priority` policy reads it."""
    tenant: str | None = None
    """Id of the key that pays, for fair policies."""
    adapter: str | None = None
    """Name of a loaded LoRA adapter; what is loaded under it at admission is used to the end."""
    cache_salt: str | None = None
    """Cached prefixes are shared only between requests with the same salt."""
    grammar: Grammar | None = None


class AbortReason(StrEnum):
    """Why a client gives a request up."""

    CLIENT_DISCONNECTED = "client_disconnected"
    CLIENT_DEAD = "client_dead"
    OPERATOR = "operator"
    STOP_STRING = "stop_string"
    DEADLINE = "deadline"
    SLEEP = "sleep"
    SHUTDOWN = "shutdown"


class AbortRequests(Body, frozen=True):
    """Stop requests within a step. Unknown ids are ignored: they may have finished already."""

    request_ids: tuple[str, ...]
    reason: AbortReason
    client: str | None = None
    """With `client_epoch_below`: every request of this client's older epochs."""
    client_epoch_below: int | None = None


class UtilityCall(Body, frozen=True):
    """One utility call with its id and deadline."""

    call_id: str
    deadline_ns: int
    call: AnyCall


# -------------------------------------------------------------- from the engine


class EngineHello(Body, frozen=True):
    """First message of an engine to each client, before torch is imported."""

    engine_id: str
    epoch: int
    pid: int
    started_ns: int


class EngineProgress(Body, frozen=True):
    """How far the start (or a wake) is. `done` and `total` are in `unit`s."""

    phase: str
    """`import`, `weights`, `kv_cache`, `kernels`, `warm_up`."""
    done: int
    total: int
    unit: str = "bytes"


class StartPhase(Body, frozen=True):
    """One finished phase of the start."""

    name: str
    start_ns: int
    end_ns: int


class EngineReady(Body, frozen=True):
    """The engine can serve; carries its real capacity."""

    model: str
    architecture: str
    max_model_len: int
    num_blocks: int
    block_size: int
    vocab_size: int
    dtype: str
    device: str
    kernel_backend: str
    weights_bytes: int
    kv_cache_bytes: int
    resident_bytes: int
    phases: tuple[StartPhase, ...] = ()
    adapters: tuple[str, ...] = ()
    dtype_reason: str | None = None
    """Why `dtype` is not what was asked for or saved."""
    max_lora_rank: int = 0
    """0: this engine takes no adapters."""
    max_loras: int = 0
    sliding_window: int | None = None
    num_window_blocks: int = 0
    """KV blocks of the sliding-window layers."""
    num_parameters: int = 0
    """Weights that a token passes: 2 floating point operations each."""
    peak_flops: float = 0.0
    """Measured at the start: what this device does per second in the model's dtype, by matmul."""
    peak_bytes_per_s: float = 0.0
    """Measured at the start: how fast memory is read."""
    num_threads: int = 0
    kernel_path: str = ""
    """Which code computes: `torch`, or an instruction set of the CPU kernels, `avx512-bf16`."""
    kernel_reason: str = ""
    """Why these kernels were chosen."""
    quantization: str = "none"
    """`none`, `int8`, `w4`: how most of the linear layers' weights are kept."""
    quantization_reason: str = ""
    """Why so, and what is known of its price in accuracy."""
    kv_cache_dtype: str = ""
    """`bfloat16`, `int8`, `float32`."""
    weight_cache: str = "off"
    """`off`, `hit`: packed weights were mapped from disk; `miss`: they were packed and kept."""


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REJECTED = "rejected"
    """Never started, for example because the engine is asleep: safe to send again."""


class TokenLogprob(Body, frozen=True):
    """One candidate for a position."""

    token_id: int
    logprob: float


class TokenLogprobs(Body, frozen=True):
    """The chosen token's logprob, bit-equal to its entry in `top` where it is there."""

    token_id: int
    logprob: float
    top: tuple[TokenLogprob, ...] = ()
    """Best first."""


class RequestError(Body, frozen=True):
    """Why a request failed alone. Codes are a closed set, see `appliance.gateway.openai.errors`."""

    code: str
    """`invalid_request`, `invalid_grammar`, `adapter_not_loaded`, `engine_asleep`,
    `prompt_too_long`, `deadline_exceeded`, `internal_error`."""
    message: str


class PrefillChunk(Body, frozen=True):
    """One step's share of a prompt."""

    start_ns: int
    end_ns: int
    tokens: int
    step: int


class Timeline(Body, frozen=True):
    """What the engine did with a request; times are `engine.clock` readings."""

    received_ns: int
    """Dequeued from the socket's queue and admitted to the waiting list."""
    scheduled_ns: int | None = None
    """First step that computed any of its tokens began."""
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    finished_ns: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    chunks: tuple[PrefillChunk, ...] = ()
    preempted_ns: tuple[int, ...] = ()
    max_batch: int = 0
    """Most requests that shared a step with it."""
    cached_tokens: int = 0
    drafted_tokens: int = 0
    """Guessed by the speculative drafter; `accepted_tokens` of them were right."""
    accepted_tokens: int = 0
    prepared_ns: int | None = None
    """What it needed first (a grammar, an adapter) was there; None: it needed nothing."""
    resumed_ns: tuple[int, ...] = ()
    """First step after each preemption began; one less than `preempted_ns` if it never resumed."""
    waited_for: str | None = None
    """Why it could not be scheduled when it was last looked at while queued: `seats`, `kv_blocks`,
    `budget`, `grammar`, `adapter`; None: it never had to wait for a second step."""
    recomputed_tokens: int = 0
    """Computed again after preemptions."""


class RequestOutput(Body, frozen=True):
    """What one step produced for one request."""

    request_id: str
    new_token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One entry per new token, when asked for."""
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    """The stop token that ended it; it is the last of `new_token_ids`."""
    error: RequestError | None = None
    timeline: Timeline | None = None
    """With the first token and with the last output."""
    cached_tokens: int = 0
    """Prompt tokens whose keys and values came from the prefix cache, with the timeline."""
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """Of the prompt's tokens but the first, with the first token, when asked for."""
    warnings: tuple[str, ...] = ()
    """Of the grammar, with the first token: schema keywords that are not enforced."""


class EngineOutputs(Body, frozen=True):
    """What one step produced for one client. The header carries the step's trace context."""

    step: int
    outputs: tuple[RequestOutput, ...]


class UtilityError(Body, frozen=True):
    """Why a utility call failed."""

    code: str
    """`busy`, `deadline_exceeded`, `invalid`, `internal_error`, `shutting_down`."""
    message: str


class UtilityReply(Body, frozen=True):
    """Answer to one `UtilityCall`; `result` is msgpack of the call's `Result` type."""

    call_id: str
    error: UtilityError | None = None
    result: msgspec.Raw = msgspec.Raw(b"\xc0")


class Heartbeat(Body, frozen=True):
    """Sent by the engine's loop itself, at every tick of at most one second, busy or idle."""

    step: int
    phase: str
    """`import`, `weights`, `kv_cache`, `kernels`, `warm_up`, `idle`, `step`, `sleep`, `asleep`,
    `wake`, `profile` (its end is computed)."""
    running: int
    waiting: int
    last_token_ns: int | None
    is_blocked: bool = False
    """All live requests wait for something that is being prepared: no step is due."""


class EngineRecords(Body, frozen=True):
    """Trace halves and step records, to client 0, in batches; bounded, drops are counted."""

    hops: tuple[HopRecord, ...]
    steps: tuple[StepRecord, ...]
    dropped: int
    """Cumulative."""


class EngineDead(Body, frozen=True):
    """Last words: the engine's process is about to end."""

    reason: str
    """`device_error`, `config_error`, `io_thread_died`, `internal_error`, `shutdown`."""
    detail: str


ToEngine = AddRequest | AbortRequests | UtilityCall
FromEngine = (
    EngineHello
    | EngineProgress
    | EngineReady
    | EngineOutputs
    | UtilityReply
    | Heartbeat
    | EngineStats
    | EngineRecords
    | EngineDead
)

TYPE_BYTES: dict[type[Body], bytes] = {
    AddRequest: b"\x00",
    AbortRequests: b"\x01",
    UtilityCall: b"\x02",
    EngineHello: b"\x10",
    EngineProgress: b"\x11",
    EngineReady: b"\x12",
    EngineOutputs: b"\x13",
    UtilityReply: b"\x14",
    Heartbeat: b"\x15",
    EngineStats: b"\x16",
    EngineRecords: b"\x17",
    EngineDead: b"\x18",
}
TRACED: frozenset[type[Body]] = frozenset(
    {AddRequest, AbortRequests, UtilityCall, EngineOutputs, UtilityReply}
)
"""Messages that get a send and a process span each; the others are counted and go into the hop
histogram, and get a span only when late, dropped or fenced."""
