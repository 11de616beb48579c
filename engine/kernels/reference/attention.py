"""Paged attention in plain torch whose bits do not depend on batch, chunking or preemption.

The context is cut into chunks of `CHUNK_KEYS` keys; each chunk's products have the same shape
however long the context is, and chunks are added in order, so masked keys beyond a row's position
only ever add exact zeros. Query rows come in tiles (see `tiles.py`). Requests that have the same
tile and number of chunks are computed together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.backend import HeadShape, LayerCache, Span
from engine.kernels.reference.tiles import BASE_TILE, TilePlan, agreeing_tiles

CHUNK_KEYS = 128
MAX_QUERY_ROWS = 256
"""Query rows (tokens times heads per key-value head) in one tile."""


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Equal-shaped pieces of several requests.

    Shapes: `P` pieces of `T` tokens, `C` chunks of `CHUNK_KEYS` keys.
    """

    num_pieces: int
    num_tokens: int
    rows: Tensor
    """`[P * T]` rows of the packed batch; a piece with fewer tokens repeats its first row."""
    used: Tensor | None
    """Which of `rows` are real, as indices; None: all."""
    blocks: Tensor
    """`[P * blocks of C chunks]`; blocks beyond the context are block 0."""
    bias: Tensor
    """`[P, M, 1, tile, CHUNK_KEYS]` minus infinity where a row may not look, else 0, for the last
    `M` chunks; in the chunks before, every row sees every key."""
    stale_keys: Tensor
    """`[P, CHUNK_KEYS, 1, 1]` true where the last chunk holds nothing of this request."""
    num_chunks: int
    tile: int


@dataclass(frozen=True, slots=True)
class _Piece:
    first_row: int
    num_tokens: int
    position: int
    block_table: Sequence[int]
    num_chunks: int
    tile: int


class AttentionPlanner:
    """Groups the spans of a batch; one for each model."""

    def __init__(self, heads: HeadShape, device: torch.device) -> None:
        self._group_size = heads.num_heads // heads.num_kv_heads
        self.device = device
        self._tiles = TilePlan(_attention_tiles(heads, device))
        self._max_tokens = max(1, MAX_QUERY_ROWS // self._group_size)

    def groups(self, spans: Sequence[Span], block_size: int) -> list[AttentionGroup]:
        """Cut the spans into pieces and put equal shapes together."""
        by_shape: dict[tuple[int, int], list[_Piece]] = {}
        for span in spans:
            for piece in self._pieces(span):
                by_shape.setdefault((piece.tile, piece.num_chunks), []).append(piece)
        return [self._group(pieces, block_size) for pieces in by_shape.values()]

    def _pieces(self, span: Span) -> list[_Piece]:
        pieces: list[_Piece] = []
        for start in range(0, span.num_rows, self._max_tokens):
            tokens = min(self._max_tokens, span.num_rows - start)
            position = span.start_position + start
            pieces.append(
                _Piece(
                    first_row=span.first_row + start,
                    num_tokens=tokens,
                    position=position,
                    block_table=span.block_table,
                    num_chunks=-(-(position + tokens) // CHUNK_KEYS),
                    tile=self._tile(tokens),
                )
            )
        return pieces

    def _tile(self, tokens: int) -> int:
        rows = tokens * self._group_size
        fitting = [tile for tile in self._tiles.tiles if tile >= rows]
        # a group of more heads than the largest tile has rows: still one fixed shape
        return fitting[0] if fitting else rows

    def _group(self, pieces: list[_Piece], block_size: int) -> AttentionGroup:
        tile, num_chunks = pieces[0].tile, pieces[0].num_chunks
        most = max(piece.num_tokens for piece in pieces)
        blocks_needed = -(-num_chunks * CHUNK_KEYS // block_size)
        first_masked = min(min(piece.position for piece in pieces) // CHUNK_KEYS, num_chunks - 1)
        used = [p * most + at for p, piece in enumerate(pieces) for at in range(piece.num_tokens)]
        return AttentionGroup(
            num_pieces=len(pieces),
            num_tokens=most,
            rows=self._tensor([_rows(piece, most) for piece in pieces]).flatten(),
            used=None if len(used) == len(pieces) * most else self._tensor(used),
            blocks=self._tensor([_blocks(piece, blocks_needed) for piece in pieces]).flatten(),
            bias=self._bias(pieces, first_masked),
            stale_keys=self._stale_keys(pieces),
            num_chunks=num_chunks,
            tile=tile,
        )

    def _bias(self, pieces: list[_Piece], first_masked: int) -> Tensor:
        """Hide the keys after each row's own position."""
        tile, num_chunks = pieces[0].tile, pieces[0].num_chunks
        tokens = torch.arange(tile, device=self.device) // self._group_size
        positions = self._tensor([piece.position for piece in pieces])[:, None] + tokens
        keys = torch.arange(first_masked * CHUNK_KEYS, num_chunks * CHUNK_KEYS, device=self.device)
        hidden = keys[None, None, :] > positions[:, :, None]
        bias = torch.zeros(hidden.shape, device=self.device).masked_fill_(hidden, float("-inf"))
        by_chunk = bias.view(len(pieces), tile, -1, CHUNK_KEYS)
        return by_chunk.transpose(1, 2)[:, :, None].contiguous()

    def _stale_keys(self, pieces: list[_Piece]) -> Tensor:
        ends = self._tensor([piece.position + piece.num_tokens for piece in pieces])
        start = (pieces[0].num_chunks - 1) * CHUNK_KEYS
        keys = torch.arange(start, start + CHUNK_KEYS, device=self.device)
        return (keys >= ends[:, None])[:, :, None, None]

    def _tensor(self, values: Sequence[object]) -> Tensor:
        return torch.tensor(values, device=self.device)


def attend(queries: Tensor, cache: LayerCache, group: AttentionGroup, heads: HeadShape) -> Tensor:
    """Compute one group; returns `[P * T, heads, head_dim]`."""
    pieces, tokens = group.num_pieces, group.num_tokens
    kv_heads, head_dim = heads.num_kv_heads, heads.head_dim
    batch = pieces * group.num_chunks * kv_heads
    query = _query_tiles(queries.index_select(0, group.rows), group, heads)
    keys = _gather(cache.keys, group, batch)
    scores = torch.bmm(query, keys.transpose(1, 2))
    weights = scores.view(pieces, group.num_chunks, kv_heads, group.tile, CHUNK_KEYS)
    weights[:, -group.bias.shape[1] :].add_(group.bias)
    weights.sub_(weights.amax(dim=(1, 4), keepdim=True)).exp_()
    totals = _add_chunks(weights.sum(dim=4, keepdim=True))
    parts = torch.bmm(scores, _gather(cache.values, group, batch))
    mixed = _add_chunks(parts.view(pieces, group.num_chunks, kv_heads, group.tile, head_dim))
    mixed.div_(totals)
    group_size = heads.num_heads // kv_heads
    by_token = mixed[:, :, : tokens * group_size].unflatten(2, (tokens, group_size))
    return by_token.transpose(1, 2).reshape(-1, heads.num_heads, head_dim)


def _query_tiles(queries: Tensor, group: AttentionGroup, heads: HeadShape) -> Tensor:
    """Lay `[P * T, heads, head_dim]` out as `[P * C * kv_heads, tile, head_dim]`, scaled."""
    pieces, tokens = group.num_pieces, group.num_tokens
    kv_heads, head_dim = heads.num_kv_heads, heads.head_dim
    group_size = heads.num_heads // kv_heads
    rows = tokens * group_size
    tiles = queries.new_zeros(pieces, 1, kv_heads, group.tile, head_dim)
    by_kv_head = queries.view(pieces, tokens, kv_heads, group_size, head_dim).transpose(1, 2)
    tiles[:, 0, :, :rows].view(pieces, kv_heads, tokens, group_size, head_dim).copy_(by_kv_head)
    tiles.mul_(head_dim**-0.5)
    if group.num_chunks > 1:
        tiles = tiles.expand(-1, group.num_chunks, -1, -1, -1)
    return tiles.reshape(-1, group.tile, head_dim)


def _gather(cache: Tensor, group: AttentionGroup, batch: int) -> Tensor:
    """Copy a group's context to `[P * C * kv_heads, CHUNK_KEYS, head_dim]`, float32.

    Args:
        cache: `[num_blocks, block_size, kv_heads, head_dim]`.
        group: Says which blocks.
        batch: `P * C * kv_heads`.
    """
    _, _, kv_heads, head_dim = cache.shape
    pieces, chunks = group.num_pieces, group.num_chunks
    found = cache.index_select(0, group.blocks).view(pieces, -1, kv_heads, head_dim)
    found = found[:, : chunks * CHUNK_KEYS]
    if cache.dtype is torch.float16:
        # its overflows, left behind by another request, would pass through a weight of zero
        found[:, -CHUNK_KEYS:].masked_fill_(group.stale_keys, 0.0)
    by_chunk = found.view(pieces, chunks, CHUNK_KEYS, kv_heads, head_dim).transpose(2, 3)
    ordered = torch.empty(by_chunk.shape, dtype=torch.float32, device=cache.device)
    return ordered.copy_(by_chunk).view(batch, CHUNK_KEYS, head_dim)


def _add_chunks(parts: Tensor) -> Tensor:
    """Add along dimension 1, always in the same order."""
    total = parts[:, 0]
    for chunk in range(1, parts.shape[1]):
        total = total + parts[:, chunk]
    return total


def _rows(piece: _Piece, length: int) -> list[int]:
    last = piece.num_tokens
    return [piece.first_row + (at if at < last else 0) for at in range(length)]


def _blocks(piece: _Piece, length: int) -> list[int]:
    found = list(piece.block_table[:length])
    return found + [0] * (length - len(found))


def _attention_tiles(heads: HeadShape, device: torch.device) -> set[int]:
    """Return the query tiles that agree in both products, alone and in a batch of requests."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4, heads.num_kv_heads, MAX_QUERY_ROWS, CHUNK_KEYS, generator=generator)
    keys = torch.randn(4, heads.num_kv_heads, CHUNK_KEYS, heads.head_dim, generator=generator)
    agreed: set[int] | None = None
    for pieces in (1, 4):
        context = keys[:pieces].to(device).flatten(0, 1)
        weights = rows[:pieces].to(device).flatten(0, 1)
        queries = weights[:, :, : heads.head_dim].contiguous()
        for found in (
            agreeing_tiles(weights, lambda tile, by=context: torch.bmm(tile, by)),
            agreeing_tiles(queries, lambda tile, by=context: torch.bmm(tile, by.transpose(1, 2))),
        ):
            agreed = found if agreed is None else agreed & found
    return agreed or {BASE_TILE}
