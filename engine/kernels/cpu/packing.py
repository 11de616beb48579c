"""Brings rows of a checkpoint into the layout of the CPU kernels; `native/pack.h` does the work."""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_double, c_int32, c_void_p
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.checkpoint.gguf_kinds import KINDS, TYPE_IDS
from engine.checkpoint.tensors import TensorEntry, decode_rows, read_raw, stored_rows
from engine.kernels.cpu.library import NO_MEMORY, OK, library
from engine.kernels.cpu.weights import (
    GATED_ROWS,
    PANEL_ROWS,
    Format,
    PackedSegment,
    PackedWeight,
    panel_bytes,
)

_PLAIN_KINDS = ("F32", "F16", "BF16")
_BLOCK_KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
_NATIVE_KINDS = frozenset((*_PLAIN_KINDS, *_BLOCK_KINDS))
"""What `pack.h` knows; other kinds go there as float32."""
_ROW = np.dtype([("data", np.uint64), ("kind", np.int32), ("pad", np.int32)])
"""`qd_stored_row`."""
_PADDING = -1
_DISTANT_ROWS = 2 * PANEL_ROWS
"""Rows that lie further apart are read one by one, else with what is between them."""
Rows = NDArray[np.int64]


class _Squares(ctypes.Structure):
    """`qd_squares`."""

    _fields_ = (("error", c_double), ("values", c_double))


@dataclass(frozen=True, slots=True)
class Squares:
    """Sums of squares over values that a format could not hold exactly."""

    error: float = 0.0
    values: float = 0.0

    def __add__(self, other: "Squares") -> "Squares":
        """Return the sums over both."""
        return Squares(self.error + other.error, self.values + other.values)

    @property
    def relative(self) -> float:
        """Return the root mean square of the errors, as a part of that of the values."""
        return (self.error / self.values) ** 0.5 if self.values else 0.0


class RowSource:
    """The rows of one packed matrix: which rows of which tensors, in the order of the panels.

    Args:
        entries: Tensors whose rows lie one after the other; of a gate and up matrix, the gate's
            are the first half of all.
        is_gate_up: Whether each panel has 16 rows of both halves.
    """

    def __init__(self, entries: Sequence[TensorEntry], is_gate_up: bool) -> None:
        self.entries = entries
        self.columns = entries[0].shape[1]
        stored = [stored_rows(entry) for entry in entries]
        order = panel_order(sum(map(len, stored)), is_gate_up)
        tensor_of = np.repeat(np.arange(len(entries)), list(map(len, stored)))
        is_row = order != _PADDING
        self._stored = np.where(is_row, np.concatenate(stored)[order], 0)
        self._tensor = np.where(is_row, tensor_of[order], _PADDING)

    @property
    def num_panels(self) -> int:
        """Return how many panels the rows fill."""
        return len(self._stored) // PANEL_ROWS

    def stored_bytes(self) -> int:
        """Return the size of all rows as they are stored."""
        return sum(entry.num_bytes for entry in self.entries)

    def pack(self, panels: range, format_: Format, width: int, out: Tensor) -> Squares:
        """Read and pack some panels.

        Args:
            panels: Which ones.
            format_: Of the result.
            width: Of the result, whole groups.
            out: `[num_bytes]` uint8, for these panels.

        Raises:
            CheckpointError: the rows cannot be read.
            MemoryError: there is no memory.
        """
        part = slice(panels.start * PANEL_ROWS, panels.stop * PANEL_ROWS)
        table = np.zeros(len(panels) * PANEL_ROWS, _ROW)
        kept = [
            _point(table, entry, self._stored[part], self._tensor[part] == at)
            for at, entry in enumerate(self.entries)
        ]
        squares = _pack(table, self.columns, format_, width, out)
        kept.clear()  # the rows must live until here
        return squares


def panel_order(num_rows: int, is_gate_up: bool) -> Rows:
    """Return for each row of the panels which row it is, or -1 for one of zeros."""
    if not is_gate_up:
        return _padded(np.arange(num_rows), PANEL_ROWS)
    inner = num_rows // 2
    gate = _padded(np.arange(inner), GATED_ROWS).reshape(-1, 1, GATED_ROWS)
    up = np.where(gate == _PADDING, _PADDING, gate + inner)
    return np.concatenate([gate, up], axis=1).reshape(-1)


def packed_bias(bias: Tensor, weight: PackedWeight) -> list[Tensor]:
    """Bring a bias into the order of a matrix's rows: float32, one tensor for each segment.

    Args:
        bias: One number for each row of the checkpoint; of a gate and up matrix the gate's first.
        weight: The matrix.

    Raises:
        ValueError: the matrix has another number of rows.
    """
    is_gate_up = weight.segments[0].rows == 2 * weight.columns
    if (
        -(-bias.shape[0] // (2 * GATED_ROWS)) * GATED_ROWS != weight.columns
        if is_gate_up
        else bias.shape[0] != weight.columns
    ):
        raise ValueError(f"a bias of {bias.shape[0]} numbers does not fit {weight.columns} columns")
    return [_segment_bias(bias, segment, is_gate_up) for segment in weight.segments]


def _segment_bias(bias: Tensor, segment: PackedSegment, is_gate_up: bool) -> Tensor:
    part = bias.float()
    if not is_gate_up:
        part = part[segment.first_column : segment.first_column + segment.rows]
    order = panel_order(part.shape[0], is_gate_up)
    found = part.new_zeros(len(order))
    is_row = order != _PADDING
    found[is_row] = part[order[is_row]]
    return found


def _padded(rows: Rows, multiple: int) -> Rows:
    return np.pad(rows, (0, -len(rows) % multiple), constant_values=_PADDING)


def _point(
    table: NDArray[np.void], entry: TensorEntry, stored: Rows, is_here: NDArray[np.bool_]
) -> NDArray[np.uint8] | None:
    """Read the rows that are of this tensor and let the table point to them; returns the memory."""
    wanted = stored[is_here]
    if not len(wanted):
        return None
    content, places = _read(entry, wanted)
    row_bytes, kind = entry.row_bytes, entry.kind
    if kind not in _NATIVE_KINDS:
        content = decode_rows(entry, content.data).view(np.uint8).reshape(-1)
        kind = "F32"
        row_bytes = KINDS[TYPE_IDS[kind]].row_bytes(entry.shape[1])
    table["data"][is_here] = content.ctypes.data + places * row_bytes
    table["kind"][is_here] = TYPE_IDS[kind]
    return content


def _read(entry: TensorEntry, wanted: Rows) -> tuple[NDArray[np.uint8], Rows]:
    """Read rows; returns what was read and which row of that each wanted one is.

    Those between distant ones are left out: of a gate and up matrix that a file holds as one, that
    is half of it.
    """
    rows = np.unique(wanted)
    runs = np.split(rows, np.flatnonzero(np.diff(rows) > _DISTANT_ROWS) + 1)
    firsts = np.array([run[0] for run in runs])
    ends = np.cumsum([run[-1] + 1 - run[0] for run in runs])
    starts = np.concatenate([[0], ends[:-1]])
    content = np.empty(int(ends[-1]) * entry.row_bytes, np.uint8)
    for first, start, end in zip(firsts, starts, ends, strict=True):
        part = content[start * entry.row_bytes : end * entry.row_bytes]
        read_raw(entry, int(first), part.data)
    run_of = np.searchsorted(firsts, wanted, "right") - 1
    return content, wanted - firsts[run_of] + starts[run_of]


@cache
def _native_pack() -> Callable[..., int]:
    pack = library().qd_pack
    pack.restype = c_int32
    pack.argtypes = [c_void_p, c_int32, c_int32, c_int32, c_int32, c_void_p, c_void_p]
    return pack


def _pack(
    table: NDArray[np.void], columns: int, format_: Format, width: int, out: Tensor
) -> Squares:
    num_panels = len(table) // PANEL_ROWS
    assert out.is_contiguous(), "panels lie one after the other"
    assert out.nbytes == num_panels * panel_bytes(format_, width), "room for these panels"
    squares = _Squares()
    status = _native_pack()(
        table.ctypes.data,
        num_panels,
        columns,
        format_,
        width,
        out.data_ptr(),
        ctypes.byref(squares),
    )
    if status == NO_MEMORY:
        raise MemoryError("there is no memory to pack weights")
    assert status == OK, "rows are whole blocks of known kinds"
    return Squares(squares.error, squares.values)
