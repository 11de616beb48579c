"""What a step computes and what came out: the seam between scheduling and the model runner.

Plain values, no torch: the scheduler can be tested without a model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from engine.wire.messages import SamplingParams, TokenLogprobs

Progress = Callable[[str, int, int], None]
"""Called with (phase, done, total); units are bytes."""


class DeviceFatalError(Exception):
    """The device's state can no longer be trusted: the process must end."""


class ConfigError(Exception):
    """The engine can never start with this configuration; restarting does not help."""


@dataclass(slots=True)
class ScheduledRequest:
    """One request's share of a step."""

    request_id: str
    token_ids: Sequence[int]
    """Tokens to compute now: positions `start_position` and up."""
    start_position: int
    """Tokens of this request whose keys and values are in the cache already."""
    block_table: Sequence[int]
    """KV blocks of the request, in order; covers all positions up to the last of this step."""
    samples: bool
    """Whether the last token's logits give a new token (false for all but the last chunk)."""
    sampling: SamplingParams
    num_output_tokens: int
    """Tokens generated before this step: the position in the random stream, and `min_tokens`."""
    banned_token_ids: Sequence[int] = ()
    """May not be sampled now (end tokens before `min_tokens`)."""


@dataclass(slots=True)
class StepResult:
    """What a step produced, by request id."""

    token_ids: dict[str, int] = field(default_factory=dict)
    logprobs: dict[str, TokenLogprobs] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    """Requests that failed alone, with the reason."""


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


class ModelRunner(Protocol):
    """The model on its device. All calls come from the loop thread."""

    def load(self, progress: Progress) -> ModelFacts:
        """Read the weights, allocate the KV cache, warm up. Raises ConfigError."""
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
