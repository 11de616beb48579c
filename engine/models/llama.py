"""The Llama family: pre-normalised decoder layers with rotary attention and a gated MLP."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.checkpoint.model_config import ModelConfig
from engine.kernels.backend import (
    HeadShape,
    KernelBackend,
    LayerCache,
    ModelShapes,
    StepPlan,
)
from engine.layers.attention import SelfAttention
from engine.layers.mlp import GatedMlp
from engine.layers.rotary import RotaryTable
from engine.models.parameters import Parameter, Weights

_EMBEDDING, _NORM, _HEAD = "embedding", "norm", "head"


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One packed batch: the tokens of all requests one after the other."""

    token_ids: Tensor
    """`[rows]`, padded with any valid id to the backend's row count."""
    positions: Tensor
    """`[rows]`."""
    plan: StepPlan
    sampled_rows: Tensor
    """Rows whose logits are wanted."""


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: Tensor
    attention: SelfAttention
    mlp_norm: Tensor
    mlp: GatedMlp


class LlamaModel:
    """A decoder over packed rows.

    Args:
        config: Sizes and constants.
        weights: Everything that `parameters(config)` names.
        kernels: Prepared for `shapes(config, ...)`.
        max_positions: Longest context.
    """

    def __init__(
        self, config: ModelConfig, weights: Weights, kernels: KernelBackend, max_positions: int
    ) -> None:
        self._config = config
        self._kernels = kernels
        self._embedding = weights.tensors[_EMBEDDING]
        self._head = weights.linears[_HEAD]
        self._norm = weights.tensors[_NORM]
        self._layers = [_layer(config, weights, index) for index in range(config.num_layers)]
        self._rotary = RotaryTable(config, max_positions, self._embedding.device)

    @torch.inference_mode()
    def forward(self, batch: ModelInput, caches: Sequence[LayerCache]) -> Tensor:
        """Compute one step; returns `[sampled rows, vocab]` float32 logits."""
        kernels, epsilon = self._kernels, self._config.rms_norm_eps
        hidden = kernels.embedding(batch.token_ids, self._embedding)
        rotary = self._rotary.at(batch.positions)
        for layer, cache in zip(self._layers, caches, strict=True):
            rows = kernels.rms_norm(hidden, layer.attention_norm, epsilon)
            hidden += layer.attention(rows, rotary, cache, batch.plan, kernels)
            rows = kernels.rms_norm(hidden, layer.mlp_norm, epsilon)
            hidden += layer.mlp(rows, kernels)
        if not batch.sampled_rows.numel():  # every request is in the middle of its prompt
            return hidden.new_empty(0, self._config.vocab_size)
        last = kernels.rms_norm(hidden[batch.sampled_rows], self._norm, epsilon)
        return kernels.logits(last, self._head)


def parameters(config: ModelConfig) -> list[Parameter]:
    """Return every parameter of the model."""
    table = (config.vocab_size, config.hidden_size)
    found = [Parameter(_EMBEDDING, table, ("model.embed_tokens.weight",))]
    for index in range(config.num_layers):
        found += _layer_parameters(config, index)
    found.append(Parameter(_NORM, (config.hidden_size,), ("model.norm.weight",), feeds_logits=True))
    # a tied head is a copy of the embedding: it has another dtype and another layout
    source = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    found.append(Parameter(_HEAD, table, (source,), is_linear=True, feeds_logits=True))
    return found


def shapes(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> ModelShapes:
    """Return what a kernel backend tunes itself for."""
    qkv, gate_up = _fused_rows(config)
    hidden, inner = config.hidden_size, config.intermediate_size
    queries = config.num_heads * config.head_dim
    return ModelShapes(
        linears=((qkv, hidden), (hidden, queries), (gate_up, hidden), (hidden, inner)),
        head=(config.vocab_size, hidden),
        heads=head_shape(config),
        dtype=dtype,
        device=device,
    )


def head_shape(config: ModelConfig) -> HeadShape:
    """Return the shape of the attention heads."""
    return HeadShape(config.num_heads, config.num_kv_heads, config.head_dim)


def _fused_rows(config: ModelConfig) -> tuple[int, int]:
    qkv = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    return qkv, 2 * config.intermediate_size


def _layer_parameters(config: ModelConfig, index: int) -> list[Parameter]:
    hidden, inner = config.hidden_size, config.intermediate_size
    qkv, gate_up = _fused_rows(config)
    here, there = f"layers.{index}.", f"model.layers.{index}."
    attention, mlp = there + "self_attn.", there + "mlp."
    return [
        Parameter(here + "attention_norm", (hidden,), (there + "input_layernorm.weight",)),
        Parameter(
            here + "qkv",
            (qkv, hidden),
            tuple(f"{attention}{part}_proj.weight" for part in ("q", "k", "v")),
            is_linear=True,
        ),
        Parameter(
            here + "output",
            (hidden, config.num_heads * config.head_dim),
            (attention + "o_proj.weight",),
            is_linear=True,
        ),
        Parameter(here + "mlp_norm", (hidden,), (there + "post_attention_layernorm.weight",)),
        Parameter(
            here + "gate_up",
            (gate_up, hidden),
            (mlp + "gate_proj.weight", mlp + "up_proj.weight"),
            is_linear=True,
        ),
        Parameter(here + "down", (hidden, inner), (mlp + "down_proj.weight",), is_linear=True),
    ]


def _layer(config: ModelConfig, weights: Weights, index: int) -> _Layer:
    here = f"layers.{index}."
    tensors, linears = weights.tensors, weights.linears
    return _Layer(
        attention_norm=tensors[here + "attention_norm"],
        attention=SelfAttention(
            linears[here + "qkv"], linears[here + "output"], head_shape(config)
        ),
        mlp_norm=tensors[here + "mlp_norm"],
        mlp=GatedMlp(linears[here + "gate_up"], linears[here + "down"]),
    )
