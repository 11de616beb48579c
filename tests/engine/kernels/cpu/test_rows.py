"""The kernels of single rows on every instruction set that runs here."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels.cpu.library import instruction_sets
from engine.kernels.cpu.weights import Format
from tests.engine.kernels.cpu.packed import Floats, packed
from tests.engine.kernels.cpu.row_kernels import GROUPS, INTERLEAVE, Rounded, RowKernels

every_isa = pytest.mark.parametrize(
    "kernels", [RowKernels(isa) for isa in instruction_sets()], ids=str
)
short = settings(max_examples=30, deadline=None)
sizes = st.integers(1, 300)
SILU, GELU = 0, 1
INT8_KINDS = (1, 2)


def numbers(seed: int, size: int, scale: float = 1.0) -> Floats:
    return np.random.default_rng(seed).standard_normal(size, dtype=np.float32) * np.float32(scale)


@every_isa
@given(
    segments=st.one_of(
        st.lists(st.tuples(st.just(Format.BF16), sizes), min_size=1, max_size=3),
        st.lists(
            st.tuples(st.sampled_from([Format.W4_G32, Format.I8_G32]), sizes),
            min_size=1,
            max_size=3,
        ),
        st.lists(st.tuples(st.just(Format.I8_G64), sizes), min_size=1, max_size=2),
    ),
    size=st.integers(1, 130),
    token=st.integers(0, 10**6),
    scale=st.sampled_from([1.0, 24.0]),
)
@short
def test_embeddings_are_the_rows_of_the_table(kernels, segments, size, token, scale):
    table = packed(token, segments, size)
    token %= table.linear.columns

    found = kernels.embed(table, token, scale, size)

    wanted = table.values[token, :size] * np.float32(scale)
    np.testing.assert_array_equal(found, wanted)


@every_isa
@given(size=sizes, scale=st.sampled_from([1e-3, 1.0, 1e4]), seed=st.integers(0, 99))
@short
def test_norms_have_unit_root_mean_square_times_the_weight(kernels, size, scale, seed):
    row, weight = numbers(seed, size, scale), numbers(seed + 1, size)

    found = kernels.rms_norm(row, weight, 1e-6)

    exact = row.astype(np.float64)
    wanted = exact / np.sqrt(np.mean(exact**2) + np.float32(1e-6)) * weight
    np.testing.assert_allclose(found, wanted, rtol=2e-6)


@every_isa
@pytest.mark.parametrize("offset", [4, 20, 60])
def test_norms_do_not_depend_on_where_a_row_lies(kernels, offset):
    row, weight = numbers(1, 77), numbers(2, 77)
    moved = np.concatenate([np.zeros(offset // 4, np.float32), row])[offset // 4 :]

    found = kernels.rms_norm(moved, weight, 1e-6, offset)

    np.testing.assert_array_equal(found, kernels.rms_norm(row, weight, 1e-6))


@every_isa
@given(size=sizes)
@short
def test_rows_are_added(kernels, size):
    row, to = numbers(1, size), numbers(2, size)

    np.testing.assert_array_equal(kernels.add(row, to), row + to)


@every_isa
@pytest.mark.parametrize("kind", INT8_KINDS)
@given(size=sizes, row=st.integers(0, 13), scale=st.sampled_from([1e-6, 1.0, 1e6]))
@short
def test_rounding_to_int8_takes_the_nearest_step_of_each_group(kernels, kind, size, row, scale):
    group = GROUPS[kind]
    values = numbers(size, size, scale)
    into = Rounded(kind, -(-size // group) * group + group, row + 1)

    kernels.round_row(values, into, row)

    groups = np.zeros(into.width, np.float32)
    groups[:size] = values
    groups = groups.reshape(-1, group)
    largest = np.abs(groups).max(axis=1)
    found, scales, sums, scaled_sums = into.row(row)
    np.testing.assert_array_equal(scales, largest / np.float32(127))
    with np.errstate(divide="ignore"):
        factors = np.where(largest > 0, np.float32(127) / largest, np.float32(0))
    np.testing.assert_array_equal(found.reshape(groups.shape), np.rint(groups * factors[:, None]))
    np.testing.assert_array_equal(sums, found.reshape(groups.shape).sum(axis=1, dtype=np.int32))
    np.testing.assert_array_equal(scaled_sums, sums.astype(np.float32) * scales)


@every_isa
@given(size=sizes, row=st.integers(0, 13))
@short
def test_rounding_to_bfloat16_takes_the_nearest(kernels, size, row):
    values = numbers(size, size)
    into = Rounded(0, -(-size // 2) * 2 + 4, row + 1)

    kernels.round_row(values, into, row)

    wanted = torch.zeros(into.width, dtype=torch.bfloat16)
    wanted[:size] = torch.from_numpy(values).bfloat16()
    found = into.row(row).values
    np.testing.assert_array_equal(found, wanted.view(torch.uint16).numpy())


@every_isa
@pytest.mark.parametrize("kind", [0, *INT8_KINDS])
def test_rounding_touches_no_other_row_and_gives_every_row_the_same_bits(kernels, kind):
    values = numbers(3, 200)
    into = Rounded(kind, 256, 2 * INTERLEAVE)
    blank = Rounded(kind, 256, 2 * INTERLEAVE)

    kernels.round_row(values, into, 7)

    for row in set(range(2 * INTERLEAVE)) - {7}:
        for found, before in zip(into.row(row), blank.row(row), strict=True):
            np.testing.assert_array_equal(found, before)
        kernels.round_row(values, blank, row)
        for found, before in zip(blank.row(row), into.row(7), strict=True):
            np.testing.assert_array_equal(found, before)


@every_isa
@pytest.mark.parametrize("kind", INT8_KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_makes_all_scales_of_its_row_none(kernels, kind, bad):
    values = numbers(4, 130)
    values[77] = bad
    into = Rounded(kind, 192, 1)

    kernels.round_row(values, into, 0)

    found, scales, _, scaled_sums = into.row(0)
    assert np.isnan(scales).all()
    assert np.isnan(scaled_sums).all()
    assert (np.abs(found.astype(np.int32)) <= 127).all()


@every_isa
def test_bfloat16_keeps_what_is_no_number(kernels):
    values = np.array([np.nan, np.inf, -np.inf, 3.4e38], np.float32)
    into = Rounded(0, 4, 1)

    kernels.round_row(values, into, 0)

    found = torch.from_numpy(into.row(0).values.copy()).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(found, [np.nan, np.inf, -np.inf, np.inf])


@every_isa
@pytest.mark.parametrize("kind", INT8_KINDS)
def test_groups_too_small_to_be_divided_by_are_zeros(kernels, kind):
    into = Rounded(kind, 64, 1)

    kernels.round_row(np.full(64, 1e-38, np.float32), into, 0)

    for part in into.row(0):
        assert not part.any()


@every_isa
@pytest.mark.parametrize("activation", [SILU, GELU])
@given(size=sizes, scale=st.sampled_from([0.1, 3.0, 100.0]))
@short
def test_activated_gates_are_multiplied(kernels, activation, size, scale):
    gate, up = numbers(size, size, scale), numbers(size + 1, size)

    found = kernels.glu(activation, gate, up)

    exact = torch.from_numpy(gate).double()
    activated = F.silu(exact) if activation == SILU else F.gelu(exact, approximate="tanh")
    wanted = activated.numpy() * up
    np.testing.assert_allclose(found, wanted, rtol=3e-6, atol=1e-6 * min(scale, 1.0))


@every_isa
@pytest.mark.parametrize("activation", [SILU, GELU])
def test_an_activated_value_does_not_depend_on_its_place(kernels, activation):
    gate, up = numbers(5, 64), numbers(6, 64)
    every = kernels.glu(activation, gate, up)

    for first, end in ((0, 1), (3, 20), (17, 64), (63, 64)):
        part = kernels.glu(activation, gate[first:end], up[first:end], offset=4)
        np.testing.assert_array_equal(part, every[first:end])


@every_isa
@pytest.mark.parametrize("activation", [SILU, GELU])
def test_activations_keep_what_is_no_number(kernels, activation):
    gate = np.array([np.nan, np.inf, 1.0, 1e30, -1e30], np.float32)

    found = kernels.glu(activation, gate, np.ones(5, np.float32))

    assert np.isnan(found[0])
    assert found[1] == np.inf
    assert np.isfinite(found[2:4]).all()
    assert abs(found[4]) < 1e-6


@every_isa
@given(size=sizes, cap=st.sampled_from([5.0, 30.0, 50.0]))
@short
def test_capped_values_follow_the_hyperbolic_tangent(kernels, size, cap):
    row = numbers(size, size, 40.0)

    found = kernels.softcap(cap, row)

    wanted = cap * np.tanh(row.astype(np.float64) / cap)
    np.testing.assert_allclose(found, wanted, atol=3e-7 * cap, rtol=1e-6)


@every_isa
@given(half=st.integers(1, 70), position=st.integers(0, 1 << 20))
@short
def test_angles_are_those_of_torch(kernels, half, position):
    frequencies = (1.0 / 10000.0 ** (np.arange(half) / half)).astype(np.float32)

    cosines, sines = kernels.rotary(frequencies, 1.25, position)

    angles = torch.tensor(position, dtype=torch.float32) * torch.from_numpy(frequencies)
    np.testing.assert_allclose(cosines, angles.cos().numpy() * 1.25, atol=3e-7)
    np.testing.assert_allclose(sines, angles.sin().numpy() * 1.25, atol=3e-7)
