"""The kernels of single rows as the tests call them: outputs are poisoned, their edges watched."""

import ctypes
from ctypes import byref, c_float, c_int32
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.kernels.cpu.library import library
from engine.kernels.cpu.structs import Linear, Norm
from tests.engine.kernels.cpu.packed import Floats, Packed, address

INTERLEAVE = 6
GROUPS = {0: 2, 1: 32, 2: 64}
"""Inputs of which the width is a multiple, by `QD_INPUT_*`."""
GUARD = 64
"""Bytes on each side of an output that no kernel may touch."""


class Guarded:
    """Poisoned memory with edges; `offset` bytes off an aligned address.

    Args:
        num_bytes: Of the part that may be written.
        offset: A multiple of 4.
    """

    def __init__(self, num_bytes: int, offset: int = 0) -> None:
        self._all = np.full(num_bytes + 2 * GUARD + 64, 0xA5, dtype=np.uint8)
        self._first = GUARD + (-self._all.ctypes.data % 64) + offset
        self._end = self._first + num_bytes

    @property
    def inside(self) -> NDArray[np.uint8]:
        """The part that may be written."""
        return self._all[self._first : self._end]

    def floats(self) -> Floats:
        """The same as floats, once the edges were found untouched."""
        self.check()
        return self.inside.view(np.float32)

    def check(self) -> None:
        assert (self._all[: self._first] == 0xA5).all(), "written before the output"
        assert (self._all[self._end :] == 0xA5).all(), "written beyond the output"


class RoundedRow(NamedTuple):
    """A rounded row: its values, and of each group the scale, the sum and their product."""

    values: NDArray[np.generic]
    scales: Floats
    sums: NDArray[np.int32]
    scaled_sums: Floats


class Rounded:
    """Buffers of `Activations`, and how to read a row out of them."""

    def __init__(self, kind: int, width: int, rows: int) -> None:
        self.kind, self.width = kind, width
        blocks = -(-rows // INTERLEAVE)
        values = blocks * INTERLEAVE * width
        self.values = Guarded(values * (2 if kind == 0 else 1))
        groups = 0 if kind == 0 else width // GROUPS[kind]
        self.scales = Guarded(4 * blocks * INTERLEAVE * groups)
        self.sums = Guarded(4 * blocks * INTERLEAVE * groups)
        self.scaled_sums = Guarded(4 * blocks * INTERLEAVE * groups)

    def row(self, row: int) -> RoundedRow:
        """Return what a row became."""
        block, place = divmod(row, INTERLEAVE)
        dtype, inputs = (np.uint16, 2) if self.kind == 0 else (np.int8, 4)
        units = self.values.inside.view(dtype).reshape(-1, self.width // inputs, INTERLEAVE, inputs)
        values = units[block, :, place].reshape(-1)
        if self.kind == 0:
            none = np.zeros(0, np.float32)
            return RoundedRow(values, none, none.astype(np.int32), none)
        shape = (-1, self.width // GROUPS[self.kind], INTERLEAVE)
        return RoundedRow(
            values,
            self.scales.floats().reshape(shape)[block, :, place],
            self.sums.inside.view(np.int32).reshape(shape)[block, :, place],
            self.scaled_sums.floats().reshape(shape)[block, :, place],
        )

    def check(self) -> None:
        for part in (self.values, self.scales, self.sums, self.scaled_sums):
            part.check()


@dataclass(frozen=True, slots=True)
class RowKernels:
    """The kernels of one instruction set."""

    isa: str

    def embed(self, table: Packed, token_id: int, scale: float, size: int) -> Floats:
        out = Guarded(4 * size)
        self._call(
            "qd_op_embed", byref(table.linear), token_id, c_float(scale), size, address(out.inside)
        )
        return out.floats()

    def rms_norm(self, row: Floats, weight: Floats, epsilon: float, offset: int = 0) -> Floats:
        out = Guarded(4 * row.size, offset)
        norm = Norm(weight.ctypes.data, epsilon, 0)
        self._call("qd_op_rms_norm", address(row), byref(norm), row.size, address(out.inside))
        return out.floats()

    def add(self, row: Floats, to: Floats) -> Floats:
        out = Guarded(4 * row.size)
        out.inside.view(np.float32)[:] = to
        self._call("qd_op_add", address(row), row.size, address(out.inside))
        return out.floats()

    def round_row(self, values: Floats, into: Rounded, row: int) -> None:
        linear = Linear(None, 0, into.kind, into.width, 0)
        self._call(
            "qd_op_round_row",
            address(values),
            values.size,
            byref(linear),
            address(into.values.inside),
            address(into.scales.inside),
            address(into.sums.inside),
            address(into.scaled_sums.inside),
            row,
        )
        into.check()

    def glu(self, activation: int, gate: Floats, up: Floats, offset: int = 0) -> Floats:
        out = Guarded(4 * gate.size, offset)
        self._call(
            "qd_op_glu", activation, address(gate), address(up), gate.size, address(out.inside)
        )
        return out.floats()

    def softcap(self, cap: float, row: Floats) -> Floats:
        out = Guarded(4 * row.size)
        out.inside.view(np.float32)[:] = row
        self._call("qd_op_softcap", c_float(cap), address(out.inside), row.size)
        return out.floats()

    def rotary(self, frequencies: Floats, factor: float, position: int) -> tuple[Floats, Floats]:
        half = frequencies.size
        out = Guarded(8 * half)
        self._call(
            "qd_op_rotary",
            address(frequencies),
            c_float(factor),
            c_int32(position),
            half,
            address(out.inside),
        )
        found = out.floats()
        return found[:half], found[half:]

    def _call(self, name: str, *arguments: object) -> None:
        function = library()[name]
        function.restype = ctypes.c_int32
        assert function(self.isa.encode(), *arguments) == 0
