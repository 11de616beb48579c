"""The operations of torch backends: what the layers of a model compute with.

Rows of a packed batch are the tokens of all requests one after the other, without padding; a
backend may add rows at the end (`padded_rows`), whose results nobody reads. Whatever a backend
does, the bits of a request's rows may not depend on the other rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Span:
    """One request's rows in a packed batch, with the KV blocks that hold its context."""

    first_row: int
    num_rows: int
    start_position: int
    """Position of the first row; the keys before it are in the cache already."""
    block_table: Sequence[int]
    window_table: Sequence[int] = ()
    """Blocks of the sliding-window layers, by the same index; -1 before the window."""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one layer, each `[num_blocks, block_size, kv_heads, head_dim]`."""

    keys: Tensor
    values: Tensor

    @property
    def block_size(self) -> int:
        """Return the number of positions in a block."""
        return self.keys.shape[1]


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """What all layers of one kind (full attention, or sliding window) share in one step."""

    slots: Tensor
    """`[num_tokens]`: block times block size plus offset, where each token's key goes."""
    attention: Any
    """The backend's own precomputed indices; only the backend that made it reads it."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the layers of one step share; made by `KernelBackend.plan`."""

    num_tokens: int
    """Rows that are tokens; the rest is padding."""
    full: LayerPlan
    window: LayerPlan | None = None
    """For the sliding-window layers, where the model has such."""


@dataclass(frozen=True, slots=True)
class HeadShape:
    """How many heads of which size a model has."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """A weight of `linear` in the backend's own layout."""

    content: Any
    """Only the backend that packed it reads it: a tensor of the reference, a `PackedWeight`."""
    is_packed: bool
    """False: still plain `[out, in]`."""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ModelShapes:
    """What a backend may tune itself for."""

    linears: tuple[tuple[int, int], ...]
    """Distinct `(out, in)` shapes of the layers' weights."""
    head: tuple[int, int]
    """`(vocab, hidden)`."""
    heads: HeadShape
    dtype: torch.dtype
    device: torch.device


class KernelBackend(ABC):
    """The operations of a transformer over packed rows."""

    name: str

    @abstractmethod
    def prepare(self, shapes: ModelShapes) -> None:
        """Tune for a model once, before the first step."""

    @abstractmethod
    def logits_dtype(self, dtype: torch.dtype, device: torch.device) -> torch.dtype:
        """Return in which dtype a model of `dtype` keeps what makes its logits."""

    @abstractmethod
    def pack(self, weight: Tensor) -> LinearWeight:
        """Bring `[out, in]` into the layout that `linear` likes; may keep `weight` itself."""

    @abstractmethod
    def padded_rows(self, num_rows: int) -> int:
        """Return how many rows the hidden states of `num_rows` tokens must have."""

    @abstractmethod
    def plan(self, spans: Sequence[Span], block_size: int, window: int | None = None) -> StepPlan:
        """Precompute what the attention of every layer needs for this batch.

        Args:
            spans: The requests; with a `window`, each has a `window_table`.
            block_size: Positions in a KV block.
            window: Tokens that a sliding-window layer sees, its own included.
        """

    @abstractmethod
    def embedding(self, token_ids: Tensor, table: Tensor) -> Tensor:
        """Look up `[rows]` ids in `[vocab, hidden]`; the residual stream is float32."""

    @abstractmethod
    def rms_norm(
        self, hidden: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Scale float32 `[..., size]` rows to unit root mean square and multiply with `weight`.

        Returns `dtype`; None: that of `weight`.
        """

    @abstractmethod
    def linear(self, rows: Tensor, weight: LinearWeight) -> Tensor:
        """Multiply `[rows, in]` with `[out, in]` transposed. `rows` must be padded rows."""

    @abstractmethod
    def rotary(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate `[rows, heads, head_dim]` by `Rotary`'s cosines and sines; returns float32.

        Of heads that are wider than these, only so many first values rotate.
        """

    @abstractmethod
    def write_cache(self, keys: Tensor, values: Tensor, cache: LayerCache, plan: LayerPlan) -> None:
        """Store `[num_tokens, kv_heads, head_dim]` keys and values in their slots."""

    @abstractmethod
    def attention(
        self,
        queries: Tensor,
        cache: LayerCache,
        plan: LayerPlan,
        scale: float,
        softcap: float | None = None,
    ) -> Tensor:
        """Attend causally to the cached context of each row's own request.

        Args:
            queries: `[rows, heads, head_dim]`, float32, rotated.
            cache: Holds the keys and values up to each row's own position.
            plan: Of this kind of layer, from `plan`, for the same batch.
            scale: Factor of the scores.
            softcap: If given, scores become `softcap * tanh(score / softcap)`.

        Returns:
            `[rows, heads * head_dim]`, float32; padding rows are zero.
        """

    @abstractmethod
    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Return `silu(gate) * up` for `[rows, 2 * inner]` with the gate in the first half."""

    @abstractmethod
    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        """Return `gelu(gate) * up`, with the tanh approximation; as `silu_mul` otherwise."""

    @abstractmethod
    def low_rank(self, rows: Tensor, down: Tensor, up: Tensor) -> Tensor:
        """Return `(rows @ down.T) @ up.T` for any number of rows, in float32.

        Args:
            rows: `[n, in]`.
            down: `[rank, in]`, a LoRA adapter's A.
            up: `[out, rank]`, its B with the scale in it.
        """

    @abstractmethod
    def logits(self, rows: Tensor, weight: LinearWeight) -> Tensor:
        """Return `[num_rows, vocab]` float32 scores of any number of rows."""
