"""A small random model for `qd_forward`, and the same model in plain numpy."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.kernels.cpu.library import Pool, library
from engine.kernels.cpu.structs import (
    AdapterRows,
    Layer,
    Model,
    Norm,
    Request,
    Step,
    Update,
    UpdateList,
)
from engine.kernels.cpu.weights import Format
from tests.engine.kernels.cpu.packed import Floats, Packed, aligned, packed, padded

PARTS = ("qkv", "output", "gate_up", "down")


@dataclass(frozen=True, slots=True)
class Shape:
    """What a tiny model is like."""

    format: Format = Format.BF16
    hidden: int = 96
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 24
    rotary_dim: int = 16
    inner: int = 100
    vocab: int = 301
    windows: tuple[bool, ...] = (False, True)
    """Of each layer, whether it sees a sliding window."""
    window: int = 20
    has_sandwich_norms: bool = False
    has_head_norms: bool = False
    activation: int = 0
    logits_softcap: float = 0.0
    cache_dtype: int = 0
    block_size: int = 16
    num_blocks: int = 24

    @property
    def qkv_columns(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def gate_columns(self) -> int:
        return padded(self.inner, 16)


@dataclass(frozen=True, slots=True)
class Rows:
    """Neighbouring rows of a step, of one request."""

    tokens: Sequence[int]
    blocks: Sequence[int]
    start: int = 0
    adapter: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What an adapter adds to one product of one layer."""

    layer: int
    part: int
    """Of `PARTS`."""
    first_column: int
    down: Floats
    up: Floats
    """`[rank, columns]`."""


@dataclass(slots=True)
class TinyLayer:
    """Weights of a layer."""

    products: dict[str, Packed]
    norms: dict[str, Floats]
    is_window: bool
    cache: NDArray[np.uint8]


@dataclass(slots=True)
class TinyModel:
    """Weights, and the structure that shows them to the library."""

    shape: Shape
    layers: list[TinyLayer]
    embedding: Packed
    head: Packed
    final_norm: Floats
    frequencies: tuple[Floats, Floats]
    kept: list[object] = field(default_factory=list)

    def structure(self) -> Model:
        """Return what `qd_engine_create` reads; it points into this object."""
        shape = self.shape
        layers = (Layer * len(self.layers))(*(self._layer(layer) for layer in self.layers))
        self.kept.append(layers)
        return Model(
            layers=layers,
            num_layers=len(layers),
            hidden_size=shape.hidden,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            rotary_dim=shape.rotary_dim,
            inner_size=shape.inner,
            vocab_size=shape.vocab,
            activation=shape.activation,
            window=shape.window,
            attention_scale=0.2,
            attention_softcap=0.0,
            logits_softcap=shape.logits_softcap,
            embedding_scale=3.0,
            frequencies=self.frequencies[0].ctypes.data,
            window_frequencies=self.frequencies[1].ctypes.data,
            rotary_factor=1.0,
            window_rotary_factor=1.0,
            embedding=self.embedding.linear,
            final_norm=_norm(self.final_norm),
            head=self.head.linear,
            cache_dtype=shape.cache_dtype,
            block_size=shape.block_size,
            num_blocks=shape.num_blocks,
            num_window_blocks=shape.num_blocks,
        )

    def _layer(self, layer: TinyLayer) -> Layer:
        norms = {name: _norm(weight) for name, weight in layer.norms.items()}
        products = {name: product.linear for name, product in layer.products.items()}
        return Layer(**norms, **products, cache=layer.cache.ctypes.data, is_window=layer.is_window)


def make_model(shape: Shape, seed: int = 1) -> TinyModel:
    """Return a model of random weights; its caches are poisoned."""
    random = np.random.default_rng(seed)
    frequencies = tuple(
        (1.0 / base ** (np.arange(shape.rotary_dim // 2) / 8)).astype(np.float32)
        for base in (100.0, 10.0)
    )
    half = shape.vocab // 2
    return TinyModel(
        shape=shape,
        layers=[
            _layer(shape, random, is_window=is_window, seed=seed + 10 * index)
            for index, is_window in enumerate(shape.windows)
        ],
        embedding=packed(
            seed + 1,
            [(shape.format, half), (shape.format, shape.vocab - half)],
            shape.hidden,
        ),
        head=packed(seed + 2, [(shape.format, shape.vocab)], shape.hidden),
        final_norm=_norm_weight(random, shape.hidden),
        frequencies=frequencies,
    )


def _layer(shape: Shape, random: np.random.Generator, *, is_window: bool, seed: int) -> TinyLayer:
    hidden, heads = shape.hidden, shape.num_heads * shape.head_dim
    one = lambda offset, rows, width: packed(seed + offset, [(shape.format, rows)], width)  # noqa: E731
    sizes = {"attention_norm": hidden, "mlp_norm": hidden}
    if shape.has_sandwich_norms:
        sizes |= {"attention_out_norm": hidden, "mlp_out_norm": hidden}
    if shape.has_head_norms:
        sizes |= {"query_norm": shape.head_dim, "key_norm": shape.head_dim}
    block_bytes = library().qd_cache_block_bytes(
        shape.cache_dtype, shape.block_size, shape.num_kv_heads, shape.head_dim
    )
    return TinyLayer(
        products={
            "qkv": one(3, shape.qkv_columns, hidden),
            "output": one(4, hidden, heads),
            "gate_up": packed(seed + 5, [(shape.format, shape.inner)], hidden, gated=True),
            "down": one(6, hidden, shape.inner),
        },
        norms={name: _norm_weight(random, size) for name, size in sizes.items()},
        is_window=is_window,
        cache=aligned(np.full(block_bytes * shape.num_blocks, 0xFF, np.uint8)),
    )


def _norm_weight(random: np.random.Generator, size: int) -> Floats:
    return (1.0 + 0.2 * random.standard_normal(size)).astype(np.float32)


def _norm(weight: Floats) -> Norm:
    return Norm(weight.ctypes.data, 1e-6, 0)


class TinyEngine:
    """An engine over a `TinyModel`."""

    def __init__(
        self, model: TinyModel, pool: Pool, isa: str, max_tokens: int = 80, max_requests: int = 8
    ) -> None:
        self._model = model
        self.handle = library().qd_engine_create(
            model.structure(), pool.handle, isa.encode(), max_tokens, max_requests
        )
        assert self.handle is not None

    def close(self) -> None:
        library().qd_engine_destroy(self.handle)

    def forward(self, rows: Sequence[Rows], changes: Sequence[Sequence[Change]] = ()) -> Floats:
        """Compute one step; returns the logits of every row."""
        step = TinyStep(self._model, rows, changes)
        assert self.run(step) == 0
        return step.logits

    def run(self, step: "TinyStep") -> int:
        """Return what `qd_forward` does."""
        return library().qd_forward(self.handle, step.structure)


class TinyStep:
    """The structure of a step, and all that it points to."""

    def __init__(
        self, model: TinyModel, rows: Sequence[Rows], changes: Sequence[Sequence[Change]] = ()
    ) -> None:
        self._num_layers = len(model.layers)
        self.tokens = np.array([token for part in rows for token in part.tokens], np.int32)
        self.sampled = np.arange(len(self.tokens), dtype=np.int32)
        self.logits = np.full((len(self.tokens), model.shape.vocab), np.nan, np.float32)
        self.blocks = [np.array(part.blocks, np.int32) for part in rows]
        self.requests = (Request * len(rows))()
        self.adapters = (AdapterRows * len(changes))()
        self.lists: list[ctypes.Array[UpdateList]] = []
        self.updates: list[ctypes.Array[Update]] = []
        self.rows_of_adapters: list[NDArray[np.int32]] = []
        self._write_requests(rows)
        for index, adapter in enumerate(changes):
            self._write_adapter(index, rows, adapter)
        self.structure = Step(
            token_ids=self.tokens.ctypes.data,
            requests=ctypes.addressof(self.requests),
            sampled_rows=self.sampled.ctypes.data,
            logits=self.logits.ctypes.data,
            adapters=self.adapters,
            num_tokens=len(self.tokens),
            num_requests=len(rows),
            num_sampled=len(self.sampled),
            num_adapters=len(changes),
        )

    def _write_requests(self, rows: Sequence[Rows]) -> None:
        first = 0
        for index, (part, blocks) in enumerate(zip(rows, self.blocks, strict=True)):
            address = blocks.ctypes.data
            self.requests[index] = Request(
                address, address, len(blocks), first, len(part.tokens), part.start
            )
            first += len(part.tokens)

    def _write_adapter(self, index: int, rows: Sequence[Rows], changes: Sequence[Change]) -> None:
        owners = [part.adapter for part in rows for _ in part.tokens]
        mine = np.array([row for row, owner in enumerate(owners) if owner == index], np.int32)
        lists = (UpdateList * (self._num_layers * len(PARTS)))()
        for change in changes:
            update = (Update * 1)(
                Update(
                    change.down.ctypes.data,
                    change.up.ctypes.data,
                    *change.down.shape,
                    change.first_column,
                    change.up.shape[1],
                )
            )
            lists[change.layer * len(PARTS) + change.part] = UpdateList(update, 1)
            self.updates.append(update)
        self.rows_of_adapters.append(mine)
        self.lists.append(lists)
        self.adapters[index] = AdapterRows(mine.ctypes.data, lists, len(mine))
