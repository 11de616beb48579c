"""Random tensors as a GGUF file stores them, of any kind."""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from engine.checkpoint.gguf_kinds import KINDS, TYPE_IDS
from engine.checkpoint.tensors import TensorEntry

_HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,),
}  # fmt: skip
"""Where the blocks of a kind have numbers in fp16; all other bits may be anything."""
BLOCK_KINDS = tuple(_HALVES)


def random_stored(kind: str, rows: int, columns: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return `[rows, row bytes]`; magnitudes are those of weights, of either sign."""
    random = np.random.default_rng(seed)
    if kind not in _HALVES:
        values = (random.standard_normal((rows, columns)) / 20).astype(np.float32)
        if kind == "BF16":
            return np.ascontiguousarray(values.view(np.uint16)[:, 1::2]).view(np.uint8)
        return values.astype({"F32": np.float32, "F16": np.float16}[kind]).view(np.uint8)
    block_bytes = KINDS[TYPE_IDS[kind]].block_bytes
    row_bytes = KINDS[TYPE_IDS[kind]].row_bytes(columns)
    stored = random.integers(0, 256, (rows, row_bytes), dtype=np.uint8)
    blocks = stored.reshape(-1, block_bytes)
    for at in _HALVES[kind]:
        scale = random.uniform(0.002, 0.02, len(blocks)) * random.choice([-1, 1], len(blocks))
        blocks[:, at : at + 2] = scale.astype(np.float16)[:, None].view(np.uint8)
    return stored


def values_of(kind: str, stored: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return what the `gguf` package reads."""
    return dequantize(stored, GGMLQuantizationType[kind])


def as_entry(
    path: Path, kind: str, stored: NDArray[np.uint8], columns: int, heads: int | None = None
) -> TensorEntry:
    """Write a tensor to a file, not at its beginning."""
    path.write_bytes(b"front" + stored.tobytes() + b"back")
    return TensorEntry(
        name=path.name,
        shape=(len(stored), columns),
        kind=kind,
        file=path,
        offset=5,
        num_bytes=stored.nbytes,
        interleaved_heads=heads,
    )
