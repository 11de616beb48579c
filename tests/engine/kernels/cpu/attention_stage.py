"""The attention stage of the CPU kernels as the tests call it: one layer, guarded buffers."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from engine.kernels.cpu.library import OK, Pool, library
from engine.kernels.cpu.structs import Layer, Model, Norm, Request

LANES = 16
GUARD_BYTES = 4096
GUARD = 0xA7
EPSILON = 1e-5
BF16, INT8 = 0, 1


@dataclass(frozen=True, slots=True)
class Shape:
    """What a layer's attention is like."""

    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 64
    rotary_dim: int = 64
    block_size: int = 16
    window: int | None = None
    softcap: float | None = None
    has_norms: bool = False
    cache_dtype: int = BF16
    scale: float = 0.2

    @property
    def padded_dim(self) -> int:
        """Return the head's size in the cache."""
        return -(-self.head_dim // LANES) * LANES

    @property
    def block_bytes(self) -> int:
        """Return the size of a block of the cache, as the library says."""
        return library().qd_cache_block_bytes(
            self.cache_dtype, self.block_size, self.num_kv_heads, self.head_dim
        )

    @property
    def qkv_width(self) -> int:
        """Return how many values a row has before attention."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


@dataclass(slots=True)
class Context:
    """One request: what its rows project to, and its blocks."""

    qkv: Tensor
    """`[positions, (heads + 2 * kv_heads) * head_dim]`."""
    blocks: list[int]

    def __len__(self) -> int:
        return len(self.qkv)


class Guarded:
    """A buffer, aligned to 64 bytes, between two stretches that nobody may write."""

    def __init__(self, num_bytes: int, fill: int = GUARD) -> None:
        self._whole = torch.full((num_bytes + 2 * GUARD_BYTES + 64,), GUARD, dtype=torch.uint8)
        self._start = GUARD_BYTES + -(self._whole.data_ptr() + GUARD_BYTES) % 64
        self.bytes = self._whole[self._start : self._start + num_bytes]
        self.bytes.fill_(fill)

    @property
    def address(self) -> int:
        """Return where the buffer begins."""
        return self.bytes.data_ptr()

    def floats(self) -> Tensor:
        """Return the buffer as float32."""
        return self.bytes.view(torch.float32)

    def check(self) -> None:
        """Fail if a byte around the buffer has changed."""
        end = self._start + len(self.bytes)
        assert (self._whole[: self._start] == GUARD).all(), "written in front of a buffer"
        assert (self._whole[end:] == GUARD).all(), "written behind a buffer"


@cache
def pool(num_threads: int) -> Pool:
    """Return threads that all tests share."""
    return Pool(num_threads)


@cache
def _attention_entry() -> Callable[..., int]:
    entry = library().qd_op_attention
    entry.restype = ctypes.c_int32
    entry.argtypes = [
        ctypes.c_char_p,
        ctypes.c_void_p,
        ctypes.POINTER(Model),
        ctypes.POINTER(Request),
        ctypes.c_int32,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ]
    return entry


class Stage:
    """A layer with its cache, whose every byte says "not a number" until a key comes.

    Args:
        shape: Of the layer.
        num_blocks: Of the cache.
        isa: Instruction set.
        num_threads: That compute.
    """

    def __init__(self, shape: Shape, num_blocks: int, isa: str, num_threads: int = 1) -> None:
        self.shape = shape
        self.cache = Guarded(num_blocks * shape.block_bytes, fill=0xFF)  # a NaN, also as bfloat16
        self._isa = isa.encode()
        self._pool = pool(num_threads)
        generator = torch.Generator().manual_seed(shape.head_dim)
        self.norms = torch.rand(2, shape.head_dim, generator=generator) + 0.5
        self.frequencies = 10000.0 ** -(
            torch.arange(max(1, shape.rotary_dim // 2)) / max(1, shape.rotary_dim // 2)
        )

    def run(self, pieces: Sequence[tuple[Context, int, int]]) -> list[Tensor]:
        """Compute rows `[start, end)` of several contexts in one step."""
        shape = self.shape
        qkv = Guarded(4 * sum(end - start for _, start, end in pieces) * shape.qkv_width)
        torch.cat([c.qkv[start:end] for c, start, end in pieces], out=self._rows(qkv))
        num_rows = len(self._rows(qkv))
        out = Guarded(4 * num_rows * shape.num_heads * shape.head_dim, fill=0xFF)
        requests, kept = self._requests(pieces)
        result = _attention_entry()(
            self._isa,
            self._pool.handle,
            self._model(),
            requests,
            len(pieces),
            qkv.address,
            out.address,
        )
        assert result == OK
        assert kept
        for buffer in (qkv, out, self.cache):
            buffer.check()
        rows = out.floats().view(num_rows, -1).clone()
        return list(rows.split([end - start for _, start, end in pieces]))

    def forget(self, context: Context, end: int) -> None:
        """Make all numbers of the positions before `end` no numbers again."""
        shape = self.shape
        tiles = -(-shape.block_size // LANES)
        size = shape.padded_dim * LANES * (2 if shape.cache_dtype == BF16 else 1)
        scales = 0 if shape.cache_dtype == BF16 else 8 * LANES
        heads = self.cache.bytes.view(-1, shape.num_kv_heads, tiles * (2 * size + scales))
        per_slot = 2 if shape.cache_dtype == BF16 else 4
        for position in range(end):
            tile, lane = divmod(position % shape.block_size, LANES)
            head = heads[context.blocks[position // shape.block_size]]
            key = head[:, tile * (size + scales) :][:, : size + scales]
            key.unflatten(1, (-1, LANES, 4))[:, :, lane] = 0xFF  # a scale has 4 bytes, too
            value = head[:, tiles * (size + scales) + tile * size :][:, :size]
            of_slot = value.unflatten(1, (-1, shape.padded_dim, per_slot, 4 // per_slot))
            of_slot[:, lane // per_slot, :, lane % per_slot] = 0xFF

    def _rows(self, qkv: Guarded) -> Tensor:
        return qkv.floats().view(-1, self.shape.qkv_width)

    def _requests(
        self, pieces: Sequence[tuple[Context, int, int]]
    ) -> tuple[ctypes.Array[Request], list[Tensor]]:
        window, row = self.shape.window, 0
        requests, kept = (Request * len(pieces))(), list[Tensor]()
        for at, (context, start, end) in enumerate(pieces):
            blocks = torch.tensor(context.blocks, dtype=torch.int32)
            window_blocks = blocks.clone()
            if window is not None:  # what lies before the window must not be looked up
                window_blocks[: max(0, start + 1 - window) // self.shape.block_size] = 1 << 30
            kept += [blocks, window_blocks]
            requests[at] = Request(
                blocks=blocks.data_ptr(),
                window_blocks=window_blocks.data_ptr(),
                num_blocks=len(blocks),
                first_row=row,
                num_rows=end - start,
                start_position=start,
            )
            row += end - start
        return requests, kept

    def _model(self) -> Model:
        shape = self.shape
        query_norm, key_norm = (
            Norm(weight=part.data_ptr() if shape.has_norms else None, epsilon=EPSILON)
            for part in self.norms
        )
        layer = Layer(
            query_norm=query_norm,
            key_norm=key_norm,
            cache=self.cache.address,
            is_window=shape.window is not None,
        )
        return Model(
            layers=ctypes.pointer(layer),
            num_layers=1,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            rotary_dim=shape.rotary_dim,
            window=shape.window or 0,
            attention_scale=shape.scale,
            attention_softcap=shape.softcap or 0.0,
            frequencies=self.frequencies.data_ptr(),
            window_frequencies=self.frequencies.data_ptr(),
            rotary_factor=1.0,
            window_rotary_factor=1.0,
            cache_dtype=shape.cache_dtype,
            block_size=shape.block_size,
        )
