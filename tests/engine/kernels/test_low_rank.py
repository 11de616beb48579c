"""The products of LoRA adapters: right, and the same bits for any number of rows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.kernels.reference.backend import ReferenceBackend

RANKS = (1, 2, 3, 8, 16, 24, 64, 128)


def adapter(rank: int, size: int, out: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(rank)
    shapes = ((200, size), (rank, size), (out, rank))
    return tuple(torch.randn(shape).to(dtype) for shape in shapes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank", RANKS)
def test_two_products_in_float32(rank, dtype):
    rows, down, up = adapter(rank, 72, 40, dtype)

    found = ReferenceBackend().low_rank(rows, down, up)

    assert found.dtype is torch.float32
    wanted = (rows.double() @ down.double().T) @ up.double().T
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(("size", "out"), [(576, 960), (50, 30), (577, 9)])
@pytest.mark.parametrize("rank", RANKS)
def test_the_number_of_rows_changes_no_bit(rank, size, out):
    kernels = ReferenceBackend()
    rows, down, up = adapter(rank, size, out, torch.float32)
    every = kernels.low_rank(rows, down, up)

    for start, end in ((0, 1), (1, 2), (1, 4), (3, 8), (5, 22), (7, 70), (60, 193), (199, 200)):
        assert torch.equal(kernels.low_rank(rows[start:end], down, up), every[start:end])


def test_no_rows_give_no_rows():
    rows, down, up = adapter(4, 8, 6, torch.bfloat16)

    assert ReferenceBackend().low_rank(rows[:0], down, up).shape == (0, 6)


class Watch(TorchDispatchMode):
    """Keeps the results of all matrix products that have so many columns."""

    def __init__(self, num_columns: int) -> None:
        super().__init__()
        self.num_columns = num_columns
        self.products: list[torch.Tensor] = []

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mm.default and found.shape[1] == self.num_columns:
            self.products.append(found)
        return found


def test_an_adapter_without_effect_does_not_decide_for_others_of_its_shape():
    kernels = ReferenceBackend()
    rows, down, up = adapter(4, 72, 40, torch.float32)

    with Watch(40) as first:
        kernels.low_rank(rows[:4], down, torch.zeros_like(up))
    with Watch(40) as second:
        kernels.low_rank(rows[:4], down, up)

    *probes, product = first.products
    assert not product.any()
    assert len(probes) > 1
    assert all(probe.any() for probe in probes)
    assert len(second.products) == 1, "what is known of the shape is not asked again"
