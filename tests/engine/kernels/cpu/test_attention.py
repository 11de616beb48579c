"""Paged attention on every instruction set that runs here, over a cache full of no numbers."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings

from engine.kernels.cpu.library import instruction_sets
from tests.engine.kernels.cpu.attention_cases import (
    NUM_BLOCKS,
    batched,
    cases,
    check_cache,
    check_mixing,
    chunked,
    context_of,
    long_case,
)
from tests.engine.kernels.cpu.attention_stage import BF16, INT8, Shape, Stage

every_isa = pytest.mark.parametrize("isa", instruction_sets())
every_cache = pytest.mark.parametrize("cache_dtype", [BF16, INT8], ids=["bf16", "int8"])


@every_isa
@given(case=cases(BF16))
@settings(max_examples=25, deadline=None)
def test_any_layer_gives_what_the_formula_gives_whatever_the_company(isa, case):
    stage, context, found = batched(case, isa)

    check_cache(stage, context)
    check_mixing(stage, context, found)
    assert torch.equal(chunked(case, isa), found)


@every_isa
@every_cache
@pytest.mark.parametrize("window", [None, 600])
def test_contexts_of_several_pieces_are_the_same_split_over_threads(isa, cache_dtype, window):
    case = long_case(cache_dtype, window)
    together = chunked(case, isa)
    split = Stage(case.shape, NUM_BLOCKS, isa, num_threads=2)
    context = context_of(case.shape, case.length, 1)

    # short steps are cut into pieces: some rows see fewer of these than their neighbours
    ends = (0, 500, 520, 1100, 1120, case.length - 1, case.length)
    found = torch.cat([split.run([(context, start, end)])[0] for start, end in pairwise(ends)])

    assert torch.equal(found, together)
    check_mixing(split, context, found)


@every_isa
@every_cache
def test_rows_that_end_with_a_piece_are_not_changed_by_the_next(isa, cache_dtype):
    # blocks of one position: a piece has 32 of them; all scores are far below zero
    shape = Shape(num_heads=3, num_kv_heads=1, block_size=1, window=40, cache_dtype=cache_dtype)
    context = context_of(shape, 80, 1)
    context.qkv[:, : -shape.head_dim].abs_()[:, -shape.head_dim :].neg_()
    stage, one = (Stage(replace(shape, rotary_dim=0), NUM_BLOCKS, isa) for _ in range(2))

    # a task has 16 tokens: those from 21 on end in two pieces
    found = torch.cat([stage.run([(context, start, end)])[0] for start, end in ((0, 5), (5, 80))])

    check_mixing(stage, context, found)
    alone = [one.run([(context, at, at + 1)])[0] for at in range(80)]
    assert torch.equal(torch.cat(alone), found)


@every_isa
@every_cache
@pytest.mark.parametrize("block_size", [8, 16])
def test_a_token_that_is_no_number_reaches_only_those_that_see_it(isa, cache_dtype, block_size):
    shape = Shape(num_heads=4, block_size=block_size, window=9, cache_dtype=cache_dtype)
    context = context_of(shape, 40, 1)
    (clean,) = Stage(shape, NUM_BLOCKS, isa).run([(context, 0, 40)])
    parts = context.qkv.view(40, -1, shape.head_dim)
    parts[17, 4:6, 0] = float("nan")  # of the keys a single number
    parts[17, 6:] = float("nan")

    (found,) = Stage(shape, NUM_BLOCKS, isa).run([(context, 0, 40)])

    reached = found.isnan().all(dim=1)
    assert reached.nonzero().flatten().tolist() == list(range(17, 26))
    assert torch.equal(found[~reached], clean[~reached])


@every_isa
@every_cache
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_no_number_reaches_those_that_see_it_though_its_key_is_one(
    isa, cache_dtype, value
):
    shape = Shape(num_heads=4, window=9, cache_dtype=cache_dtype)
    context = context_of(shape, 40, 1)
    (clean,) = Stage(shape, NUM_BLOCKS, isa).run([(context, 0, 40)])
    context.qkv.view(40, -1, shape.head_dim)[17, 7, 3] = value  # of the second key-value head

    (found,) = Stage(shape, NUM_BLOCKS, isa).run([(context, 0, 40)])

    half = found.shape[1] // 2
    reached = found[:, half:].isnan().all(dim=1)
    assert reached.nonzero().flatten().tolist() == list(range(17, 26))
    assert torch.equal(found[~reached], clean[~reached])
    assert torch.equal(found[:, :half], clean[:, :half])


@every_isa
@every_cache
@pytest.mark.parametrize("block_size", [3, 16, 24])
def test_what_lies_before_the_window_changes_no_bit(isa, cache_dtype, block_size):
    shape = Shape(block_size=block_size, window=7, cache_dtype=cache_dtype)
    context = context_of(shape, 70, 1)
    (wanted,) = Stage(shape, NUM_BLOCKS, isa).run([(context, 0, 70)])
    stage = Stage(shape, NUM_BLOCKS, isa)
    stage.run([(context, 0, 41)])

    for start, end in ((41, 42), (42, 57), (57, 70)):
        stage.forget(context, max(0, start - 6))
        (found,) = stage.run([(context, start, end)])
        assert torch.equal(found, wanted[start:end])


@every_isa
@every_cache
def test_an_earlier_owner_of_a_block_changes_no_bit(isa, cache_dtype):
    shape = Shape(block_size=24, window=30, cache_dtype=cache_dtype)
    context, earlier = context_of(shape, 50, 1), context_of(shape, 72, 1)
    (wanted,) = Stage(shape, NUM_BLOCKS, isa).run([(context, 0, 50)])
    stage = Stage(shape, NUM_BLOCKS, isa)
    stage.run([(earlier, 0, 72)])

    (found,) = stage.run([(context, 0, 50)])

    assert torch.equal(found, wanted)


@every_isa
def test_a_single_key_gives_its_value(isa):
    shape = Shape(num_heads=2, num_kv_heads=2)
    context = context_of(shape, 1, 1)

    (found,) = Stage(shape, NUM_BLOCKS, isa).run([(context, 0, 1)])

    values = context.qkv[:, -2 * shape.head_dim :]
    assert torch.equal(found, values.bfloat16().float())


def test_splitting_many_long_contexts_takes_little_memory_and_changes_no_bits():
    # one token is a task of 48 rows; without a bound, the parts of all 100 took 99 MB
    shape = Shape(num_heads=48, head_dim=256, num_kv_heads=1, rotary_dim=0, block_size=1)
    context = context_of(shape, 600, 1)
    num_blocks = max(context.blocks) + 1
    alone, split = (
        Stage(shape, num_blocks, instruction_sets()[0], num_threads=count) for count in (1, 64)
    )
    for stage in (alone, split):
        stage.run([(context, 0, 500)])
    (wanted,) = alone.run([(context, 500, 600)])

    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    before = _peak_bytes()
    (found,) = split.run([(context, 500, 600)])

    assert _peak_bytes() - before < 60 << 20
    assert torch.equal(found, wanted)


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
