"""Products of rounded rows with packed matrices, on every instruction set that runs here."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels.cpu.library import Pool, instruction_sets
from engine.kernels.cpu.weights import PANEL_ROWS, Format
from tests.engine.kernels.cpu.packed import Floats, Packed, packed, padded
from tests.engine.kernels.cpu.products import Expected, Products, Store, activated
from tests.engine.kernels.cpu.row_kernels import RowKernels

every_isa = pytest.mark.parametrize("products", [Products(isa) for isa in instruction_sets()])
every_format = pytest.mark.parametrize("format_", list(Format))
short = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**32 - 1)
widths = st.integers(1, 260)
row_counts = st.integers(1, 40)
GATED = (Store.SILU, Store.GELU)


def segments() -> st.SearchStrategy[list[tuple[Format, int]]]:
    """Formats that want the same inputs, each with a number of output channels."""
    rows = st.integers(1, 100)
    kinds = [(Format.BF16,), (Format.I8_G64,), (Format.W4_G32, Format.I8_G32)]
    return st.sampled_from(kinds).flatmap(
        lambda kind: st.lists(st.tuples(st.sampled_from(kind), rows), min_size=1, max_size=3)
    )


def numbers(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def with_bias(matrix: Packed, seed: int) -> tuple[Packed, Floats]:
    """The same matrix with a bias for each output channel, and those biases in its order."""
    bias, kept = [], []
    for index in range(matrix.linear.num_segments):
        segment = matrix.linear.segments[index]
        values = numbers(seed + index, padded(segment.rows, PANEL_ROWS))
        segment.bias = values.ctypes.data
        kept.append(values)
        bias.append(values[: segment.rows])
    return Packed(matrix.linear, matrix.values, (*matrix.kept, *kept)), np.concatenate(bias)


def in_matrix_order(bias: Floats) -> Floats:
    """Biases of a gate and up matrix: the gate's first, as in its values."""
    return bias.reshape(-1, 2, PANEL_ROWS // 2).transpose(1, 0, 2).ravel()


@every_isa
@given(seed=seeds, formats=segments(), width=widths, rows=row_counts, has_bias=st.booleans())
@short
def test_a_product_is_that_of_the_rounded_inputs_and_writes_nothing_else(
    products: Products,
    seed: int,
    formats: list[tuple[Format, int]],
    width: int,
    rows: int,
    *,
    has_bias: bool,
):
    matrix, bias = packed(seed, formats, width), None
    if has_bias:
        matrix, bias = with_bias(matrix, seed)
    inputs = numbers(seed, rows, width)

    found = products.multiply(matrix, inputs)

    Expected.of(products.rounded(matrix, inputs), matrix, bias).check(found)


@every_isa
@given(seed=seeds, formats=segments(), width=widths, rows=row_counts)
@short
def test_a_product_can_be_added_to_what_is_there(
    products: Products, seed: int, formats: list[tuple[Format, int]], width: int, rows: int
):
    matrix = packed(seed, formats, width)
    inputs, before = numbers(seed, rows, width), numbers(seed, rows, matrix.linear.columns)

    found = products.multiply(matrix, inputs, Store.ADD, before)

    assert (found == before + products.multiply(matrix, inputs)).all()


@every_isa
@given(
    seed=seeds,
    format_=st.sampled_from(Format),
    inner=st.integers(1, 70),
    width=widths,
    rows=row_counts,
    store=st.sampled_from(GATED),
    has_bias=st.booleans(),
)
@short
def test_gate_and_up_are_multiplied_and_activated_together(
    products: Products,
    seed: int,
    format_: Format,
    inner: int,
    width: int,
    rows: int,
    store: Store,
    *,
    has_bias: bool,
):
    matrix, bias = packed(seed, [(format_, inner)], width, gated=True), None
    if has_bias:
        matrix, bias = with_bias(matrix, seed)
        bias = in_matrix_order(bias)
    inputs = numbers(seed, rows, width)

    found = products.multiply(matrix, inputs, store)

    both = Expected.of(products.rounded(matrix, inputs), matrix, bias)
    gate, up = slice(0, matrix.linear.columns), slice(matrix.linear.columns, None)
    activated(store, both.columns(gate), both.columns(up)).check(found)


@every_isa
@every_format
@pytest.mark.parametrize("store", GATED)
def test_activated_apart_gate_and_up_give_the_same_bits(
    products: Products, format_: Format, store: Store
):
    matrix, _ = with_bias(packed(7, [(format_, 40)], 100, gated=True), 7)
    inputs, inner = numbers(8, 9, 100), matrix.linear.columns

    apart = products.multiply(matrix, inputs, Store.SPLIT)
    together = products.multiply(matrix, inputs, store)

    kernels, activation = RowKernels(products.isa), GATED.index(store)
    for row, found in zip(apart, together, strict=True):
        gate, up = row[:inner].copy(), row[inner:].copy()
        assert kernels.glu(activation, gate, up).tobytes() == found.tobytes()


@every_isa
@every_format
def test_a_row_has_the_same_bits_in_any_batch_and_at_any_place(products: Products, format_: Format):
    matrix = packed(3, [(format_, 45)], 192)
    inputs = numbers(4, 40, 192)
    alone = [products.multiply(matrix, row[None]).tobytes() for row in inputs]

    for count in range(2, 41):
        first = 40 - count
        batch = np.roll(inputs, -first, axis=0)[:count].copy()
        found = products.multiply(matrix, batch)
        assert [row.tobytes() for row in found] == alone[first : first + count]


@every_isa
@every_format
def test_threads_do_not_change_a_bit(products: Products, format_: Format):
    matrix, inputs = packed(5, [(format_, 300)], 128), numbers(6, 13, 128)

    with Pool(2) as pool:
        found = Products(products.isa, pool).multiply(matrix, inputs)

    assert found.tobytes() == products.multiply(matrix, inputs).tobytes()


@every_isa
@every_format
def test_a_row_that_is_no_number_leaves_the_others_alone(products: Products, format_: Format):
    matrix, inputs = packed(9, [(format_, 40)], 96), numbers(10, 14, 96)
    expected = products.multiply(matrix, inputs)
    inputs[5] = np.nan

    found = products.multiply(matrix, inputs)

    others = np.arange(14) != 5
    assert found[others].tobytes() == expected[others].tobytes()


@every_isa
@pytest.mark.parametrize("format_", [Format.I8_G32, Format.I8_G64])
@pytest.mark.parametrize("byte", [0, 255])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_largest_bytes_do_not_saturate(
    products: Products, format_: Format, byte: int, sign: float
):
    matrix = packed(1, [(format_, 32)], 128)
    panels = matrix.kept[0]
    assert isinstance(panels, np.ndarray)
    groups = panels.reshape(-1, format_.group_bytes)
    groups[:, 2 * PANEL_ROWS :] = byte
    scales = groups[:, : 2 * PANEL_ROWS].view(np.float16).astype(np.float64)

    found = products.multiply(matrix, np.full((8, 128), sign, np.float32))

    expected = sign * format_.group * (byte - 128) * scales.sum(axis=0)
    np.testing.assert_allclose(found, np.tile(expected, (8, 1)), rtol=1e-5)
