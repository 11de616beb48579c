"""Paged attention in plain torch whose bits do not depend on batch, chunking or preemption.

The context is cut into chunks of `CHUNK_KEYS` keys; each chunk's products have the same shape
however long the context is, and chunks are added in order, so keys that a row may not see only
ever add exact zeros. Query rows come in tiles (see `tiles.py`). Requests that have the same tile
and number of chunks are computed together.

What lies in the cache where a request may not look (an earlier owner's values, not even finite
ones perhaps) is never part of a result: scores there are replaced, values set to zero.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.backend import HeadShape, LayerCache
from engine.kernels.reference.attention_plan import CHUNK_KEYS, AttentionGroup
from engine.kernels.reference.tiles import widened


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """What becomes of the product of a query and a key."""

    scale: float
    softcap: float | None = None
    """Scores become `softcap * tanh(score / softcap)`."""


def attend(
    queries: Tensor,
    cache: LayerCache,
    group: AttentionGroup,
    heads: HeadShape,
    scores_by: ScoreRule,
) -> Tensor:
    """Compute one group; returns `[P * T, heads, head_dim]`."""
    pieces, chunks, tile = group.num_pieces, group.num_chunks, group.tile
    kv_heads, head_dim = heads.num_kv_heads, heads.head_dim
    group_size = heads.num_heads // kv_heads
    query = _query_tiles(queries.index_select(0, group.rows), group, kv_heads, scores_by.scale)
    keys = cache.keys.index_select(0, group.blocks)
    scores = torch.bmm(query, _by_chunk(keys, group).transpose(1, 2))
    if scores_by.softcap is not None:
        _cap(scores, scores_by.softcap)
    weights = scores.view(pieces, chunks, kv_heads, tile, CHUNK_KEYS)
    masked = weights if group.hidden.shape[1] == chunks else weights[:, -group.hidden.shape[1] :]
    masked.masked_fill_(group.hidden, float("-inf"))
    weights.sub_(weights.amax(dim=(1, 4), keepdim=True)).exp_()
    totals = _add_chunks(weights.sum(dim=4, keepdim=True))
    values = cache.values.index_select(0, group.blocks)
    # a weight of zero does not hide what is not a number
    values.view(-1, kv_heads * head_dim).index_fill_(0, group.stale, 0.0)
    parts = torch.bmm(scores, _by_chunk(values, group))
    mixed = _add_chunks(parts.view(pieces, chunks, kv_heads, tile, -1)).div_(totals)
    rows = mixed[:, :, : group.num_tokens * group_size, :head_dim]
    by_token = rows.view(pieces, kv_heads, group.num_tokens, group_size, head_dim).transpose(1, 2)
    return by_token.reshape(-1, heads.num_heads, head_dim)


def _cap(scores: Tensor, softcap: float) -> None:
    """Cap in place; torch.exp, other than torch.tanh, gives the same bits in every place."""
    scores.mul_(2.0 / softcap).exp_().add_(1.0).reciprocal_().mul_(-2.0 * softcap).add_(softcap)


def _query_tiles(queries: Tensor, group: AttentionGroup, kv_heads: int, scale: float) -> Tensor:
    """Scale `[P * T, heads, head_dim]`, lay out as `[P * C * kv_heads, tile, widened head_dim]`."""
    pieces, tokens = group.num_pieces, group.num_tokens
    queries = widened(queries)
    _, num_heads, width = queries.shape
    group_size = num_heads // kv_heads
    shape = (pieces, kv_heads, tokens, group_size, width)
    tiles = queries.new_zeros(pieces, 1, kv_heads, group.tile, width)
    by_kv_head = queries.view(pieces, tokens, kv_heads, group_size, width).transpose(1, 2)
    torch.mul(by_kv_head, scale, out=tiles[:, 0, :, : tokens * group_size].view(shape))
    if group.num_chunks > 1:
        tiles = tiles.expand(-1, group.num_chunks, -1, -1, -1)
    return tiles.reshape(-1, group.tile, width)


def _by_chunk(blocks: Tensor, group: AttentionGroup) -> Tensor:
    """Lay a group's blocks out as `[P * C * kv_heads, CHUNK_KEYS, head_dim]`, float32, widened."""
    blocks = widened(blocks)
    _, _, kv_heads, width = blocks.shape
    pieces, chunks = group.num_pieces, group.num_chunks
    positions = blocks.view(pieces, -1, kv_heads, width)
    if positions.shape[1] > chunks * CHUNK_KEYS:  # the last block ends behind the last chunk
        positions = positions[:, : chunks * CHUNK_KEYS]
    by_head = positions.view(pieces, chunks, CHUNK_KEYS, kv_heads, width).transpose(2, 3)
    ordered = torch.empty(by_head.shape, dtype=torch.float32, device=blocks.device)
    return ordered.copy_(by_head).view(-1, CHUNK_KEYS, width)


def _add_chunks(parts: Tensor) -> Tensor:
    """Add along dimension 1, always in the same order."""
    total = parts[:, 0]
    for chunk in range(1, parts.shape[1]):
        total = total + parts[:, chunk]
    return total
