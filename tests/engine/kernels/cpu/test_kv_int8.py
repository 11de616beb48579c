"""Keys and values in int8, with a scale for each token and head."""

import pytest
import torch
from hypothesis import given, settings

from engine.kernels.cpu.library import instruction_sets, library
from tests.engine.kernels.cpu.attention_cases import (
    NUM_BLOCKS,
    batched,
    cases,
    check_cache,
    check_mixing,
    chunked,
    context_of,
)
from tests.engine.kernels.cpu.attention_oracle import exact_parts, mixed
from tests.engine.kernels.cpu.attention_stage import BF16, INT8, Shape, Stage

every_isa = pytest.mark.parametrize("isa", instruction_sets())
SHAPE = Shape(num_heads=6, num_kv_heads=2, head_dim=64, cache_dtype=INT8)


@every_isa
@given(case=cases(INT8))
@settings(max_examples=25, deadline=None)
def test_any_layer_gives_what_the_formula_gives_whatever_the_company(isa, case):
    stage, context, found = batched(case, isa)

    check_cache(stage, context)
    check_mixing(stage, context, found)
    assert torch.equal(chunked(case, isa), found)


@every_isa
def test_rounding_costs_about_a_percent_of_the_result(isa):
    stage = Stage(SHAPE, NUM_BLOCKS, isa)
    context = context_of(SHAPE, 200, 1)

    (found,) = stage.run([(context, 0, 200)])

    _, keys, values = exact_parts(stage, context)
    wanted = mixed(stage, context, keys, values)
    assert float((found - wanted).norm() / wanted.norm()) < 0.02


def test_every_instruction_set_computes_the_same_but_for_the_exponential():
    results: list[torch.Tensor] = []
    for isa in instruction_sets():
        results += Stage(SHAPE, NUM_BLOCKS, isa).run([(context_of(SHAPE, 100, 1), 0, 100)])

    for found in results[1:]:
        torch.testing.assert_close(found, results[0], rtol=1e-3, atol=1e-4)


@every_isa
def test_a_large_value_of_little_weight_does_not_drown_the_others(isa):
    stage = Stage(SHAPE, NUM_BLOCKS, isa)
    context = context_of(SHAPE, 60, 1)
    parts = context.qkv.view(60, -1, SHAPE.head_dim)
    parts[:, :6] = 0.1  # the same query everywhere,
    parts[:, 6:8] = 0.1  # and the same key, so every value weighs the same
    parts[9, 8:] *= 1e-3
    parts[10, 8:] *= 100.0

    (found,) = stage.run([(context, 0, 60)])

    check_mixing(stage, context, found)
    assert torch.isfinite(found).all()


@every_isa
@pytest.mark.parametrize("factor", [0.0, 1e-38, 1e-20, 1e15, 1e30])
def test_heads_of_any_size_stay_numbers(isa, factor):
    shape = Shape(num_heads=2, num_kv_heads=1, scale=1e-3, cache_dtype=INT8)
    stage = Stage(shape, NUM_BLOCKS, isa)
    context = context_of(shape, 20, 1)
    context.qkv[:, -shape.head_dim :] *= factor

    (found,) = stage.run([(context, 0, 20)])

    exact = context.qkv[:, -shape.head_dim :].abs().max()
    assert torch.isfinite(found).all()
    assert found.abs().max() <= exact * 1.01


@pytest.mark.parametrize("head_dim", [6, 64, 80, 256])
@pytest.mark.parametrize("block_size", [1, 8, 16, 24])
def test_blocks_take_half_of_the_memory_and_the_scales(head_dim, block_size):
    bf16, int8 = (
        library().qd_cache_block_bytes(dtype, block_size, 3, head_dim) for dtype in (BF16, INT8)
    )

    tiles = -(-block_size // 16)
    assert bf16 == 2 * 2 * 3 * tiles * 16 * (-(-head_dim // 16) * 16)
    assert int8 == bf16 // 2 + 3 * tiles * 2 * 16 * 4
    assert bf16 % 64 == int8 % 64 == 0
