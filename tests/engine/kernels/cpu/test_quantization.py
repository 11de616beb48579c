"""Which format each weight gets, and what an operator is told about it."""

from pathlib import Path

import pytest

from engine.checkpoint.gguf_kinds import KINDS, TYPE_IDS
from engine.checkpoint.tensors import TensorEntry
from engine.kernels.cpu.quantization import choose_quantization
from engine.kernels.cpu.weights import Format


def tensor(kind: str, rows: int = 1024, columns: int = 1024) -> TensorEntry:
    num_bytes = rows * KINDS[TYPE_IDS[kind]].row_bytes(columns)
    return TensorEntry(
        name="w", shape=(rows, columns), kind=kind, file=Path("f"), offset=0, num_bytes=num_bytes
    )


NORM = TensorEntry(name="n", shape=(64,), kind="F32", file=Path("f"), offset=0, num_bytes=256)


@pytest.mark.parametrize(
    ("kind", "name", "format_"),
    [
        ("Q4_0", "w4", Format.W4_G32), ("Q4_1", "w4", Format.W4_G32),
        ("Q4_K", "w4", Format.W4_G32), ("Q8_0", "int8", Format.I8_G32),
        ("Q5_0", "int8", Format.I8_G32), ("Q6_K", "int8", Format.I8_G32),
        ("IQ4_NL", "int8", Format.I8_G32), ("F16", "none", Format.BF16),
        ("BF16", "none", Format.BF16), ("F32", "none", Format.BF16),
    ],
)  # fmt: skip
def test_nothing_asked_means_as_the_file_holds_it(kind: str, name: str, format_: Format):
    choice = choose_quantization("auto", [tensor(kind), NORM])

    assert choice.name == name
    assert choice.formats([kind], is_table=False, is_gate_up=False) == [format_]
    assert choice.formats([kind], is_table=True, is_gate_up=False) == [format_]
    assert kind in choice.reason
    assert "F32" not in choice.reason or kind == "F32"
    assert "mean KL 0.00" in choice.reason


def test_a_file_that_mixes_kinds_is_called_after_most_of_its_weights():
    choice = choose_quantization("auto", [tensor("Q4_1", 3000), tensor("Q8_0", 1000)])

    assert choice.name == "w4"
    assert "Q4_1, Q8_0), values unchanged" in choice.reason
    assert choice.formats(["Q8_0"], is_table=True, is_gate_up=False) == [Format.I8_G32]
    mixed = choose_quantization("auto", [tensor("Q4_K", 1000), tensor("Q6_K", 3000)])
    assert mixed.name == "int8"
    assert "Q6_K, Q4_K converted" in mixed.reason


def test_plain_weights_of_a_mixed_file_are_not_called_unchanged_if_they_are_rounded():
    small = choose_quantization("auto", [tensor("Q8_0", 9000), tensor("BF16", 1000)])
    large = choose_quantization("auto", [tensor("Q8_0", 1 << 21), tensor("BF16", (1 << 20) + 1)])

    assert "values unchanged" in small.reason
    assert large.formats(["BF16"], is_table=True, is_gate_up=False) == [Format.I8_G32]
    assert "BF16 converted" in large.reason


def test_weights_of_16_bits_become_int8_where_they_are_large():
    small = choose_quantization("auto", [tensor("BF16", 1 << 20)])  # 2 GiB
    large = choose_quantization("auto", [tensor("BF16", (1 << 20) + 1)])

    assert small.name == "none"
    assert "2.0 GiB as bfloat16" in small.reason
    assert large.name == "int8"
    assert "which is large" in large.reason
    assert large.formats(["BF16"], is_table=True, is_gate_up=False) == [Format.I8_G32]


@pytest.mark.parametrize(
    ("asked", "layer", "table"),
    [
        ("none", Format.BF16, Format.BF16),
        ("int8", Format.I8_G32, Format.I8_G32),
        ("w4", Format.W4_G32, Format.I8_G32),
    ],
)
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "BF16"])
def test_what_was_asked_for_is_done(asked, layer: Format, table: Format, kind: str):
    choice = choose_quantization(asked, [tensor(kind)])

    assert choice.name == asked
    assert choice.reason.startswith(f"asked for; the file holds {kind}; mean KL")
    assert ("rounding to four bits" in choice.reason) == (asked == "w4" and kind != "Q4_1")
    assert choice.formats([kind], is_table=False, is_gate_up=False) == [layer]
    assert choice.formats([kind], is_table=True, is_gate_up=False) == [table]


def test_matrices_of_one_product_agree_on_how_its_inputs_are_rounded():
    choice = choose_quantization("auto", [tensor("Q4_K")])

    def formats(*kinds: str, is_gate_up: bool = False) -> list[Format]:
        return choice.formats(kinds, is_table=False, is_gate_up=is_gate_up)

    four, eight, plain = Format.W4_G32, Format.I8_G32, Format.BF16
    assert formats("Q4_K", "Q4_K", "Q6_K") == [four, four, eight]
    assert formats("Q4_K", "F16", "Q6_K") == [four, eight, eight]
    assert formats("F16", "BF16") == [plain, plain]
    assert formats("Q4_K", "Q6_K", is_gate_up=True) == [eight, eight]
    assert formats("Q4_K", "F16", is_gate_up=True) == [eight, eight]
    assert formats("Q4_K", "Q4_0", is_gate_up=True) == [four, four]
