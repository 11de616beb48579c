"""Sampling in C++: one call for all rows of a step, on the threads that compute the model."""

import ctypes
from array import array
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_void_p
from functools import cache

import torch
from torch import Tensor

from engine.kernels.cpu.library import OK, Pool, library
from engine.kernels.sampling import Chosen, Draws, PenaltyFactors, Said, SamplingKernels

_MATRIX = 2


class _Logits(ctypes.Structure):
    """`qd_logits`."""

    _fields_ = (
        ("values", c_void_p),
        ("rows", c_void_p),
        ("stride", c_int64),
        ("num_rows", c_int32),
        ("size", c_int32),
    )


class _Draws(ctypes.Structure):
    """`qd_draws`."""

    _fields_ = (
        ("temperature", c_void_p),
        ("min_p", c_void_p),
        ("top_k", c_void_p),
        ("top_p", c_void_p),
        ("uniform", c_void_p),
    )


class _Penalties(ctypes.Structure):
    """`qd_penalties`."""

    _fields_ = (
        ("ids", c_void_p),
        ("outputs", c_void_p),
        ("count", c_int64),
        ("repetition", c_float),
        ("frequency", c_float),
        ("presence", c_float),
    )


class CpuSampling(SamplingKernels):
    """See `SamplingKernels`.

    Args:
        pool: Computes; must outlive this.
        path: Instruction set.

    Raises:
        ValueError: from every method, when a tensor has the wrong type, shape or memory layout.
    """

    def __init__(self, pool: Pool, path: str) -> None:
        self._pool = pool
        self._path = path.encode()
        self._library = _declared()
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._scratch_size = 0

    def greatest(self, logits: Tensor, rows: Sequence[int] | None = None) -> Chosen:
        """Return the best value and its first index."""
        described, kept = _described(logits, rows)
        values, ids = _room_for_choices(described.num_rows)
        self._run(self._library.qd_greatest, described, _address(values), _address(ids))
        del kept
        return values.tolist(), ids.tolist()

    def draw(self, logits: Tensor, draws: Draws) -> Chosen:
        """Draw by temperature, min-p, top-k and top-p, without sorting the vocabulary."""
        described, _ = _described(logits, None)
        values, ids = _room_for_choices(described.num_rows)
        self._run(
            self._library.qd_draw,
            described,
            _draws(draws, described.num_rows),
            self._room(described.size),
            _address(values),
            _address(ids),
        )
        return values.tolist(), ids.tolist()

    def log_softmax(self, logits: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        """Return log probabilities."""
        described, kept = _described(logits, rows)
        out = torch.empty(described.num_rows, described.size, dtype=torch.float32)
        self._run(self._library.qd_log_softmax, described, out.data_ptr())
        del kept
        return out

    def best(self, values: Tensor, num: int) -> tuple[Tensor, Tensor]:
        """Return the largest values of each row."""
        described, _ = _described(values, None)
        if not 0 < num <= described.size:
            raise ValueError(f"{num} of {described.size} values")
        found = torch.empty(described.num_rows, num, dtype=torch.float32)
        ids = torch.empty(described.num_rows, num, dtype=torch.long)
        room = self._room(described.size)
        self._run(self._library.qd_best, described, num, room, found.data_ptr(), ids.data_ptr())
        return found, ids

    def forbid(self, logits: Tensor, rows: Sequence[int], words: Sequence[Tensor]) -> None:
        """Set what is not allowed to minus infinity."""
        if len(rows) != len(words):
            raise ValueError(f"{len(rows)} rows, {len(words)} masks")
        described, kept = _described(logits, rows)
        pointers, counts = array("Q"), array("i")
        for mask in words:
            if mask.dtype is not torch.int32 or not mask.is_contiguous():
                raise ValueError("a mask is contiguous int32")
            pointers.append(mask.data_ptr())
            counts.append(mask.numel())
        self._run(self._library.qd_forbid, described, _address(pointers), _address(counts))
        del kept

    def penalise(self, row: Tensor, said: Said, factors: PenaltyFactors) -> None:
        """Apply repetition, frequency and presence penalties."""
        _check(row, torch.float32, row.numel())
        _check(said.ids, torch.int64, len(said.ids))
        _check(said.outputs, torch.int64, len(said.ids))
        penalties = _Penalties(
            said.ids.data_ptr(),
            said.outputs.data_ptr(),
            len(said.ids),
            factors.repetition,
            factors.frequency,
            factors.presence,
        )
        self._library.qd_penalise(row.data_ptr(), row.numel(), penalties)

    def _run(self, entry: Callable[..., int], logits: _Logits, *arguments: object) -> None:
        """Call an entry over rows; other threads of the process run meanwhile."""
        if entry(self._threads(), self._path, logits, *arguments) != OK:
            raise ValueError(f"{logits.num_rows} rows of {logits.size} logits were refused")

    def _room(self, size: int) -> int:
        """Return the address of memory for rows of so many values."""
        if size > self._scratch_size:
            num_bytes = self._library.qd_sampling_bytes(self._threads(), size)
            self._scratch = torch.empty(num_bytes, dtype=torch.uint8)
            self._scratch_size = size
        return self._scratch.data_ptr()

    def _threads(self) -> int:
        """Return the pool's handle."""
        if self._pool.handle is None:
            raise ValueError("the threads have ended")
        return self._pool.handle


def _described(logits: Tensor, rows: Sequence[int] | None) -> "tuple[_Logits, array[int] | None]":
    """Return the structure, and what it points to.

    Raises:
        ValueError: the kernels cannot read these logits, or there are no such rows.
    """
    if logits.dtype is not torch.float32 or logits.dim() != _MATRIX or logits.is_cuda:
        raise ValueError(f"logits are a float32 matrix, got {logits.dtype}, {list(logits.shape)}")
    (num_rows, size), (stride, step) = logits.shape, logits.stride()
    if num_rows <= 1:
        stride = size
    if step != 1 or stride < size:
        raise ValueError(f"logits lie row by row, got strides {logits.stride()}")
    if rows is None:
        return _Logits(logits.data_ptr(), None, stride, num_rows, size), None
    if rows and not 0 <= min(rows) <= max(rows) < num_rows:
        raise ValueError(f"rows {min(rows)} to {max(rows)} of {num_rows}")
    chosen = array("i", rows)
    return _Logits(logits.data_ptr(), _address(chosen), stride, len(rows), size), chosen


def _room_for_choices(num_rows: int) -> "tuple[array[float], array[int]]":
    """Return float32 and int64 for each row; arrays, because tensors take longer to make."""
    return array("f", bytes(4 * num_rows)), array("q", bytes(8 * num_rows))


def _address(numbers: "array[float] | array[int]") -> int:
    return numbers.buffer_info()[0]


def _draws(draws: Draws, num_rows: int) -> _Draws:
    _check(draws.temperature, torch.float32, num_rows)
    _check(draws.min_p, torch.float32, num_rows)
    _check(draws.top_k, torch.int64, num_rows)
    _check(draws.top_p, torch.float64, num_rows)
    _check(draws.uniform, torch.float64, num_rows)
    return _Draws(
        draws.temperature.data_ptr(),
        draws.min_p.data_ptr(),
        draws.top_k.data_ptr(),
        draws.top_p.data_ptr(),
        draws.uniform.data_ptr(),
    )


def _check(values: Tensor, dtype: torch.dtype, count: int) -> None:
    if values.dtype is not dtype or values.shape != (count,) or not values.is_contiguous():
        shape = list(values.shape)
        raise ValueError(f"expected {count} of {dtype}, got {values.dtype}, {shape}")


@cache
def _declared() -> ctypes.CDLL:
    """Return the library with the types of its sampling entries."""
    loaded = library()
    rows = [c_void_p, c_char_p, POINTER(_Logits)]
    for function, arguments in (
        (loaded.qd_greatest, [*rows, c_void_p, c_void_p]),
        (loaded.qd_draw, [*rows, POINTER(_Draws), c_void_p, c_void_p, c_void_p]),
        (loaded.qd_log_softmax, [*rows, c_void_p]),
        (loaded.qd_best, [*rows, c_int32, c_void_p, c_void_p, c_void_p]),
        (loaded.qd_forbid, [*rows, c_void_p, c_void_p]),
    ):
        function.restype = c_int32
        function.argtypes = arguments
    loaded.qd_sampling_bytes.restype = c_int64
    loaded.qd_sampling_bytes.argtypes = [c_void_p, c_int32]
    loaded.qd_penalise.restype = None
    loaded.qd_penalise.argtypes = [c_void_p, c_int32, POINTER(_Penalties)]
    return loaded
