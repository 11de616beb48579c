"""Random matrices in the layout of `native/abi.h`, with the values that they stand for."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.kernels.cpu.structs import Linear, Segment
from engine.kernels.cpu.weights import GATED_ROWS, PANEL_ROWS, Format

INPUTS = {Format.BF16: 0, Format.W4_G32: 1, Format.I8_G32: 1, Format.I8_G64: 2}
ALIGNMENT = 64

Floats = NDArray[np.float32]
Matrix = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix as the kernels see it."""

    linear: Linear
    values: Floats
    """`[columns, width]`; of gate and up: the gate's padded rows, then those of up."""
    kept: Sequence[object]
    """Must live as long as `linear` is used."""


def aligned(content: Matrix) -> NDArray[np.uint8]:
    """Copy to bytes that begin at a multiple of 64."""
    flat = np.ascontiguousarray(content).view(np.uint8).ravel()
    room = np.zeros(flat.size + ALIGNMENT, dtype=np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    room[start : start + flat.size] = flat
    return room[start : start + flat.size]


def to_bfloat16(values: Floats) -> NDArray[np.uint16]:
    """Round to the nearest, even at a tie; no infinities or NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits: NDArray[np.uint16]) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def packed(
    seed: int, formats: Sequence[tuple[Format, int]], width: int, *, gated: bool = False
) -> Packed:
    """Return a random matrix of segments, each with a format and a number of rows.

    Args:
        seed: Of the values.
        formats: Of one kind of inputs; of gate and up, one with the rows of the gate alone.
        width: Inputs, without padding.
        gated: Whether it is a gate and up matrix.
    """
    random = np.random.default_rng(seed)
    group = max(format_.group for format_, _ in formats)
    segments, values, kept, column = [], [], [], 0
    for format_, rows in formats:
        count = 2 * padded(rows, GATED_ROWS) if gated else rows
        panels, found = _random(random, padded(count, PANEL_ROWS), padded(width, group), format_)
        found[:, width:] = 0.0  # the inputs there are zeros
        kept.append(panels)
        values.append(_ungated(found) if gated else found[:count])
        segments.append(
            Segment(panels.ctypes.data, None, format_, count, padded(width, group), column)
        )
        column += count // 2 if gated else count
    array = (Segment * len(segments))(*segments)
    linear = Linear(array, len(array), INPUTS[formats[0][0]], padded(width, group), column)
    return Packed(linear, np.concatenate(values), (*kept, array))


def _ungated(values: Floats) -> Floats:
    """Put the gate's rows of each panel first, then those of up."""
    halves = values.reshape(-1, 2, GATED_ROWS, values.shape[1])
    return np.concatenate([halves[:, 0], halves[:, 1]]).reshape(values.shape)


def _random(
    random: np.random.Generator, rows: int, width: int, format_: Format
) -> tuple[NDArray[np.uint8], Floats]:
    """Return panels and values `[rows, width]`, of about unit length."""
    if format_ is Format.BF16:
        bits = to_bfloat16(random.standard_normal((rows, width), dtype=np.float32) / width**0.5)
        return aligned(_interleaved(bits, 2)), from_bfloat16(bits)
    levels = 4.0 if format_ is Format.W4_G32 else 70.0
    steps = random.uniform(0.5, 1.5, (rows, width // format_.group)) / (levels * width**0.5)
    steps = steps.astype(np.float16)
    if format_ is Format.W4_G32:
        return _four_bit(random, steps, width)
    q = random.integers(-127, 128, (rows, width)).astype(np.int16)
    panels = _interleaved((q + 128).astype(np.uint8), 4)
    content = panels.reshape(rows // PANEL_ROWS, width // format_.group, -1)
    return _with_headers([steps], content), _spread(steps, width) * q.astype(np.float32)


def _four_bit(
    random: np.random.Generator, steps: NDArray[np.float16], width: int
) -> tuple[NDArray[np.uint8], Floats]:
    rows, groups = steps.shape
    least = steps * np.float16(-7.5)
    q = random.integers(0, 16, (rows, width), dtype=np.uint8)
    halves = _interleaved(q, 4).reshape(rows // PANEL_ROWS, width // 4, 2, ALIGNMENT)
    both = halves[:, :, 0] | halves[:, :, 1] << 4
    values = _spread(steps, width) * q.astype(np.float32) + _spread(least, width)
    return _with_headers([steps, least], both.reshape(rows // PANEL_ROWS, groups, -1)), values


def _with_headers(scales: Sequence[NDArray[np.float16]], content: Matrix) -> NDArray[np.uint8]:
    """Put each group's scales in front of its bytes."""
    panels, groups, _ = content.shape
    by_group = [
        np.ascontiguousarray(scale.reshape(panels, PANEL_ROWS, groups).transpose(0, 2, 1))
        for scale in scales
    ]
    return aligned(np.concatenate([*(s.view(np.uint8) for s in by_group), content], axis=2))


def _spread(scales: NDArray[np.float16], width: int) -> Floats:
    return scales.astype(np.float32).repeat(width // scales.shape[1], axis=1)


def _interleaved(matrix: Matrix, inputs: int) -> Matrix:
    """`[rows, width]` -> `[panel, width / inputs, 2, 16, inputs]`."""
    rows, width = matrix.shape
    shape = (rows // PANEL_ROWS, 2, PANEL_ROWS // 2, width // inputs, inputs)
    return np.ascontiguousarray(matrix.reshape(shape).transpose(0, 3, 1, 2, 4))


def address(array: Matrix) -> ctypes.c_void_p:
    """Return a pointer to the first element."""
    return ctypes.c_void_p(array.ctypes.data)
