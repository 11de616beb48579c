"""Quantized tensors are read as the `gguf` package reads them, without importing it."""

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.checkpoint.checkpoint import UnsupportedModelError
from engine.checkpoint.dequantize import dequantize
from engine.checkpoint.gguf_kinds import KINDS
from engine.checkpoint.tensors import read_raw, read_tensor
from tests.engine.kernels.cpu.stored import BLOCK_KINDS, as_entry, random_stored, values_of


def test_our_table_of_kinds_is_that_of_the_gguf_package():
    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}

    assert {type_id: tuple(kind) for type_id, kind in KINDS.items()} == theirs


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_every_kind_is_decoded_to_the_bit(kind: str):
    stored = random_stored(kind, 5, 768)

    assert np.array_equal(dequantize(kind, stored), values_of(kind, stored))


def test_an_integer_kind_is_refused():
    with pytest.raises(UnsupportedModelError, match=r"I64 is not supported; take another"):
        dequantize("I64", np.zeros((1, 8), np.uint8))


def test_rows_can_be_read_as_they_are_stored(tmp_path: Path):
    stored = random_stored("Q6_K", 4, 256)
    entry = as_entry(tmp_path / "tensor", "Q6_K", stored, 256)
    rows = bytearray(2 * entry.row_bytes)

    read_raw(entry, 1, rows)

    assert bytes(rows) == stored[1:3].tobytes()


def test_reading_common_kinds_imports_neither_gguf_nor_torch(tmp_path: Path):
    entry = as_entry(tmp_path / "tensor", "Q4_K", random_stored("Q4_K", 4, 256), 256)
    script = """
import sys
from pathlib import Path
from engine.checkpoint.tensors import TensorEntry, read_tensor
entry = TensorEntry(name="w", shape=(4, 256), kind="Q4_K", file=Path(sys.argv[1]), offset=5,
                    num_bytes=4 * 144)
assert read_tensor(entry).shape == (4, 256)
assert "gguf" not in sys.modules and "torch" not in sys.modules
"""

    subprocess.run([sys.executable, "-c", script, str(entry.file)], check=True, timeout=60)

    assert read_tensor(entry).shape == (4, 256)
