"""Reads packed weights back: what `native/abi.h` says about the bytes, written the other way."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.kernels.cpu.weights import GATED_ROWS, PANEL_ROWS, Format, PackedWeight, panel_bytes

Floats = NDArray[np.float32]


def panel_values(panels: Tensor, format_: Format, width: int) -> Floats:
    """Return `[rows, width]`, the rows of the last panel's padding too."""
    content = panels.numpy()
    assert content.size % panel_bytes(format_, width) == 0
    if format_ is Format.BF16:
        words = content.view(np.uint16).reshape(-1, width // 2, PANEL_ROWS, 2)
        bits = words.transpose(0, 2, 1, 3).reshape(-1, width)
        return (bits.astype(np.uint32) << 16).view(np.float32)
    groups = content.reshape(-1, width // format_.group, format_.group_bytes)
    scales, rest = _halves(groups), groups[:, :, 2 * PANEL_ROWS :]
    if format_ is not Format.W4_G32:
        q = rest.reshape(*rest.shape[:2], -1, PANEL_ROWS, 4).astype(np.float32) - 128
        return _rows(scales[..., None, :, None] * q, width)
    minima, packed = _halves(rest), rest[:, :, 2 * PANEL_ROWS :]
    nibbles = packed.reshape(*rest.shape[:2], -1, PANEL_ROWS // 2, 4)
    q = np.concatenate([nibbles & 15, nibbles >> 4], axis=3).astype(np.float32)
    return _rows(scales[..., None, :, None] * q + minima[..., None, :, None], width)


def weight_values(weight: PackedWeight) -> Floats:
    """Return `[rows, in_features]` in the order of the checkpoint; of gate and up with padding."""
    found = []
    for segment in weight.segments:
        values = panel_values(segment.panels, segment.format, segment.width)
        if segment.rows == 2 * weight.columns:
            halves = values.reshape(-1, 2, GATED_ROWS, segment.width)
            values = np.concatenate([halves[:, 0], halves[:, 1]]).reshape(values.shape)
        found.append(values[: segment.rows])
    return np.concatenate(found)[:, : weight.in_features]


def as_float32(values: NDArray[np.generic]) -> Floats:
    """Return what `Checkpoint.read` returned as numbers: bfloat16 comes as bits."""
    if values.dtype == np.uint16:
        return torch.from_numpy(values).view(torch.bfloat16).float().numpy()
    return values.astype(np.float32)


def _halves(groups: NDArray[np.uint8]) -> Floats:
    head = np.ascontiguousarray(groups[:, :, : 2 * PANEL_ROWS])
    return head.view(np.float16).astype(np.float32)


def _rows(values: Floats, width: int) -> Floats:
    """`[panel, group, word, channel, 4]` -> `[row, width]`."""
    return values.transpose(0, 3, 1, 2, 4).reshape(-1, width)
