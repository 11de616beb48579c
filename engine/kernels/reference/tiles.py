"""Row counts at which a matrix product gives the same bits: the ground of batch invariance.

A library picks its code path by the number of rows (one row is a vector product), and another path
may add in another order. So products only run at row counts ("tiles") that were seen to agree with
each other on this machine; rows in between are padded. Measured with torch 2.13 on Zen4: bfloat16
agrees from 2 rows up, float32 from 4.
"""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

BASE_TILE = 16
"""The row count that the others are compared with."""
CANDIDATES = (4, 8, 16, 32, 64, 128, 256)
_CALL_COST_ROWS = 16
"""A call costs about as much as this many more rows in a larger one (measured, 135 M model)."""
ROW_MULTIPLE = 8
"""Rows of so many values, in float32, begin where a vector register may begin. Of others the bits
were seen to depend on the place in a tile (torch 2.13, products of 50 or 577 values)."""


def widened(values: Tensor) -> Tensor:
    """Append zeros to rows until their length is a multiple of `ROW_MULTIPLE`."""
    missing = -values.shape[-1] % ROW_MULTIPLE
    return F.pad(values, (0, missing)) if missing else values


class TilePlan:
    """Splits a number of rows into tiles from an agreed set."""

    def __init__(self, tiles: Iterable[int]) -> None:
        self.tiles = tuple(sorted(tiles))
        self._splits: dict[int, list[int]] = {}  # asked for in every product of every layer

    def split(self, num_rows: int) -> list[int]:
        """Return tile sizes whose sum is at least `num_rows`, largest first; do not change it.

        Of a number that `padded` returned the sum is that number: padded rows are split again.
        """
        split = self._splits.get(num_rows)
        if split is None:
            split = self._splits[num_rows] = self._make(num_rows)
        return split

    def padded(self, num_rows: int) -> int:
        """Return the sum of `split(num_rows)`."""
        return sum(self.split(num_rows))

    def _make(self, num_rows: int) -> list[int]:
        split: list[int] = []
        rest = num_rows
        while rest > 0:
            tile = self._next(rest)
            split.append(tile)
            rest -= tile
        return split

    def _next(self, rest: int) -> int:
        above = [tile for tile in self.tiles if tile >= rest]
        below = [tile for tile in self.tiles if tile < rest]
        if above and (not below or above[0] - rest < _CALL_COST_ROWS):
            return above[0]
        return below[-1]


def agreeing_tiles(rows: Tensor, run: Callable[[Tensor], Tensor]) -> set[int]:
    """Return the tiles at which `run` gives the bits that it gives at `BASE_TILE`.

    Args:
        rows: `[..., rows, size]` random input; its number of rows is the largest tile tried.
        run: The product; rows are its last but one dimension.
    """
    most = rows.shape[-2]
    expected = torch.cat([run(piece.contiguous()) for piece in rows.split(BASE_TILE, dim=-2)], -2)
    agreed = {BASE_TILE}
    for tile in CANDIDATES:
        # at other starts, each row has another place in its tile
        starts = [start for start in (0, 1, tile + 2) if start + tile <= most]
        if starts and all(_agrees(rows, expected, start, tile, run) for start in starts):
            agreed.add(tile)
    return agreed


def _agrees(
    rows: Tensor, expected: Tensor, start: int, tile: int, run: Callable[[Tensor], Tensor]
) -> bool:
    piece = rows.narrow(-2, start, tile).contiguous()
    return torch.equal(run(piece), expected.narrow(-2, start, tile))
