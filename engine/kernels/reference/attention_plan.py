"""Cuts a batch into pieces of equal shape, once for all layers of the reference attention."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.backend import HeadShape, Span
from engine.kernels.reference.tiles import BASE_TILE, CANDIDATES, TilePlan, agreeing_tiles, widened

CHUNK_KEYS = 128
MAX_QUERY_ROWS = 256
"""Query rows (tokens times heads per key-value head) in one tile."""


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Equal-shaped pieces of several requests.

    Shapes: `P` pieces of `T` tokens, `C` chunks of `CHUNK_KEYS` keys, which begin at a multiple of
    `CHUNK_KEYS` in the request.
    """

    num_pieces: int
    num_tokens: int
    rows: Tensor
    """`[P * T]` rows of the packed batch; a piece with fewer tokens repeats its first row."""
    used: Tensor | None
    """Which of `rows` are real, as indices; None: all."""
    blocks: Tensor
    """`[P * blocks of C chunks]`; block 0 stands for those that no row may see."""
    hidden: Tensor
    """`[P, M, 1, tile, CHUNK_KEYS]` true where a row may not look, for the last `M` chunks; in the
    chunks before, every row sees every key."""
    stale: Tensor
    """Positions in the blocks, one after the other, that no row of the piece may see."""
    num_chunks: int
    tile: int


@dataclass(frozen=True, slots=True)
class _Piece:
    first_row: int
    num_tokens: int
    position: int
    """Of the first token."""
    block_table: Sequence[int]
    first_key: int
    """First position that the first token sees."""
    first_chunk: int
    num_chunks: int
    tile: int

    @property
    def end(self) -> int:
        return self.position + self.num_tokens


class AttentionPlanner:
    """Groups the spans of a batch; one for each model."""

    def __init__(self, heads: HeadShape, device: torch.device) -> None:
        self._group_size = heads.num_heads // heads.num_kv_heads
        self.device = device
        self._tiles = TilePlan(_attention_tiles(heads, device))
        self._max_tokens = max(1, MAX_QUERY_ROWS // self._group_size)

    def groups(
        self, spans: Sequence[Span], block_size: int, window: int | None = None
    ) -> list[AttentionGroup]:
        """Cut the spans into pieces and put equal shapes together.

        Args:
            spans: The requests.
            block_size: Positions in a KV block.
            window: Tokens that a row sees, its own included; blocks are those of `window_table`.
        """
        by_shape: dict[tuple[int, int], list[_Piece]] = {}
        for span in spans:
            for piece in self._pieces(span, block_size, window):
                by_shape.setdefault((piece.tile, piece.num_chunks), []).append(piece)
        return [self._group(pieces, block_size, window) for pieces in by_shape.values()]

    def _pieces(self, span: Span, block_size: int, window: int | None) -> list[_Piece]:
        # a first chunk has to begin where a block begins
        chunk_step = math.lcm(CHUNK_KEYS, block_size) // CHUNK_KEYS
        pieces: list[_Piece] = []
        for start in range(0, span.num_rows, self._max_tokens):
            tokens = min(self._max_tokens, span.num_rows - start)
            position = span.start_position + start
            first_key = 0 if window is None else max(0, position + 1 - window)
            first_chunk = first_key // CHUNK_KEYS // chunk_step * chunk_step
            pieces.append(
                _Piece(
                    first_row=span.first_row + start,
                    num_tokens=tokens,
                    position=position,
                    block_table=span.block_table if window is None else span.window_table,
                    first_key=first_key,
                    first_chunk=first_chunk,
                    num_chunks=-(-(position + tokens) // CHUNK_KEYS) - first_chunk,
                    tile=self._tile(tokens),
                )
            )
        return pieces

    def _tile(self, tokens: int) -> int:
        rows = tokens * self._group_size
        fitting = [tile for tile in self._tiles.tiles if tile >= rows]
        # a group of more heads than the largest tile has rows: still one fixed shape
        return fitting[0] if fitting else rows

    def _group(self, pieces: list[_Piece], block_size: int, window: int | None) -> AttentionGroup:
        most = max(piece.num_tokens for piece in pieces)
        num_chunks = pieces[0].num_chunks
        blocks_each = -(-num_chunks * CHUNK_KEYS // block_size)
        used = [p * most + at for p, piece in enumerate(pieces) for at in range(piece.num_tokens)]
        return AttentionGroup(
            num_pieces=len(pieces),
            num_tokens=most,
            rows=self._tensor([_rows(piece, most) for piece in pieces]).flatten(),
            used=None if len(used) == len(pieces) * most else self._tensor(used),
            blocks=self._tensor(
                [_blocks(piece, block_size, blocks_each) for piece in pieces]
            ).flatten(),
            hidden=self._hidden(pieces, window),
            stale=self._stale(pieces, blocks_each * block_size),
            num_chunks=num_chunks,
            tile=pieces[0].tile,
        )

    def _hidden(self, pieces: list[_Piece], window: int | None) -> Tensor:
        """Find the keys after each row's own position, and those before its window."""
        tile, num_chunks = pieces[0].tile, pieces[0].num_chunks
        tokens = torch.arange(tile, device=self.device) // self._group_size
        starts = self._tensor([piece.position for piece in pieces])[:, None]
        ends = self._tensor([piece.end for piece in pieces])[:, None]
        positions = torch.minimum(starts + tokens, ends - 1)[:, :, None]
        first = 0
        if window is None:
            first = min(min(p.position for p in pieces) // CHUNK_KEYS, num_chunks - 1)
        keys = self._keys(pieces, first * CHUNK_KEYS, num_chunks * CHUNK_KEYS)[:, None, :]
        hidden = keys > positions
        if window is not None:
            hidden |= keys <= positions - window
        by_chunk = hidden.view(len(pieces), tile, -1, CHUNK_KEYS)
        return by_chunk.transpose(1, 2)[:, :, None].contiguous()

    def _stale(self, pieces: list[_Piece], positions_each: int) -> Tensor:
        keys = self._keys(pieces, 0, positions_each)
        first = self._tensor([piece.first_key for piece in pieces])[:, None]
        ends = self._tensor([piece.end for piece in pieces])[:, None]
        return ((keys < first) | (keys >= ends)).flatten().nonzero().flatten()

    def _keys(self, pieces: list[_Piece], first: int, end: int) -> Tensor:
        """Return the positions of keys, `[P, end - first]`, counted from the first chunk's."""
        starts = self._tensor([piece.first_chunk * CHUNK_KEYS for piece in pieces])
        return starts[:, None] + torch.arange(first, end, device=self.device)

    def _tensor(self, values: Sequence[object]) -> Tensor:
        return torch.tensor(values, device=self.device)


def _rows(piece: _Piece, length: int) -> list[int]:
    last = piece.num_tokens
    return [piece.first_row + (at if at < last else 0) for at in range(length)]


def _blocks(piece: _Piece, block_size: int, length: int) -> list[int]:
    first = piece.first_chunk * CHUNK_KEYS // block_size
    needed = piece.first_key // block_size
    found = [
        block if at >= needed else 0
        for at, block in enumerate(piece.block_table[first : first + length], start=first)
    ]
    return found + [0] * (length - len(found))


def _attention_tiles(heads: HeadShape, device: torch.device) -> set[int]:
    """Return the query tiles that agree in both products, alone and in a batch of requests."""
    generator = torch.Generator().manual_seed(0)
    kv_heads = heads.num_kv_heads
    head_dim = widened(torch.empty(heads.head_dim)).shape[0]
    queries = torch.randn(4, kv_heads, MAX_QUERY_ROWS, head_dim, generator=generator)
    weights = torch.randn(4, kv_heads, MAX_QUERY_ROWS, CHUNK_KEYS, generator=generator)
    context = torch.randn(4, kv_heads, CHUNK_KEYS, head_dim, generator=generator)
    agreed = {BASE_TILE, *CANDIDATES}
    for pieces in (1, 4):
        query, weight, keys = (
            values[:pieces].to(device).flatten(0, 1) for values in (queries, weights, context)
        )
        agreed &= agreeing_tiles(query, lambda tile, by=keys: torch.bmm(tile, by.transpose(1, 2)))
        agreed &= agreeing_tiles(weight, lambda tile, by=keys: torch.bmm(tile, by))
    return agreed
