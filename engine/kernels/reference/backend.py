"""The reference backend: every operation in plain torch, on any torch device.

It is the oracle of the faster backends, and batch-invariant: see `tiles.py` and `attention.py`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from engine.kernels.backend import (
    KernelBackend,
    LayerCache,
    LayerPlan,
    LinearWeight,
    ModelShapes,
    Span,
    StepPlan,
)
from engine.kernels.reference.attention import ScoreRule, attend
from engine.kernels.reference.attention_plan import AttentionGroup, AttentionPlanner
from engine.kernels.reference.products import (
    LowRankProducts,
    head_tiles,
    layer_tiles,
    pack_weight,
    tiled_product,
)
from engine.kernels.reference.tiles import TilePlan

_GELU_SCALE = 2.0 * math.sqrt(2.0 / math.pi)


@dataclass(frozen=True, slots=True)
class _Tuned:
    tiles: TilePlan
    head_tiles: TilePlan
    planner: AttentionPlanner


class ReferenceBackend(KernelBackend):
    """Plain torch; call `prepare` first."""

    name = "reference"

    def __init__(self) -> None:
        self._shapes: ModelShapes | None = None
        self._tuned: _Tuned | None = None
        self._low_rank = LowRankProducts()

    @property
    def tiles(self) -> tuple[int, ...]:
        """Return the row counts that agreed on this machine."""
        return self._ready().tiles.tiles

    def prepare(self, shapes: ModelShapes) -> None:
        """Probe which row counts agree bitwise for every weight shape."""
        tiles = layer_tiles(shapes, self.logits_dtype(shapes.dtype, shapes.device))
        self._shapes = shapes
        self._tuned = _Tuned(
            tiles=tiles,
            head_tiles=head_tiles(tiles),
            planner=AttentionPlanner(shapes.heads, shapes.device),
        )

    def logits_dtype(self, dtype: torch.dtype, device: torch.device) -> torch.dtype:
        """Return float32 on the CPU.

        Around 25, bfloat16 has steps of 0.125: with them the first words of a 135 M model are a
        matter of luck. Packed float32 costs as much time as plain bfloat16 (3.9 and 3.8 ms).
        """
        return torch.float32 if device.type == "cpu" else dtype

    def pack(self, weight: Tensor) -> LinearWeight:
        """Block the weight for oneDNN on the CPU: half the time of a product of few rows.

        Without it oneDNN reorders the weight in every call.
        """
        return pack_weight(weight)

    def padded_rows(self, num_rows: int) -> int:
        """Return the row count that whole tiles make up."""
        return self._ready().tiles.padded(num_rows)

    def plan(self, spans: Sequence[Span], block_size: int, window: int | None = None) -> StepPlan:
        """Compute slots and attention groups."""
        planner = self._ready().planner
        return StepPlan(
            num_tokens=sum(span.num_rows for span in spans),
            full=LayerPlan(
                slots=_slots([(span, span.block_table) for span in spans], block_size, planner),
                attention=planner.groups(spans, block_size),
            ),
            window=None
            if window is None
            else LayerPlan(
                slots=_slots([(span, span.window_table) for span in spans], block_size, planner),
                attention=planner.groups(spans, block_size, window),
            ),
        )

    def embedding(self, token_ids: Tensor, table: Tensor) -> Tensor:
        """Look up rows."""
        return F.embedding(token_ids, table).float()

    def rms_norm(
        self, hidden: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Normalise in the precision of `weight`."""
        mean_square = hidden.square().mean(dim=-1, keepdim=True)
        unit = hidden * mean_square.add_(epsilon).rsqrt_()
        return unit.to(weight.dtype).mul_(weight).to(dtype or weight.dtype)

    def linear(self, rows: Tensor, weight: LinearWeight) -> Tensor:
        """Multiply tile by tile."""
        return tiled_product(rows, weight, self._ready().tiles)

    def rotary(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate the two halves of each head, in float32.

        Source:
            Su et al. 2021, RoFormer, eq. 34, https://arxiv.org/abs/2104.09864
        """
        rotary_dim = cos.shape[-1]
        if rotary_dim < heads.shape[-1]:
            rotated = self.rotary(heads[..., :rotary_dim], cos, sin)
            return torch.cat((rotated, heads[..., rotary_dim:].float()), dim=-1)
        values = heads.float()
        swapped = values.roll(rotary_dim // 2, dims=-1)
        return (values * cos.unsqueeze(1)).add_(swapped.mul_(sin.unsqueeze(1)))

    def write_cache(self, keys: Tensor, values: Tensor, cache: LayerCache, plan: LayerPlan) -> None:
        """Copy keys and values into their slots."""
        cache.keys.flatten(0, 1).index_copy_(0, plan.slots, keys.to(cache.keys.dtype))
        cache.values.flatten(0, 1).index_copy_(0, plan.slots, values.to(cache.values.dtype))

    def attention(
        self,
        queries: Tensor,
        cache: LayerCache,
        plan: LayerPlan,
        scale: float,
        softcap: float | None = None,
    ) -> Tensor:
        """Attend group by group."""
        assert self._shapes is not None, "prepare() was not called"
        rule = ScoreRule(scale, softcap)
        mixed = torch.zeros(queries.shape, device=queries.device)
        groups: list[AttentionGroup] = plan.attention
        for group in groups:
            found = attend(queries, cache, group, self._shapes.heads, rule)
            if group.used is None:
                mixed.index_copy_(0, group.rows, found)
            else:
                rows = group.rows.index_select(0, group.used)
                mixed.index_copy_(0, rows, found.index_select(0, group.used))
        return mixed.flatten(1)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Multiply the gate's SiLU with the other half."""
        gate, up = gate_up.float().chunk(2, dim=-1)
        # F.silu takes another exponential for the last elements of each thread's share: not
        # the same bits for the same value in another place. torch.exp has only one.
        return (gate / torch.neg(gate).exp_().add_(1.0)).mul_(up).to(gate_up.dtype)

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        """Multiply the gate's GELU with the other half.

        `(1 + tanh(u)) / 2` is `1 / (1 + exp(-2 u))`: see `silu_mul` about the exponential.

        Source:
            Hendrycks and Gimpel 2016, section 2, https://arxiv.org/abs/1606.08415
        """
        gate, up = gate_up.float().chunk(2, dim=-1)
        minus = gate.square().mul_(gate).mul_(0.044715).add_(gate).mul_(-_GELU_SCALE)
        return (gate / minus.exp_().add_(1.0)).mul_(up).to(gate_up.dtype)

    def low_rank(self, rows: Tensor, down: Tensor, up: Tensor) -> Tensor:
        """Multiply twice, tile by tile; float32 tensors are used as they are."""
        return self._low_rank(rows, down, up)

    def logits(self, rows: Tensor, weight: LinearWeight) -> Tensor:
        """Multiply with the output embedding."""
        tiles = self._ready().head_tiles
        num_rows = rows.shape[0]
        padded = F.pad(rows, (0, 0, 0, tiles.padded(num_rows) - num_rows))
        return tiled_product(padded, weight, tiles)[:num_rows].float()

    def _ready(self) -> _Tuned:
        assert self._tuned is not None, "prepare() was not called"
        return self._tuned


def _slots(
    tables: Iterable[tuple[Span, Sequence[int]]], block_size: int, planner: AttentionPlanner
) -> Tensor:
    slots = [
        table[position // block_size] * block_size + position % block_size
        for span, table in tables
        for position in range(span.start_position, span.start_position + span.num_rows)
    ]
    return torch.tensor(slots, device=planner.device)
