"""Matrix products whose bits do not depend on the number of rows; see `tiles.py`."""

from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from engine.kernels.backend import LinearWeight, ModelShapes
from engine.kernels.reference.tiles import CANDIDATES, TilePlan, agreeing_tiles, widened

_PACKED_FOR_ROWS = 64
"""oneDNN chooses the same blocks for any number from 4 to 512 (measured)."""
_MAX_HEAD_TILE = 64
"""The logits' product is large: probing and padding it further costs more than it saves."""
_PROBED_OUTPUTS = 8192
"""From 2,048 outputs up, more of them change no bit of the others (measured to 65,536): a
vocabulary of 262,144 need not be multiplied to know."""
_MAX_LOW_RANK_TILE = 64


def pack_weight(weight: Tensor) -> LinearWeight:
    """Block `[out, in]` for oneDNN on the CPU, which else reorders it in every call."""
    size = weight.nbytes
    if weight.device.type == "cpu" and weight.dtype in (torch.bfloat16, torch.float32):
        blocked = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)
        return LinearWeight(blocked, is_packed=True, num_bytes=size)
    return LinearWeight(weight, is_packed=False, num_bytes=size)


def tiled_product(rows: Tensor, weight: LinearWeight, tiles: TilePlan) -> Tensor:
    """Multiply padded rows tile by tile."""
    split = tiles.split(rows.shape[0])
    if len(split) == 1:
        return _product(rows, weight)
    # not torch.cat: 512 rows of a large vocabulary are half a gigabyte, and it would need two
    out = rows.new_empty(rows.shape[0], weight.content.shape[0])
    for piece, target in zip(rows.split(split), out.split(split), strict=True):
        target.copy_(_product(piece, weight))
    return out


def layer_tiles(shapes: ModelShapes, logits_dtype: torch.dtype) -> TilePlan:
    """Return the tiles at which all products of a model agree."""
    agreed = set(CANDIDATES)
    for shape in shapes.linears:
        agreed &= _linear_tiles(shape, CANDIDATES[-1], shapes)
    # one set for both: the logits' rows are few, and never more than a large tile
    agreed &= _linear_tiles(shapes.head, _MAX_HEAD_TILE, replace(shapes, dtype=logits_dtype)) | {
        tile for tile in CANDIDATES if tile > _MAX_HEAD_TILE
    }
    return TilePlan(agreed)


def head_tiles(tiles: TilePlan) -> TilePlan:
    """Return those of `layer_tiles` that the logits' product uses."""
    return TilePlan(tile for tile in tiles.tiles if tile <= _MAX_HEAD_TILE)


class LowRankProducts:
    """The two small products of LoRA adapters, in float32.

    Which tiles agree is found out when a shape comes first: adapters may have any rank.
    """

    def __init__(self) -> None:
        self._tiles: dict[tuple[torch.Size, torch.Size, torch.device], TilePlan] = {}

    def __call__(self, rows: Tensor, down: Tensor, up: Tensor) -> Tensor:
        """Return `(rows @ down.T) @ up.T`; see `KernelBackend.low_rank`."""
        num_rows, size = rows.shape
        if not num_rows:
            return rows.new_zeros(0, up.shape[0], dtype=torch.float32)
        down, up = _widened_adapter(down, up)
        split = self._agreed(down.shape, up.shape, rows.device).split(num_rows)
        # a copy even of float32 rows: these may begin anywhere in memory
        padded = rows.new_zeros(sum(split), down.shape[1], dtype=torch.float32)
        padded[:num_rows, :size] = rows
        found = [_low_rank(piece, down, up) for piece in padded.split(split)]
        return (found[0] if len(found) == 1 else torch.cat(found))[:num_rows]

    def _agreed(self, down: torch.Size, up: torch.Size, device: torch.device) -> TilePlan:
        tiles = self._tiles.get((down, up, device))
        if tiles is None:
            tiles = self._tiles[down, up, device] = _low_rank_tiles(down, up, device)
        return tiles


def _widened_adapter(down: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Bring both to float32 and their rows to a good length; most are so already."""
    rank = up.shape[1]
    up = widened(up.float().contiguous())  # what was probed is not transposed
    down = widened(down.float())
    if up.shape[1] != rank:
        down = F.pad(down, (0, 0, 0, up.shape[1] - rank))
    return down, up


def _low_rank(rows: Tensor, down: Tensor, up: Tensor) -> Tensor:
    return F.linear(F.linear(rows, down), up)


def _low_rank_tiles(down: torch.Size, up: torch.Size, device: torch.device) -> TilePlan:
    """Probe random matrices, not an adapter's own: with one not trained every tile agrees."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((_MAX_LOW_RANK_TILE, down[1]), down, up)
    rows, a, b = (torch.randn(shape, generator=generator).to(device) for shape in shapes)
    return TilePlan(agreeing_tiles(rows, lambda tile: _low_rank(tile, a, b)))


def _product(rows: Tensor, weight: LinearWeight) -> Tensor:
    if weight.is_packed:
        return torch.ops.mkldnn._linear_pointwise(rows, weight.content, None, "none", [], "")
    return F.linear(rows, weight.content)


def _linear_tiles(shape: tuple[int, int], most: int, shapes: ModelShapes) -> set[int]:
    generator = torch.Generator().manual_seed(0)
    outputs = min(shape[0], _PROBED_OUTPUTS)
    plain = torch.randn(outputs, shape[1], generator=generator).mul_(0.05)
    weight = pack_weight(plain.to(shapes.device, shapes.dtype))
    rows = torch.randn(most, shape[1], generator=generator).to(shapes.device, shapes.dtype)
    return agreeing_tiles(rows, lambda tile: _product(tile, weight))
