"""Turns the blocks of quantized tensors into numbers, with numpy.

Common kinds are decoded here; rare ones by the `gguf` package, whose import takes seconds. The
arithmetic is that of ggml, to the bit.

Source:
    ggml, quants.c (dequantize_row_*), https://github.com/ggml-org/llama.cpp/tree/master/ggml/src
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.checkpoint.errors import UnsupportedModelError
from engine.checkpoint.gguf_kinds import KINDS, TYPE_IDS

Bytes = NDArray[np.integer[Any]]
Floats = NDArray[np.float32]

_HALF_BYTES = 2


def dequantize(kind: str, stored: Bytes) -> Floats:
    """Decode `[rows, row bytes]` to `[rows, values]`.

    Raises:
        UnsupportedModelError: the kind cannot be decoded.
    """
    decode = _DECODERS.get(kind)
    if decode is None:
        return _rare(kind, stored)
    blocks = stored.reshape(-1, KINDS[TYPE_IDS[kind]].block_bytes)
    return decode(blocks).reshape(stored.shape[0], -1)


def _rare(kind: str, stored: Bytes) -> Floats:
    from gguf import GGMLQuantizationType  # noqa: PLC0415
    from gguf.quants import dequantize as decode  # noqa: PLC0415

    try:
        return decode(stored, GGMLQuantizationType[kind])
    except (NotImplementedError, KeyError) as error:
        raise UnsupportedModelError(
            f"quantization {kind} is not supported; take another of the model, such as Q8_0 or Q4_K"
        ) from error


def _halves(blocks: Bytes, at: int) -> Floats:
    """Return the fp16 number at a place of each block, as a column."""
    number = blocks[:, at : at + _HALF_BYTES].copy().view(np.float16)
    return number.astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """Return `[blocks, 32]`: the low nibbles of 16 bytes, then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """Return `[blocks, 32]`: 16 where the bit of the word at a place is set."""
    word = blocks[:, at : at + 4].astype(np.uint8, copy=False)
    bits = np.unpackbits(word, axis=1, bitorder="little")
    return bits << np.uint8(4)


def _signed(values: Bytes, offset: int) -> Floats:
    return values.astype(np.float32) - np.float32(offset)


def _q4_0(blocks: Bytes) -> Floats:
    return _halves(blocks, 0) * _signed(_nibbles(blocks[:, 2:]), 8)


def _q4_1(blocks: Bytes) -> Floats:
    return _halves(blocks, 0) * _nibbles(blocks[:, 4:]) + _halves(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    return _halves(blocks, 0) * _signed(_nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2), 16)


def _q5_1(blocks: Bytes) -> Floats:
    values = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return _halves(blocks, 0) * values + _halves(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return _halves(blocks, 0) * blocks[:, 2:].view(np.int8)


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Return scales and minima `[blocks, 8, 1]` of Q4_K and Q5_K: six bits of each group."""
    low, middle, high = (blocks[:, at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=1)
    minima = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=1)
    return (
        (_halves(blocks, 0) * scales)[:, :, None],
        (_halves(blocks, 2) * minima)[:, :, None],
    )


def _k_nibbles(packed: Bytes) -> Bytes:
    """Return `[blocks, 8, 32]`: 32 bytes hold one group in low nibbles, the next in high ones."""
    pairs = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 8, 32)


def _q4_k(blocks: Bytes) -> Floats:
    scales, minima = _k_scales(blocks)
    return scales * _k_nibbles(blocks[:, 16:]) - minima


def _q5_k(blocks: Bytes) -> Floats:
    scales, minima = _k_scales(blocks)
    shifts = np.arange(8, dtype=np.uint8)[None, :, None]
    fifth = (blocks[:, None, 16:48] >> shifts & 1) << np.uint8(4)
    return scales * (_k_nibbles(blocks[:, 48:]) | fifth) - minima


def _q6_k(blocks: Bytes) -> Floats:
    scales = _halves(blocks, 208) * blocks[:, 192:208].view(np.int8)
    packed = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([packed & 15, packed >> 4], axis=2).reshape(-1, 256)
    shifts = np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3).reshape(-1, 256)
    values = _signed(low | high << np.uint8(4), 32)
    return scales[:, :, None] * values.reshape(-1, 16, 16)


_DECODERS: dict[str, Callable[[Bytes], Floats]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
