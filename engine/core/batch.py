"""What a step computes and what came out: the seam between scheduling and the model runner.

Plain values, no torch: the scheduler can be tested without a model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from engine.wire.calls import AdapterList, AdapterState, AdapterUnloaded, LoadAdapter
from engine.wire.messages import RequestError, SamplingParams, TokenLogprobs

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from engine.core.step_costs import ModelCosts

Progress = Callable[[str, int, int], None]
"""Called with (phase, done, total); units are bytes."""
OnStage = Callable[[int, int], None]
"""Called with a stage of `engine.wire.flight` and the time when the step came to it."""


def no_stage(_stage: int, _at_ns: int) -> None:
    """Nobody wants to know how far a step is."""


class DeviceFatalError(Exception):
    """The device's state can no longer be trusted: the process must end."""


class ConfigError(Exception):
    """The engine can never start with this configuration; restarting does not help."""


class Prerequisite(Protocol):
    """Something a request needs before it can run, prepared off the step loop.

    Whoever prepares it wakes the loop when it is there. Once ready it stays ready.
    """

    @property
    def is_ready(self) -> bool:
        """Whether the request may be scheduled."""
        ...

    @property
    def fault(self) -> RequestError | None:
        """Why it will never be ready; the request ends with it."""
        ...


class TokenMask(Protocol):
    """Which tokens a request's grammar allows next."""

    def begin_mask(self) -> None:
        """Start computing the next token's mask in the background, before the forward pass."""
        ...

    def mask(self) -> Any:
        """Return it, waiting if need be.

        An int32 array `[ceil(vocab / 32)]`: bit `i % 32` of word `i // 32` says whether token `i`
        may come.
        """
        ...


class RequestGrammar(Prerequisite, TokenMask, Protocol):
    """The grammar of one request and how far its output is in it."""

    @property
    def is_finished(self) -> bool:
        """Whether the output is complete and nothing can follow but an end token."""
        ...

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the source is not enforced."""
        ...

    def accept(self, token_id: int) -> str | None:
        """Advance by the token that was sampled; return why it was not allowed, or None."""
        ...


class AdapterLease(Prerequisite, Protocol):
    """A request's hold on one content of a LoRA adapter, from its admission to its end."""

    @property
    def content_hash(self) -> str:
        """Identity of the adapter."""
        ...

    def release(self) -> None:
        """Let go; idempotent."""
        ...


@dataclass(slots=True)
class ScheduledRequest:
    """One request's share of a step."""

    request_id: str
    token_ids: Sequence[int]
    """Tokens to compute now: positions `start_position` and up; drafts are the last of them."""
    start_position: int
    """Tokens of this request whose keys and values are in the cache already."""
    block_table: Sequence[int]
    """KV blocks of the full-attention layers, in order; covers all positions up to the last of
    this step."""
    samples: bool
    """Whether the last token's logits give a new token (false for all but the last chunk)."""
    sampling: SamplingParams
    num_output_tokens: int
    """Tokens generated before this step: the position in the random stream, and `min_tokens`."""
    banned_token_ids: Sequence[int] = ()
    """May not be sampled now (end tokens before `min_tokens`)."""
    num_drafts: int = 0
    """How many of `token_ids` are guesses: the step samples after the last known token and after
    each guess, and keeps what follows right guesses."""
    history: Sequence[int] = ()
    """Prompt and output so far, without drafts; the request's own list: not to be kept."""
    num_prompt_tokens: int = 0
    window_table: Sequence[int] = ()
    """KV blocks of the sliding-window layers, by the same index as `block_table`; entries before
    the window are -1. Empty when the model has no such layers."""
    adapter: str | None = None
    """Content hash of the LoRA adapter."""
    grammar: TokenMask | None = None
    prompt_logprobs: int | None = None
    """Wanted for the prompt tokens that follow this step's: see `StepResult.prompt_logprobs`."""


@dataclass(slots=True)
class SampleRow:
    """One row of logits and what choosing its token depends on: nothing else may."""

    request_id: str
    """Makes the seed of a request that brings none."""
    sampling: SamplingParams
    position: int
    """Output tokens before this one."""
    num_prompt_tokens: int
    history: Sequence[int]
    """Prompt and output before this token."""
    banned_token_ids: Sequence[int] = ()
    grammar: TokenMask | None = None


@dataclass(slots=True)
class Sampled:
    """What came of a `SampleRow`: a token or a fault."""

    token_id: int | None
    logprobs: TokenLogprobs | None = None
    fault: str | None = None


@dataclass(slots=True)
class StepResult:
    """What a step produced, by request id."""

    token_ids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """One token, and one more for each draft that was right."""
    logprobs: dict[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    """As many as tokens."""
    prompt_logprobs: dict[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    """Of the prompt tokens at positions `start_position + 1` and up."""
    faults: dict[str, str] = field(default_factory=dict)
    """Requests that failed alone, with the reason."""
    built_ns: int = 0
    """The batch was packed and the forward pass began; 0: the runner does not say."""
    forwarded_ns: int = 0
    """The forward pass was over and sampling began."""
    rows: int = 0
    """Rows that were computed, padding included."""


@dataclass(slots=True, frozen=True)
class ModelFacts:
    """What the checkpoint and the device turned out to be."""

    architecture: str
    vocab_size: int
    max_model_len: int
    dtype: str
    device: str
    kernel_backend: str
    weights_bytes: int
    kv_cache_bytes: int
    num_blocks: int
    eos_token_ids: tuple[int, ...]
    dtype_reason: str | None = None
    sliding_window: int | None = None
    """Tokens that a sliding-window layer sees, its own included."""
    num_window_blocks: int = 0
    """KV blocks of the sliding-window layers; 0: there are none."""
    costs: "ModelCosts | None" = None
    """What steps cost by the model's shape; None: utilisation is not reported."""
    num_parameters: int = 0
    peak_flops: float = 0.0
    peak_bytes_per_s: float = 0.0
    num_threads: int = 0
    kernel_path: str = ""
    kernel_reason: str = ""
    quantization: str = "none"
    quantization_reason: str = ""
    kv_cache_dtype: str = ""
    weight_cache: str = "off"


@dataclass(slots=True, frozen=True)
class AdapterCounts:
    """How many adapters an engine holds."""

    loaded: int
    active: int
    """In the slots from which a step can use them."""


class AdapterRefusedError(Exception):
    """An adapter call cannot be done; `code` is one of `UtilityError`'s."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class AdapterLoading(Protocol):
    """A `LoadAdapter` under way: one of `state` and `refusal` is set when it is done."""

    @property
    def state(self) -> AdapterState | None:
        """The adapter that requests can use."""
        ...

    @property
    def refusal(self) -> str | None:
        """What is wrong with it."""
        ...

    def abandon(self) -> None:
        """Nobody waits for it any longer: it will change nothing."""
        ...


class AdapterStore(Protocol):
    """The LoRA adapters of one engine. All calls come from the loop thread."""

    @property
    def counts(self) -> AdapterCounts:
        """How many adapters there are."""
        ...

    def lease(self, name: str) -> AdapterLease | None:
        """Take hold of what is loaded under a name; None when nothing is."""
        ...

    def load(self, call: LoadAdapter) -> AdapterLoading:
        """Begin to read an adapter; raises AdapterRefusedError when it cannot even begin."""
        ...

    def unload(self, name: str) -> AdapterUnloaded:
        """Take a name away; raises AdapterRefusedError."""
        ...

    def pin(self, name: str, *, pinned: bool) -> AdapterState:
        """Keep an adapter in its slot, or stop doing so; raises AdapterRefusedError."""
        ...

    def list(self) -> AdapterList:
        """Report every loaded adapter."""
        ...

    def advance(self) -> None:
        """Take in what has been read in the background; called at every turn of the loop."""
        ...

    def close(self) -> None:
        """End the background thread."""
        ...


class ModelRunner(Protocol):
    """The model on its device. All calls come from the loop thread."""

    on_stage: OnStage
    """Set by the loop: told how far a step is, while it runs."""

    def load(self, progress: Progress) -> ModelFacts:
        """Read the weights, allocate the KV cache, warm up. Raises ConfigError."""
        ...

    def tokenizer(self) -> "Tokenizer":
        """Build the model's tokenizer, for grammars. Any thread may call it."""
        ...

    def adapter_store(self, on_ready: Callable[[], None]) -> AdapterStore | None:
        """Make the store of LoRA adapters, once, after `load`; None: the engine takes none.

        `on_ready` is called from any thread when something of it has become ready.
        """
        ...

    def execute(self, batch: Sequence[ScheduledRequest]) -> StepResult:
        """Run one step. Raises DeviceFatalError; any other error belongs to one request."""
        ...

    def release(self, level: Literal[1, 2]) -> None:
        """Drop weights and KV cache and give the memory back to the system."""
        ...

    def restore(self, progress: Progress) -> None:
        """Undo `release`: the same weights, an empty KV cache of the same size."""
        ...

    def resident_bytes(self) -> int:
        """Memory in use: the process's resident set on the CPU, else bytes on the device."""
        ...
