"""Weights in the layout of the CPU kernels; `native/abi.h` describes the bytes."""

import enum
from dataclasses import dataclass

from torch import Tensor

PANEL_ROWS = 32
"""Output channels of a panel."""
GATED_ROWS = 16
"""Of a panel of a gate and up matrix, so many are the gate's, as many up's."""


class Format(enum.IntEnum):
    """How a matrix is stored; the numbers of `abi.h`."""

    BF16 = 0
    W4_G32 = 1
    I8_G32 = 2
    I8_G64 = 3

    @property
    def group(self) -> int:
        """Return of how many inputs the width is a multiple."""
        return _GROUPS[self]

    @property
    def group_bytes(self) -> int:
        """Return the size of one group of one panel."""
        return _GROUP_BYTES[self]


_GROUPS = {Format.BF16: 2, Format.W4_G32: 32, Format.I8_G32: 32, Format.I8_G64: 64}
_GROUP_BYTES = {
    Format.BF16: 2 * PANEL_ROWS * 2,
    Format.W4_G32: 2 * 2 * PANEL_ROWS + PANEL_ROWS * 16,
    Format.I8_G32: 2 * PANEL_ROWS + PANEL_ROWS * 32,
    Format.I8_G64: 2 * PANEL_ROWS + PANEL_ROWS * 64,
}


@dataclass(frozen=True, slots=True)
class PackedSegment:
    """A matrix, or the rows of one that have a format of their own."""

    format: Format
    rows: int
    """Output channels; of a gate and up matrix, those of both, padded to whole panels."""
    width: int
    """Input channels, padded with zeros."""
    first_column: int
    """Of the product's output."""
    panels: Tensor
    """`[num_bytes]` uint8, aligned to 64 bytes."""


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A matrix for `linear`: its segments lie one after the other in the output."""

    segments: tuple[PackedSegment, ...]
    columns: int
    """Of the output; of a gate and up matrix the inner size, padded to `GATED_ROWS`."""
    in_features: int
    """Not padded."""

    @property
    def width(self) -> int:
        """Return the padded number of inputs, the same for all segments."""
        return self.segments[0].width

    @property
    def num_bytes(self) -> int:
        """Return the size of all segments."""
        return sum(segment.panels.numel() for segment in self.segments)


def panel_bytes(format_: Format, width: int) -> int:
    """Return the size of one panel of `width` inputs, which must be whole groups."""
    assert width % format_.group == 0, "the width is padded to whole groups"
    return width // format_.group * format_.group_bytes
