"""Products as the tests call them, and what they must be in float64."""

import enum
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_void_p
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.kernels.cpu.library import Pool, library
from engine.kernels.cpu.structs import Linear
from tests.engine.kernels.cpu.packed import Floats, Packed, from_bfloat16
from tests.engine.kernels.cpu.row_kernels import GROUPS, Rounded, RowKernels

Doubles = NDArray[np.float64]
MARGIN = 3
"""Rows and columns around an output that no kernel may touch."""


class Store(enum.IntEnum):
    """`qd::Store`."""

    SET = 0
    ADD = 1
    SILU = 2
    GELU = 3
    SPLIT = 4


class Canvas:
    """An output of NaN with margins; `inside` is the part that may be written."""

    def __init__(self, rows: int, columns: int) -> None:
        shape = (rows + 2 * MARGIN, columns + 2 * MARGIN)
        self._all = np.full(shape, np.nan, dtype=np.float32)
        self.inside = self._all[MARGIN : MARGIN + rows, MARGIN : MARGIN + columns]

    @property
    def stride(self) -> int:
        """Floats between rows."""
        return self._all.shape[1]

    def check(self) -> None:
        """Fail if a margin was touched."""
        margins = np.ones(self._all.shape, dtype=bool)
        margins[MARGIN:-MARGIN, MARGIN:-MARGIN] = False
        assert np.isnan(self._all[margins]).all(), "written beyond the output"


@dataclass(frozen=True, slots=True)
class Products:
    """The products of one instruction set."""

    isa: str
    pool: Pool | None = None

    def multiply(
        self, matrix: Packed, inputs: Floats, store: Store = Store.SET, before: Floats | None = None
    ) -> Floats:
        """Return what is stored; of `SPLIT`: gate, then up."""
        columns = matrix.linear.columns
        canvas = Canvas(len(inputs), columns * (2 if store is Store.SPLIT else 1))
        if before is not None:
            canvas.inside[:] = before
        assert self._call(matrix.linear, inputs, store, canvas) == 0
        canvas.check()
        return canvas.inside.copy()

    def rounded(self, matrix: Packed, inputs: Floats) -> Doubles:
        """Return the inputs as the product sees them."""
        kind, width = matrix.linear.input, matrix.linear.width
        into = Rounded(kind, width, len(inputs))
        rows: list[Floats] = []
        for row, values in enumerate(inputs):
            RowKernels(self.isa).round_row(values, into, row)
            q, scales, *_ = into.row(row)
            if kind == 0:
                rows.append(from_bfloat16(q.astype(np.uint16)))
            else:
                rows.append(q.astype(np.float64) * scales.repeat(GROUPS[kind]))
        return np.stack(rows).astype(np.float64)

    def _call(self, linear: Linear, inputs: Floats, store: Store, canvas: Canvas) -> int:
        function = library().qd_op_linear
        function.restype = c_int32
        function.argtypes = [
            c_char_p, c_void_p, POINTER(Linear), c_void_p, c_int32, c_int32, c_int32,
            c_void_p, c_int64, c_int64,
        ]  # fmt: skip
        rows, size = inputs.shape
        return function(
            self.isa.encode(), self.pool.handle if self.pool else None, byref(linear),
            inputs.ctypes.data, size, rows, store,
            canvas.inside.ctypes.data, canvas.stride, linear.columns,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Expected:
    """What a product must be, and how far off it may be."""

    value: Doubles
    error: Doubles

    @classmethod
    def of(cls, inputs: Doubles, matrix: Packed, bias: Floats | None) -> "Expected":
        """Return `inputs . matrix^T + bias`; floats are added in float32."""
        values = matrix.values.astype(np.float64)
        offset = np.zeros(len(values)) if bias is None else bias.astype(np.float64)
        size = np.abs(inputs) @ np.abs(values).T + np.abs(offset)
        return cls(inputs @ values.T + offset, 1e-5 * size + 1e-12)

    def columns(self, part: slice) -> "Expected":
        """Return some of the columns."""
        return Expected(self.value[:, part], self.error[:, part])

    def check(self, found: Floats) -> None:
        """Fail where `found` is too far off."""
        assert (np.abs(found - self.value) <= self.error).all()


def activated(store: Store, gate: Expected, up: Expected) -> Expected:
    """Return what gated products must be. Slopes of both functions are below 1.13."""
    x = gate.value
    if store is Store.SILU:
        value = x / (1 + np.exp(-x))
    else:
        value = x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
    error = 1.13 * gate.error * (np.abs(up.value) + up.error) + np.abs(value) * up.error
    return Expected(value * up.value, error + 1e-5 * np.abs(value * up.value) + 1e-9)
