"""Random layers, contexts and ways to cut them into steps, for tests of attention."""

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.engine.kernels.cpu.attention_oracle import cached_parts, exact_parts, mixed
from tests.engine.kernels.cpu.attention_stage import BF16, Context, Shape, Stage

NUM_BLOCKS = 260


@dataclass(frozen=True, slots=True)
class Case:
    """A layer, and how its steps are cut."""

    shape: Shape
    length: int
    """Positions of the context that is looked at."""
    cuts: tuple[int, ...]
    """Where it is cut into steps, when it is computed piece by piece."""


def context_of(shape: Shape, length: int, first_block: int) -> Context:
    """Make a context of random rows; every third block from the first is its own."""
    generator = torch.Generator().manual_seed(1000 * first_block + length)
    qkv = torch.randn(length, shape.qkv_width, generator=generator)
    count = -(-length // shape.block_size)
    return Context(qkv, [first_block + 3 * at for at in range(count)][::-1])


@st.composite
def shapes(draw: st.DrawFn, cache_dtype: int) -> Shape:
    """Draw what a layer's attention is like."""
    kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 13))
    head_dim = draw(st.sampled_from([6, 10, 16, 64, 80, 96, 128, 256]))
    return Shape(
        num_heads=kv_heads * group,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dim=draw(st.one_of(st.just(head_dim), st.integers(1, head_dim // 2).map(_double))),
        block_size=draw(st.sampled_from([1, 3, 8, 16, 24, 32])),
        window=draw(st.one_of(st.none(), st.integers(1, 60))),
        softcap=draw(st.sampled_from([None, 2.0])),
        has_norms=draw(st.booleans()),
        cache_dtype=cache_dtype,
    )


def _double(half: int) -> int:
    return 2 * half


@st.composite
def cases(draw: st.DrawFn, cache_dtype: int) -> Case:
    """Draw a layer and the steps of a context."""
    length = draw(st.integers(1, 75))
    cuts = draw(st.sets(st.integers(1, length), max_size=4))
    return Case(draw(shapes(cache_dtype)), length, tuple(sorted(cuts - {length})))


def batched(case: Case, isa: str) -> tuple[Stage, Context, Tensor]:
    """Compute a context at once, between two others, on two threads."""
    stage = Stage(case.shape, NUM_BLOCKS, isa, num_threads=2)
    context = context_of(case.shape, case.length, 1)
    before, after = context_of(case.shape, 5, 0), context_of(case.shape, 20, 2)
    pieces = [(before, 0, 5), (context, 0, case.length), (after, 0, 20)]
    _, found, _ = stage.run(pieces)
    return stage, context, found


def chunked(case: Case, isa: str) -> Tensor:
    """Compute it alone, step by step, on one thread."""
    stage = Stage(case.shape, NUM_BLOCKS, isa)
    context = context_of(case.shape, case.length, 1)
    ends = [0, *case.cuts, case.length]
    return torch.cat([stage.run([(context, start, end)])[0] for start, end in pairwise(ends)])


def check_mixing(stage: Stage, context: Context, found: Tensor) -> None:
    """Compare with the formula, read from what the cache holds."""
    keys, values = cached_parts(stage, context)
    wanted = mixed(stage, context, keys, values)
    tolerance = 0.008 if stage.shape.cache_dtype == BF16 else 0.002
    bound = tolerance * float(values.abs().max()) + 1e-6
    assert float((found - wanted).abs().max()) < bound


def check_cache(stage: Stage, context: Context) -> None:
    """Compare what the cache holds with the exact keys and values."""
    _, keys, values = exact_parts(stage, context)
    for held, exact in zip(cached_parts(stage, context), (keys, values), strict=True):
        if stage.shape.cache_dtype == BF16:
            bound = exact.abs() / 255 + 1e-5
        else:  # half a step of 127 to the head's largest value
            bound = exact.abs().amax(dim=-1, keepdim=True) * (0.502 / 127) + 1e-6
        assert ((held - exact).abs() <= bound).all()


def long_case(cache_dtype: int, window: int | None) -> Case:
    """Return a context of several pieces, with a single row in its last step."""
    shape = Shape(num_heads=3, num_kv_heads=1, head_dim=16, rotary_dim=16, window=window)
    return Case(replace(shape, cache_dtype=cache_dtype), 1290, (500, 520, 1100, 1289))
