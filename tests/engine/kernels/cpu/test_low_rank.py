"""LoRA in C++: the products on every instruction set here, and the tables that steps point to."""

import ctypes
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_void_p

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.kernels.cpu.adapters import (
    MAX_RANK,
    PARTS,
    CpuAdapterKernels,
    CpuAdapters,
    CpuUpdates,
)
from engine.kernels.cpu.library import instruction_sets, library
from engine.kernels.cpu.structs import Update, UpdateList
from engine.kernels.reference.backend import ReferenceBackend
from engine.layers.lora import AdapterRows, LowRankUpdate, PackedAdapters

every_isa = pytest.mark.parametrize("isa", instruction_sets())
short = settings(max_examples=30, deadline=None)
POISON = 1e30


def low_rank(isa: str, update: Update, rows: list[int], inputs: Tensor, out: Tensor) -> None:
    function = library().qd_op_low_rank
    function.restype = c_int32
    function.argtypes = [
        c_char_p, POINTER(Update), c_void_p, c_int32, c_void_p, c_int64, c_void_p, c_int64,
    ]  # fmt: skip
    indices = np.array(rows, np.int32)
    status = function(
        isa.encode(), update, indices.ctypes.data, len(rows), inputs.data_ptr(), inputs.stride(0),
        out.data_ptr(), out.stride(0),
    )  # fmt: skip
    assert status == 0


def random_update(seed: int, rank: int, width: int, columns: int, first: int = 0) -> LowRankUpdate:
    generator = torch.Generator().manual_seed(seed)
    down = torch.randn(rank, width, generator=generator)
    return LowRankUpdate(first, down, torch.randn(rank, columns, generator=generator).T)


def described(update: LowRankUpdate) -> tuple[Update, CpuUpdates]:
    """The structure of an update, and what keeps it alive."""
    kept = CpuUpdates({"layers.0.output": [update]}, 1, 16)
    return kept.lists[PARTS.index("output")].updates[0], kept


@every_isa
@given(
    seed=st.integers(0, 999),
    rank=st.integers(1, 20),
    width=st.integers(1, 80),
    columns=st.integers(1, 80),
    first=st.integers(0, 9),
    num_rows=st.integers(1, 9),
)
@short
def test_each_row_gets_two_products_in_its_own_columns(
    isa, seed, rank, width, columns, first, num_rows
):
    update = random_update(seed, rank, width, columns, first)
    structure, _kept = described(update)
    inputs = torch.full((12, width + 3), torch.nan)
    rows = torch.randperm(12, generator=torch.Generator().manual_seed(seed))[:num_rows].tolist()
    inputs[rows, :width] = torch.randn(num_rows, width)
    out = torch.full((12, first + columns + 5), POISON)
    out[rows, first : first + columns] = 1.0
    wanted = out.double()
    wanted[rows, first : first + columns] += (
        inputs[rows, :width].double() @ update.down.double().T @ update.up.double().T
    )

    low_rank(isa, structure, rows, inputs, out)

    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-3)
    untouched = torch.ones_like(out, dtype=torch.bool)
    untouched[rows, first : first + columns] = False
    assert (out[untouched] == POISON).all()


@every_isa
@pytest.mark.parametrize(("width", "columns"), [(576, 960), (50, 30), (17, 33)])
@pytest.mark.parametrize("rank", [1, 3, 16])
def test_the_number_of_rows_changes_no_bit(isa, rank, width, columns):
    structure, _kept = described(random_update(rank, rank, width, columns))
    inputs = torch.randn(13, width, generator=torch.Generator().manual_seed(1))
    together = torch.ones(13, columns)
    low_rank(isa, structure, list(range(13)), inputs, together)

    for some in ([0], [12], [3, 4], [9, 2, 7], [1, 5, 6, 8], [11, 10, 9, 8, 7]):
        out = torch.ones(13, columns)
        low_rank(isa, structure, some, inputs, out)
        assert torch.equal(out[some], together[some])


def test_an_unknown_instruction_set_and_an_empty_update_are_refused():
    structure, _kept = described(random_update(1, 2, 8, 8))
    row = torch.zeros(1, 8)

    for name, update in (("mmx", structure), ("portable", Update())):
        with pytest.raises(AssertionError):
            low_rank(name, update, [0], row, row)


def entries(updates: CpuUpdates, layer: int, part: str) -> list[Update]:
    found: UpdateList = updates.lists[layer * len(PARTS) + PARTS.index(part)]
    return [found.updates[at] for at in range(found.count)]


def floats(address: int, *shape: int) -> Tensor:
    buffer = (ctypes.c_float * int(np.prod(shape))).from_address(address)
    return torch.tensor(list(buffer)).view(*shape)


def test_a_table_has_each_update_at_its_layer_and_part_without_a_copy():
    query, value = random_update(1, 3, 8, 6), random_update(2, 4, 8, 2, first=10)
    down = random_update(3, 2, 32, 8)
    made = {"layers.1.qkv": [query, value], "layers.0.down": [down]}

    updates = CpuAdapterKernels(num_layers=2, inner_size=32).prepare(made)

    assert isinstance(updates, CpuUpdates)
    assert dict(updates) == made
    counts = [[len(entries(updates, layer, part)) for part in PARTS] for layer in (0, 1)]
    assert counts == [[0, 0, 0, 1], [2, 0, 0, 0]]
    found = entries(updates, 1, "qkv")[1]
    shape = (found.rank, found.width, found.first_column, found.columns)
    assert shape == (4, 8, 10, 2)
    assert (found.down, found.up) == (value.down.data_ptr(), value.up.data_ptr())
    assert torch.equal(floats(found.up, 4, 2), value.up.T)


def test_matrices_that_lie_otherwise_are_brought_into_order():
    update = random_update(1, 3, 8, 6)
    plain = LowRankUpdate(0, update.down.T.contiguous().T, update.up.contiguous())

    updates = CpuUpdates({"layers.0.output": [plain]}, 1, 16)
    (found,) = entries(updates, 0, "output")

    assert torch.equal(floats(found.up, 3, 6), update.up.T)
    assert torch.equal(floats(found.down, 3, 8), update.down)


@pytest.mark.parametrize(
    ("inner", "first", "columns", "wanted"),
    [
        (32, 0, 64, [(0, 64)]),
        (32, 32, 32, [(32, 32)]),
        (20, 0, 20, [(0, 20)]),
        (20, 20, 20, [(32, 20)]),
        (20, 25, 5, [(37, 5)]),
        (20, 0, 40, [(0, 20), (32, 20)]),
        (20, 15, 10, [(15, 5), (32, 5)]),
    ],
)
def test_the_half_of_up_begins_at_the_padded_inner_size(inner, first, columns, wanted):
    update = random_update(1, 3, 8, columns, first)

    updates = CpuUpdates({"layers.0.gate_up": [update]}, 1, inner)
    found = entries(updates, 0, "gate_up")

    assert [(one.first_column, one.columns) for one in found] == wanted
    ups = [floats(one.up, 3, one.columns) for one in found]
    assert torch.equal(torch.cat(ups, dim=1), update.up.T)


@pytest.mark.parametrize("name", ["layers.2.qkv", "layers.0.head", "embedding", "layers.x.qkv"])
def test_products_that_no_adapter_changes_are_refused(name):
    with pytest.raises(ValueError, match=name):
        CpuUpdates({name: [random_update(1, 1, 8, 8)]}, 2, 16)


def test_a_rank_that_every_step_would_refuse_is_refused_at_once():
    CpuUpdates({"layers.0.output": [random_update(1, MAX_RANK, 8, 8)]}, 1, 16)
    with pytest.raises(ValueError, match="rank 1025 is above 1024"):
        CpuUpdates({"layers.0.output": [random_update(1, MAX_RANK + 1, 8, 8)]}, 1, 16)


def test_a_step_points_to_the_rows_and_the_table_of_each_adapter():
    kernels = CpuAdapterKernels(num_layers=1, inner_size=16)
    first = kernels.prepare({"layers.0.output": [random_update(1, 2, 8, 8)]})
    second = kernels.prepare({"layers.0.qkv": [random_update(2, 2, 8, 8)]})

    step = kernels.step(
        [AdapterRows(slice(2, 5), first), AdapterRows(torch.tensor([0, 7]), second)]
    )

    assert isinstance(step, CpuAdapters)
    rows = [(ctypes.c_int32 * one.num_rows).from_address(one.rows) for one in step.rows]
    assert [list(one) for one in rows] == [[2, 3, 4], [0, 7]]
    assert [one.lists[1].count for one in step.rows] == [1, 0]
    assert [one.lists[0].count for one in step.rows] == [0, 1]


def test_the_reference_multiplies_with_transposed_matrices_too():
    update = random_update(1, 3, 24, 40)
    plain = LowRankUpdate(0, update.down, update.up.contiguous())
    rows = torch.randn(9, 24)
    backend = ReferenceBackend()

    found, wanted = torch.zeros(9, 40), torch.zeros(9, 40)
    for out, one in ((found, update), (wanted, plain)):
        group = AdapterRows(slice(0, 9), {"layers.0.qkv": [one]})
        PackedAdapters([group], backend).apply("layers.0.qkv", rows, out)
    in_tensors = torch.zeros(9, 40)
    kernels = CpuAdapterKernels(1, 16)
    group = AdapterRows(slice(0, 9), kernels.prepare({"layers.0.qkv": [update]}))
    kernels.step([group]).apply("layers.0.qkv", rows, in_tensors)

    assert torch.equal(found, wanted)
    torch.testing.assert_close(in_tensors, wanted, rtol=1e-5, atol=1e-5)
