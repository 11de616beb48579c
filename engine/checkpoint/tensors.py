"""The tensors of a checkpoint: where each lies, and how its bytes become numbers."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from engine.checkpoint.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PIECE_BYTES = 8 << 20
"""Stored bytes read at a time: bounds the memory that decoding needs."""

_PLAIN_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


class TensorEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Where a tensor lies and how it is stored."""

    name: str
    """As in Hugging Face: `model.layers.0.self_attn.q_proj.weight`."""
    shape: tuple[int, ...]
    kind: str
    """`F32`, `F16`, `BF16`, or a GGML quantization such as `Q4_1`."""
    file: Path
    offset: int
    num_bytes: int
    interleaved_heads: int | None = None
    """Heads whose rows llama.cpp interleaved for its rotary; reading puts them back."""

    @property
    def num_rows(self) -> int:
        """Return the size of the outermost dimension."""
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        """Return the size of one of them as it is stored."""
        return self.num_bytes // self.num_rows


def read_tensor(entry: TensorEntry) -> "NDArray[Any]":
    """Read a whole tensor, see `read_pieces` for the element types."""
    import numpy as np  # noqa: PLC0415

    pieces = [values for _, values in read_pieces(entry)]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def read_pieces(entry: TensorEntry) -> Iterator[tuple[int, "NDArray[Any]"]]:
    """Read a tensor in pieces of whole rows.

    Yields:
        The first row of the piece and its values: float32 (dequantized where needed), float16
        for `F16`, or the raw bits as uint16 for `BF16`.

    Raises:
        CheckpointError: the file ends too early.
        UnsupportedModelError: the kind cannot be decoded.
    """
    row_bytes = entry.row_bytes
    unit = 1 if entry.interleaved_heads is None else entry.num_rows // entry.interleaved_heads
    step = unit * max(1, PIECE_BYTES // max(1, row_bytes * unit))
    for first in range(0, entry.num_rows, step):
        rows = min(step, entry.num_rows - first)
        content = bytearray(rows * row_bytes)
        read_raw(entry, first, content)
        values = decode_rows(entry, content)
        yield first, values if entry.interleaved_heads is None else _half_split(values, unit)


def read_raw(entry: TensorEntry, first_row: int, into: "bytearray | memoryview") -> None:
    """Fill `into`, which must be a whole number of rows, with rows as they are stored.

    Raises:
        CheckpointError: the file ends too early.
    """
    # plain reads, not a mapping: mapped pages would count as resident memory until unmapped
    try:
        with entry.file.open("rb", buffering=0) as file:
            file.seek(entry.offset + first_row * entry.row_bytes)
            got = _read_fully(file, memoryview(into))
    except OSError as error:
        raise CheckpointError(f"{entry.file.name}: {error}") from error
    if not got:
        raise CheckpointError(f"{entry.file.name} ends inside tensor {entry.name}")


def decode_rows(entry: TensorEntry, content: "bytearray | memoryview") -> "NDArray[Any]":
    """Turn stored rows into numbers, see `read_pieces` for the element types.

    Raises:
        UnsupportedModelError: the kind cannot be decoded.
    """
    import numpy as np  # noqa: PLC0415

    shape = (len(content) // entry.row_bytes, *entry.shape[1:])
    match entry.kind:
        case "F32":
            return np.frombuffer(content, np.float32).reshape(shape)
        case "F16":
            return np.frombuffer(content, np.float16).reshape(shape)
        case "BF16":
            return np.frombuffer(content, np.uint16).reshape(shape)
        case _:
            from engine.checkpoint.dequantize import dequantize  # noqa: PLC0415

            stored = np.frombuffer(content, np.uint8).reshape(shape[0], -1)
            return dequantize(entry.kind, stored).reshape(shape)


def stored_rows(entry: TensorEntry) -> "NDArray[np.int64]":
    """Return for each row, in Hugging Face's order, which stored row it is."""
    import numpy as np  # noqa: PLC0415

    rows = np.arange(entry.num_rows)
    if entry.interleaved_heads is None:
        return rows
    return _half_split(rows, entry.num_rows // entry.interleaved_heads)


def plain_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """Return the size of a tensor that is not quantized.

    Raises:
        UnsupportedModelError: the kind is none of `F32`, `F16`, `BF16`.
    """
    if kind not in _PLAIN_BYTES:
        supported = ", ".join(_PLAIN_BYTES)
        raise UnsupportedModelError(
            f"tensors of dtype {kind} are not supported; supported: {supported}"
        )
    size = _PLAIN_BYTES[kind]
    for dimension in shape:
        size *= dimension
    return size


def _read_fully(file: BinaryIO, view: memoryview) -> bool:
    """Return whether the file had enough; one read gives 2 GiB at most."""
    at = 0
    while at < len(view):
        got = file.readinto(view[at:])  # pyright: ignore[reportAttributeAccessIssue]
        if not got:
            return False
        at += got
    return True


def _half_split(values: "NDArray[Any]", head_rows: int) -> "NDArray[Any]":
    """Undo llama.cpp's row order: pairs that rotate together lie half a head apart again."""
    by_pair = values.reshape(-1, head_rows // 2, 2, *values.shape[1:])
    return by_pair.swapaxes(1, 2).reshape(values.shape)
