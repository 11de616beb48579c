"""A model in memory, whatever computes it: the seam between the step loop and the kernels."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.kernels.backend import Span
from engine.kernels.sampling import SamplingKernels
from engine.layers.linear import StepAdapters


@dataclass(frozen=True, slots=True)
class WeightsSize:
    """Bytes of the weights."""

    total: int
    step: int
    """Of those that every step reads: not of an embedding in which only rows are looked up."""


class StepValueError(ValueError):
    """A token, block or row of a step is out of bounds."""


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What computes a model, and why; operators see it."""

    backend: str
    """`reference`, `cpu`."""
    path: str
    """`torch`, or the instruction set of the CPU kernels: `avx512-bf16`."""
    reason: str
    quantization: str
    """`none`, `int8`, `w4`."""
    quantization_reason: str
    kv_cache_dtype: str
    """`bfloat16`, `int8`, `float32`."""
    num_threads: int
    weight_cache: str = "off"
    """`off`, `hit`, `miss`."""


@dataclass(frozen=True, slots=True)
class PackedStep:
    """The tokens of all requests of a step, one after the other."""

    token_ids: Sequence[int]
    spans: Sequence[Span]
    """One for each request, in the order of their rows."""
    sampled_rows: Sequence[int]
    """Rows whose logits are wanted."""


class LoadedModel(ABC):
    """A model in memory with its KV cache."""

    facts: KernelFacts
    weights: WeightsSize
    sampling: SamplingKernels
    checks_values: bool
    """Whether `forward` finds values that are out of bounds and raises `StepValueError`; if not,
    whoever calls it looks first."""

    @abstractmethod
    def padded_rows(self, num_rows: int) -> int:
        """Return how many rows are computed for `num_rows` tokens."""

    @abstractmethod
    def forward(self, step: PackedStep, adapters: StepAdapters | None) -> Tensor:
        """Compute one step.

        Returns:
            `[sampled rows, vocab]` float32 logits, valid until the next call; may be overwritten.

        Raises:
            StepValueError: see `checks_values`; nothing was computed.
        """

    @abstractmethod
    def clear_blocks(self, num_blocks: int) -> None:
        """Empty the first blocks of the cache, of every layer."""

    @abstractmethod
    def close(self) -> None:
        """Give threads and memory back; idempotent. Nothing may be called any longer."""
