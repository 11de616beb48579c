"""What attention should give, in float64 and row by row, and what a cache holds."""

import torch
from torch import Tensor

from tests.engine.kernels.cpu.attention_stage import BF16, EPSILON, LANES, Context, Stage


def exact_parts(stage: Stage, context: Context) -> tuple[Tensor, Tensor, Tensor]:
    """Return scaled queries, keys and values `[positions, heads, head_dim]`, not rounded."""
    shape = stage.shape
    heads = context.qkv.double().view(len(context), -1, shape.head_dim)
    queries, keys, values = heads.split(
        [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1
    )
    if shape.has_norms:
        queries, keys = _norm(queries, stage.norms[0]), _norm(keys, stage.norms[1])
    return _rotated(stage, queries) * shape.scale, _rotated(stage, keys), values


def _norm(heads: Tensor, weight: Tensor) -> Tensor:
    mean = heads.square().mean(dim=-1, keepdim=True)
    return heads / (mean + EPSILON).sqrt() * weight.double()


def _rotated(stage: Stage, heads: Tensor) -> Tensor:
    half = stage.shape.rotary_dim // 2
    angles = torch.arange(len(heads))[:, None] * stage.frequencies[:half].double()
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def cached_parts(stage: Stage, context: Context) -> tuple[Tensor, Tensor]:
    """Return the keys and values that the cache holds, `[positions, kv_heads, head_dim]`."""
    shape = stage.shape
    tiles = -(-shape.block_size // LANES)
    heads = stage.cache.bytes.view(-1, shape.num_kv_heads, shape.block_bytes // shape.num_kv_heads)
    heads = heads[torch.tensor(context.blocks)]
    size = shape.padded_dim * LANES * (2 if shape.cache_dtype == BF16 else 1)
    scales = 0 if shape.cache_dtype == BF16 else 8 * LANES
    keys = heads[..., : tiles * (size + scales)].unflatten(-1, (tiles, -1))
    values = heads[..., tiles * (size + scales) :].unflatten(-1, (tiles, -1))
    per_slot = 2 if shape.cache_dtype == BF16 else 4
    key_numbers = _numbers(stage, keys[..., :size]).unflatten(-1, (-1, LANES, per_slot))
    value_numbers = _numbers(stage, values).unflatten(-1, (-1, shape.padded_dim, per_slot))
    by_slot = [
        key_numbers.transpose(-3, -2).flatten(-2),
        value_numbers.transpose(-2, -1).flatten(-3, -2),
    ]
    if scales:
        stored = keys[..., size:].contiguous().view(torch.float32).double()
        by_slot = [
            part * scale[..., None]
            for part, scale in zip(by_slot, stored.split(LANES, dim=-1), strict=True)
        ]
    first, second = (
        part.flatten(2, 3)[:, :, : shape.block_size, : shape.head_dim].transpose(1, 2).flatten(0, 1)
        for part in by_slot
    )
    return first[: len(context)], second[: len(context)]


def _numbers(stage: Stage, stored: Tensor) -> Tensor:
    if stage.shape.cache_dtype == BF16:
        return stored.contiguous().view(torch.bfloat16).double()
    return stored.double() - 128


def mixed(stage: Stage, context: Context, keys: Tensor, values: Tensor) -> Tensor:
    """Return `[positions, heads * head_dim]` of the context with these keys and values."""
    shape = stage.shape
    queries, _, _ = exact_parts(stage, context)
    if shape.cache_dtype == BF16:
        queries = queries.bfloat16().double()
    group = shape.num_heads // shape.num_kv_heads
    keys, values = (part.repeat_interleave(group, dim=1) for part in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries, keys)
    if shape.softcap is not None:
        scores = shape.softcap * (scores / shape.softcap).tanh()
    at = torch.arange(len(context))
    seen = at[None] <= at[:, None]
    if shape.window is not None:
        seen &= at[None] > at[:, None] - shape.window
    weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values).flatten(1)
