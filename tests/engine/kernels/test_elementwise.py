"""Norms, rotations and activations of the reference against plain formulas."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.reference.backend import ReferenceBackend

KERNELS = ReferenceBackend()
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def gate_up(rows: int, inner: int, dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(rows)
    return (torch.randn(rows, 2 * inner) * 4).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_is_the_tanh_approximation(dtype):
    both = gate_up(30, 50, dtype)
    gate, up = both.float().chunk(2, dim=-1)

    found = KERNELS.gelu_mul(both)

    wanted = (F.gelu(gate, approximate="tanh") * up).to(dtype)
    assert found.dtype is dtype
    torch.testing.assert_close(found, wanted, rtol=1e-2 if dtype.itemsize == 2 else 1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_of_large_values_is_finite(dtype):
    both = torch.tensor([[300.0, -300.0, 0.0, 1.0, 1.0, 1.0]], dtype=dtype)

    torch.testing.assert_close(
        KERNELS.gelu_mul(both), torch.tensor([[300.0, 0.0, 0.0]], dtype=dtype)
    )


@pytest.mark.parametrize("activation", [KERNELS.silu_mul, KERNELS.gelu_mul])
@pytest.mark.parametrize("threads", [1, 3])
def test_activations_of_a_row_do_not_depend_on_its_place(activation, threads):
    both = gate_up(700, 83, torch.float32)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        every = activation(both)
        for start, end in ((0, 1), (1, 2), (3, 20), (400, 699)):
            assert torch.equal(activation(both[start:end].clone()), every[start:end])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_give_the_asked_dtype_with_one_rounding(dtype):
    torch.manual_seed(1)
    rows, weight = torch.randn(5, 3, 64) * 7, torch.randn(64) + 1

    found = KERNELS.rms_norm(rows, weight, 1e-6, dtype)

    unit = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + 1e-6)
    assert torch.equal(found, (unit * weight).to(dtype))
    assert KERNELS.rms_norm(rows, weight, 1e-6).dtype is torch.float32


def test_values_beyond_the_rotating_part_stay():
    torch.manual_seed(2)
    heads, angle = torch.randn(6, 2, 10), torch.randn(6, 3)
    cos, sin = angle.cos(), angle.sin()

    found = KERNELS.rotary(heads, torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))

    first, second, rest = heads.split((3, 3, 4), dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    wanted = torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
    torch.testing.assert_close(found, wanted)
