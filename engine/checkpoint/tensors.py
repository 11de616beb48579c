"""The tensors of a checkpoint: where each lies, and how its bytes become numbers."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    row_bytes = entry.num_bytes // entry.num_rows
    unit = 1 if entry.interleaved_heads is None else entry.num_rows // entry.interleaved_heads
    step = unit * max(1, PIECE_BYTES // max(1, row_bytes * unit))
    for first in range(0, entry.num_rows, step):
        rows = min(step, entry.num_rows - first)
        content = _read_bytes(entry, first * row_bytes, rows * row_bytes)
        values = _decode(entry, content, rows)
        yield first, values if entry.interleaved_heads is None else _half_split(values, unit)


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


def _read_bytes(entry: TensorEntry, start: int, length: int) -> bytearray:
    # plain reads, not a mapping: mapped pages would count as resident memory until unmapped
    content = bytearray(length)
    try:
        with entry.file.open("rb") as file:
            file.seek(entry.offset + start)
            got = file.readinto(content)
    except OSError as error:
        raise CheckpointError(f"{entry.file.name}: {error}") from error
    if got != length:
        raise CheckpointError(f"{entry.file.name} ends inside tensor {entry.name}")
    return content


def _decode(entry: TensorEntry, content: bytearray, rows: int) -> "NDArray[Any]":
    import numpy as np  # noqa: PLC0415

    shape = (rows, *entry.shape[1:])
    match entry.kind:
        case "F32":
            return np.frombuffer(content, np.float32).reshape(shape)
        case "F16":
            return np.frombuffer(content, np.float16).reshape(shape)
        case "BF16":
            return np.frombuffer(content, np.uint16).reshape(shape)
        case _:
            return _dequantize(
                entry.kind, np.frombuffer(content, np.uint8).reshape(rows, -1), shape
            )


def _dequantize(
    kind: str, stored: "NDArray[np.uint8]", shape: tuple[int, ...]
) -> "NDArray[np.float32]":
    from gguf import GGMLQuantizationType  # noqa: PLC0415
    from gguf.quants import dequantize  # noqa: PLC0415

    try:
        return dequantize(stored, GGMLQuantizationType[kind]).reshape(shape)
    except (NotImplementedError, KeyError) as error:
        raise UnsupportedModelError(f"quantization {kind} is not supported") from error


def _half_split(values: "NDArray[Any]", head_rows: int) -> "NDArray[Any]":
    """Undo llama.cpp's row order: pairs that rotate together lie half a head apart again."""
    by_pair = values.reshape(-1, head_rows // 2, 2, *values.shape[1:])
    return by_pair.swapaxes(1, 2).reshape(values.shape)
