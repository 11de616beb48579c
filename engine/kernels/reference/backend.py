"""The reference backend: every operation in plain torch, on any torch device.

It is the oracle of the faster backends, and batch-invariant: see `tiles.py` and `attention.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from engine.kernels.backend import (
    KernelBackend,
    LayerCache,
    LinearWeight,
    ModelShapes,
    Span,
    StepPlan,
)
from engine.kernels.reference.attention import AttentionGroup, AttentionPlanner, attend
from engine.kernels.reference.tiles import CANDIDATES, TilePlan, agreeing_tiles

_PACKED_FOR_ROWS = 64
"""oneDNN chooses the same blocks for any number from 4 to 512 (measured)."""
_MAX_HEAD_TILE = 64
"""The logits' product is large: probing and padding it further costs more than it saves."""


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

    @property
    def tiles(self) -> tuple[int, ...]:
        """Return the row counts that agreed on this machine."""
        return self._ready().tiles.tiles

    def prepare(self, shapes: ModelShapes) -> None:
        """Probe which row counts agree bitwise for every weight shape."""
        agreed = set(CANDIDATES)
        for shape in shapes.linears:
            agreed &= _linear_tiles(shape, CANDIDATES[-1], shapes)
        head_dtype = self.logits_dtype(shapes.dtype, shapes.device)
        agreed &= _linear_tiles(shapes.head, _MAX_HEAD_TILE, replace(shapes, dtype=head_dtype)) | {
            tile for tile in CANDIDATES if tile > _MAX_HEAD_TILE
        }
        self._shapes = shapes
        self._tuned = _Tuned(
            tiles=TilePlan(agreed),
            head_tiles=TilePlan(tile for tile in agreed if tile <= _MAX_HEAD_TILE),
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
        return _pack(weight)

    def padded_rows(self, num_rows: int) -> int:
        """Return the row count that whole tiles make up."""
        return self._ready().tiles.padded(num_rows)

    def plan(self, spans: Sequence[Span], block_size: int) -> StepPlan:
        """Compute slots and attention groups."""
        planner = self._ready().planner
        slots = [slot for span in spans for slot in _slots(span, block_size)]
        return StepPlan(
            slots=torch.tensor(slots, device=planner.device),
            attention=planner.groups(spans, block_size),
        )

    def embedding(self, token_ids: Tensor, table: Tensor) -> Tensor:
        """Look up rows."""
        return F.embedding(token_ids, table).float()

    def rms_norm(self, hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """Normalise in float32."""
        mean_square = hidden.square().mean(dim=-1, keepdim=True)
        return (hidden * torch.rsqrt(mean_square.add_(epsilon))).to(weight.dtype).mul_(weight)

    def linear(self, rows: Tensor, weight: LinearWeight) -> Tensor:
        """Multiply tile by tile."""
        return _tiled_product(rows, weight, self._ready().tiles)

    def rotary(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate the two halves of each head, in float32.

        Source:
            Su et al. 2021, RoFormer, eq. 34, https://arxiv.org/abs/2104.09864
        """
        values = heads.float()
        swapped = values.roll(values.shape[-1] // 2, dims=-1)
        return (values * cos.unsqueeze(1)).add_(swapped.mul_(sin.unsqueeze(1)))

    def write_cache(self, keys: Tensor, values: Tensor, cache: LayerCache, plan: StepPlan) -> None:
        """Copy keys and values into their slots."""
        cache.keys.flatten(0, 1).index_copy_(0, plan.slots, keys.to(cache.keys.dtype))
        cache.values.flatten(0, 1).index_copy_(0, plan.slots, values.to(cache.values.dtype))

    def attention(self, queries: Tensor, cache: LayerCache, plan: StepPlan) -> Tensor:
        """Attend group by group."""
        assert self._shapes is not None, "prepare() was not called"
        mixed = torch.zeros_like(queries)
        groups: list[AttentionGroup] = plan.attention
        for group in groups:
            found = attend(queries, cache, group, self._shapes.heads)
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
        return (gate / torch.exp(-gate).add_(1.0)).mul_(up).to(gate_up.dtype)

    def logits(self, rows: Tensor, weight: LinearWeight) -> Tensor:
        """Multiply with the output embedding."""
        tiles = self._ready().head_tiles
        num_rows = rows.shape[0]
        padded = F.pad(rows, (0, 0, 0, tiles.padded(num_rows) - num_rows))
        return _tiled_product(padded, weight, tiles)[:num_rows].float()

    def _ready(self) -> _Tuned:
        assert self._tuned is not None, "prepare() was not called"
        return self._tuned


def _pack(weight: Tensor) -> LinearWeight:
    size = weight.nbytes
    if weight.device.type == "cpu" and weight.dtype in (torch.bfloat16, torch.float32):
        blocked = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)
        return LinearWeight(blocked, is_packed=True, num_bytes=size)
    return LinearWeight(weight, is_packed=False, num_bytes=size)


def _product(rows: Tensor, weight: LinearWeight) -> Tensor:
    if weight.is_packed:
        return torch.ops.mkldnn._linear_pointwise(rows, weight.content, None, "none", [], "")
    return F.linear(rows, weight.content)


def _tiled_product(rows: Tensor, weight: LinearWeight, tiles: TilePlan) -> Tensor:
    split = tiles.split(rows.shape[0])
    if len(split) == 1:
        return _product(rows, weight)
    return torch.cat([_product(piece, weight) for piece in rows.split(split)])


def _linear_tiles(shape: tuple[int, int], most: int, shapes: ModelShapes) -> set[int]:
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(shape, generator=generator).mul_(0.05).to(shapes.device, shapes.dtype)
    rows = torch.randn(most, shape[1], generator=generator).to(shapes.device, shapes.dtype)
    weight = _pack(plain)
    return agreeing_tiles(rows, lambda tile: _product(tile, weight))


def _slots(span: Span, block_size: int) -> list[int]:
    positions = range(span.start_position, span.start_position + span.num_rows)
    return [
        span.block_table[position // block_size] * block_size + position % block_size
        for position in positions
    ]
