"""The reference attention against the plain formula: windows, scales, blocks, garbage."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import pytest
import torch

from engine.kernels.backend import HeadShape, LayerCache, ModelShapes, Span
from engine.kernels.reference.backend import ReferenceBackend

HEADS = HeadShape(num_heads=6, num_kv_heads=2, head_dim=16)
CPU = torch.device("cpu")


def backend(heads: HeadShape = HEADS) -> ReferenceBackend:
    kernels = ReferenceBackend()
    kernels.prepare(ModelShapes(((8, 8),), (8, 8), heads, torch.float32, CPU))
    return kernels


@pytest.fixture(scope="module")
def kernels() -> ReferenceBackend:
    return backend()


@dataclass
class Context:
    """Queries, keys and values of one request, and its blocks in a cache full of garbage."""

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    blocks: list[int]

    @classmethod
    def random(
        cls, length: int, block_size: int, first_block: int, heads: HeadShape = HEADS
    ) -> Self:
        torch.manual_seed(length)
        keys, values = torch.randn(2, length, heads.num_kv_heads, heads.head_dim)
        queries = torch.randn(length, heads.num_heads, heads.head_dim)
        count = -(-length // block_size)
        return cls(queries, keys, values, [first_block + 2 * at for at in range(count)])

    def __len__(self) -> int:
        return len(self.queries)

    def expected(
        self, window: int | None, scale: float = 0.25, softcap: float | None = None
    ) -> torch.Tensor:
        """Compute row by row, in float64."""
        group = self.queries.shape[1] // self.keys.shape[1]
        keys, values = (
            part.double().repeat_interleave(group, dim=1) for part in (self.keys, self.values)
        )
        scores = torch.einsum("qhd,khd->hqk", self.queries.double(), keys) * scale
        if softcap is not None:
            scores = softcap * (scores / softcap).tanh()
        at = torch.arange(len(self))
        seen = at[None] <= at[:, None]
        if window is not None:
            seen &= at[None] > at[:, None] - window
        weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
        return torch.einsum("hqk,khd->qhd", weights, values).flatten(1).float()


def empty_cache(
    block_size: int, dtype: torch.dtype, garbage: float, heads: HeadShape = HEADS
) -> LayerCache:
    shape = (160, block_size, heads.num_kv_heads, heads.head_dim)
    return LayerCache(*(torch.full(shape, garbage, dtype=dtype) for _ in range(2)))


def run(
    kernels: ReferenceBackend,
    cache: LayerCache,
    pieces: Sequence[tuple[Context, int, int]],
    *,
    window: int | None = None,
    scale: float = 0.25,
    softcap: float | None = None,
) -> list[torch.Tensor]:
    """Compute rows `[start, end)` of several contexts in one step, as a layer does."""
    spans: list[Span] = []
    row = 0
    for context, start, end in pieces:
        table: list[int] = list(context.blocks)
        if window is not None:
            first = max(0, start + 1 - window) // cache.block_size
            table = [-1] * first + table[first:]
        spans.append(Span(row, end - start, start, context.blocks, table))
        row += end - start
    plan = kernels.plan(spans, cache.block_size, window)
    layer = plan.full if plan.window is None else plan.window
    keys = torch.cat([context.keys[start:end] for context, start, end in pieces])
    values = torch.cat([context.values[start:end] for context, start, end in pieces])
    kernels.write_cache(keys, values, cache, layer)
    padding = torch.zeros(kernels.padded_rows(row) - row, *pieces[0][0].queries.shape[1:])
    queries = torch.cat([context.queries[start:end] for context, start, end in pieces])
    mixed = kernels.attention(torch.cat((queries, padding)), cache, layer, scale, softcap)
    assert not mixed[row:].any()
    return list(mixed[:row].split([end - start for _, start, end in pieces]))


@pytest.mark.parametrize("window", [None, 1, 2, 100, 128, 129, 300, 1000])
def test_every_window_gives_what_the_formula_gives(kernels, window):
    context = Context.random(400, 16, 3)

    (found,) = run(kernels, empty_cache(16, torch.float32, 0.0), [(context, 0, 400)], window=window)

    torch.testing.assert_close(found, context.expected(window), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [0.25, 1.5])
def test_scores_are_scaled(kernels, scale):
    context = Context.random(200, 16, 3)
    cache = empty_cache(16, torch.float32, 0.0)

    (found,) = run(kernels, cache, [(context, 0, 200)], window=77, scale=scale)

    wanted = context.expected(77, scale)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("softcap", [0.5, 3.0, 50.0])
def test_capped_scores_give_what_the_formula_gives(kernels, softcap):
    context = Context.random(200, 16, 3)
    cache = empty_cache(16, torch.float32, float("nan"))

    (found,) = run(kernels, cache, [(context, 0, 200)], window=77, scale=1.5, softcap=softcap)

    wanted = context.expected(77, 1.5, softcap)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_company_changes_no_bit_of_capped_scores(kernels):
    context, other = Context.random(150, 16, 3), Context.random(45, 16, 2)
    caches = [empty_cache(16, torch.float32, 0.0) for _ in range(2)]

    (alone,) = run(kernels, caches[0], [(context, 0, 150)], softcap=2.0)
    first, _ = run(kernels, caches[1], [(context, 0, 90), (other, 0, 45)], softcap=2.0)
    (second,) = run(kernels, caches[1], [(context, 90, 150)], softcap=2.0)

    assert torch.equal(torch.cat((first, second)), alone)


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 60000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [None, 3, 130])
def test_what_lies_where_a_request_may_not_look_changes_no_bit(kernels, dtype, garbage, window):
    context, other = Context.random(300, 16, 3), Context.random(45, 16, 2)
    clean, dirty = (empty_cache(16, dtype, fill) for fill in (0.0, garbage))

    for start, end in ((0, 90), (90, 91), (91, 257), (257, 300)):
        pieces = [(context, start, end), (other, min(start, 44), 45)]
        (wanted, _), (found, _) = (
            run(kernels, cache, pieces, window=window) for cache in (clean, dirty)
        )
        assert torch.isfinite(found).all()
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("block_size", [1, 5, 16, 48, 128, 256])
@pytest.mark.parametrize("window", [None, 20, 150])
def test_company_chunks_and_block_sizes_change_no_bit(kernels, block_size, window):
    length = 140 if block_size == 1 else 500
    context = Context.random(length, block_size, 1)
    cache = cache_for(block_size, length)
    (alone,) = run(kernels, cache, [(context, 0, length)], window=window)
    others = [Context.random(40 + 60 * at, block_size, 2) for at in range(2)]
    ends = [1, 60, 61, 62, 127, 128, 129, length]
    cache, parts = cache_for(block_size, length), []

    for start, end in zip([0, *ends], ends, strict=False):
        pieces = [(other, 0, min(end, len(other))) for other in others[:1]]
        parts.append(run(kernels, cache, [*pieces, (context, start, end)], window=window)[-1])

    assert torch.equal(torch.cat(parts), alone)


def cache_for(block_size: int, length: int) -> LayerCache:
    shape = (2 * -(-length // block_size) + 100, block_size, HEADS.num_kv_heads, HEADS.head_dim)
    return LayerCache(torch.full(shape, float("nan")), torch.full(shape, float("nan")))


def test_a_window_gives_the_same_bits_in_any_block_size(kernels):
    found = []
    for block_size in (16, 48, 256):
        context = Context.random(400, block_size, 1)
        (rows,) = run(
            kernels, empty_cache(block_size, torch.float32, 0.0), [(context, 0, 400)], window=90
        )
        found.append(rows)

    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize(
    "heads", [HeadShape(4, 1, 256), HeadShape(3, 3, 80), HeadShape(300, 1, 8), HeadShape(7, 1, 96)]
)
def test_heads_of_any_number_and_size_give_what_the_formula_gives(heads):
    kernels, context = backend(heads), Context.random(150, 16, 1, heads)
    cache = empty_cache(16, torch.float32, 0.0, heads)

    (found,) = run(kernels, cache, [(context, 0, 150)], window=60)

    torch.testing.assert_close(found, context.expected(60), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head_dim", [2, 6, 10, 12])
def test_the_place_in_a_piece_changes_no_bit_for_odd_heads(head_dim):
    heads = HeadShape(1, 1, head_dim)
    kernels, context = backend(heads), Context.random(30, 16, 1, heads)
    (alone,) = run(kernels, empty_cache(16, torch.float32, 0.0, heads), [(context, 0, 30)])
    cache, parts = empty_cache(16, torch.float32, 0.0, heads), []

    for start, end in ((0, 1), (1, 4), (4, 15), (15, 30)):
        parts += run(kernels, cache, [(context, start, end)])

    assert torch.equal(torch.cat(parts), alone)
