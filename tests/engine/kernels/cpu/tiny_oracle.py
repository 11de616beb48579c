"""What a tiny model computes for one request, in plain numpy and float64."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tests.engine.kernels.cpu.packed import Floats
from tests.engine.kernels.cpu.tiny_engine import PARTS, Change, TinyLayer, TinyModel

Doubles = NDArray[np.float64]


def logits_of(model: TinyModel, tokens: Sequence[int], changes: Sequence[Change] = ()) -> Doubles:
    """Return the logits of every position."""
    hidden = model.embedding.values[list(tokens), : model.shape.hidden].astype(np.float64) * 3.0
    for index, layer in enumerate(model.layers):
        _Layer(model, layer, [c for c in changes if c.layer == index]).add_to(hidden)
    found = _norm(hidden, model.final_norm) @ model.head.values[:, : model.shape.hidden].T
    cap = model.shape.logits_softcap
    return cap * np.tanh(found / cap) if cap else found


class _Layer:
    def __init__(self, model: TinyModel, layer: TinyLayer, changes: Sequence[Change]) -> None:
        self._shape, self._layer, self._changes = model.shape, layer, changes
        self._frequencies = model.frequencies[layer.is_window]

    def add_to(self, hidden: Doubles) -> None:
        norms = self._layer.norms
        mixed = self._attention(self._product("qkv", _norm(hidden, norms["attention_norm"])))
        hidden += self._normed("attention_out_norm", self._product("output", mixed))
        both = self._product("gate_up", _norm(hidden, norms["mlp_norm"]))
        columns, inner = self._shape.gate_columns, self._shape.inner
        activated = _activated(self._shape.activation, both[:, :inner])
        inside = activated * both[:, columns : columns + inner]
        hidden += self._normed("mlp_out_norm", self._product("down", inside))

    def _normed(self, name: str, rows: Doubles) -> Doubles:
        weight = self._layer.norms.get(name)
        return rows if weight is None else _norm(rows, weight)

    def _product(self, name: str, rows: Doubles) -> Doubles:
        out = rows @ self._layer.products[name].values[:, : rows.shape[1]].T
        for change in self._changes:
            if PARTS[change.part] == name:
                end = change.first_column + change.up.shape[1]
                out[:, change.first_column : end] += rows @ change.down.T @ change.up
        return out

    def _attention(self, qkv: Doubles) -> Doubles:
        shape, group = self._shape, self._shape.num_heads // self._shape.num_kv_heads
        heads = qkv.reshape(len(qkv), -1, shape.head_dim).transpose(1, 0, 2)
        queries = self._placed("query_norm", heads[: shape.num_heads])
        keys = self._placed("key_norm", heads[shape.num_heads : -shape.num_kv_heads])
        values = heads[-shape.num_kv_heads :]
        scores = 0.2 * queries @ keys.repeat(group, axis=0).transpose(0, 2, 1)
        distance = np.arange(len(qkv))[:, None] - np.arange(len(qkv))
        window = shape.window if self._layer.is_window else len(qkv)
        scores[:, (distance < 0) | (distance >= window)] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = weights @ values.repeat(group, axis=0)
        return mixed.transpose(1, 0, 2).reshape(len(qkv), -1)

    def _placed(self, name: str, heads: Doubles) -> Doubles:
        """Norm and rotate `[heads, positions, head_dim]`."""
        heads, half = self._normed(name, heads).copy(), self._shape.rotary_dim // 2
        angles = np.outer(np.arange(heads.shape[1]), self._frequencies)
        first, second = heads[..., :half].copy(), heads[..., half : 2 * half].copy()
        heads[..., :half] = first * np.cos(angles) - second * np.sin(angles)
        heads[..., half : 2 * half] = second * np.cos(angles) + first * np.sin(angles)
        return heads


def _norm(rows: Doubles, weight: Floats) -> Doubles:
    return rows / np.sqrt(np.mean(rows**2, axis=-1, keepdims=True) + 1e-6) * weight


def _activated(activation: int, gate: Doubles) -> Doubles:
    if activation == 0:
        return gate / (1.0 + np.exp(-gate))
    return 0.5 * gate * (1.0 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
