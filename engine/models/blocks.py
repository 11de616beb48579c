"""Parameters of the blocks that families share, and the blocks built from loaded weights.

Names of linear layers are `layers.{i}.qkv`, `.output`, `.gate_up` and `.down`; biases are called
`<linear>.bias`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.checkpoint.model_config import ModelConfig
from engine.kernels.backend import HeadShape
from engine.layers.attention import HeadNorms, SelfAttention
from engine.layers.linear import Linear
from engine.layers.mlp import GatedMlp
from engine.layers.norm import RmsNorm
from engine.models.parameters import Parameter, Weights

EMBEDDING = "embedding"
_QKV = ("q_proj", "k_proj", "v_proj")
_GATE_UP = ("gate_proj", "up_proj")


def head_shape(config: ModelConfig) -> HeadShape:
    """Return the shape of the attention heads."""
    return HeadShape(config.num_heads, config.num_kv_heads, config.head_dim)


def linear_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return `(out, in)` of each linear layer."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries = config.num_heads * config.head_dim
    return {
        "qkv": (queries + 2 * config.num_kv_heads * config.head_dim, hidden),
        "output": (hidden, queries),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
    }


def linear_parameters(config: ModelConfig) -> int:
    """Return how many weights the linear layers have, without embedding and head."""
    per_layer = sum(rows * columns for rows, columns in linear_shapes(config).values())
    return config.num_layers * per_layer


def norm_parameter(name: str, size: int, source: str) -> Parameter:
    """Return the weight of an RMS norm."""
    return Parameter(name, (size,), (source + ".weight",), is_float32=True)


def attention_parameters(
    config: ModelConfig, index: int, qkv_sources: Sequence[str] = _QKV
) -> list[Parameter]:
    """Return what `attention` needs; `qkv_sources` as the checkpoint calls them."""
    here, there = f"layers.{index}.", f"model.layers.{index}.self_attn."
    shapes = linear_shapes(config)
    found = _linear_parameters(
        here + "qkv", shapes["qkv"], [there + part for part in qkv_sources], config.qkv_bias
    )
    found += _linear_parameters(
        here + "output", shapes["output"], [there + "o_proj"], config.output_bias
    )
    if config.qk_norm:
        found += [
            norm_parameter(here + "query_norm", config.head_dim, there + "q_norm"),
            norm_parameter(here + "key_norm", config.head_dim, there + "k_norm"),
        ]
    return found


def mlp_parameters(
    config: ModelConfig, index: int, gate_up_sources: Sequence[str] = _GATE_UP
) -> list[Parameter]:
    """Return what `mlp` needs; `gate_up_sources` as the checkpoint calls them."""
    here, there = f"layers.{index}.", f"model.layers.{index}.mlp."
    shapes = linear_shapes(config)
    return [
        *_linear_parameters(
            here + "gate_up",
            shapes["gate_up"],
            [there + part for part in gate_up_sources],
            config.mlp_bias,
        ),
        *_linear_parameters(here + "down", shapes["down"], [there + "down_proj"], config.mlp_bias),
    ]


def _linear_parameters(
    name: str, shape: tuple[int, int], sources: Sequence[str], has_bias: bool
) -> list[Parameter]:
    weights = tuple(source + ".weight" for source in sources)
    is_gate_up = name.endswith("gate_up")
    found = [Parameter(name, shape, weights, is_linear=True, is_gate_up=is_gate_up)]
    if has_bias:
        biases = tuple(source + ".bias" for source in sources)
        found.append(Parameter(name + ".bias", (shape[0],), biases))
    return found


@dataclass(frozen=True, slots=True)
class BlockBuilder:
    """Builds the blocks of a model from its loaded weights."""

    config: ModelConfig
    weights: Weights
    dtype: torch.dtype
    """Of what goes into linear layers."""

    def norm(self, name: str, dtype: torch.dtype | None = None) -> RmsNorm:
        """Return an RMS norm whose result has `dtype`; None: the model's."""
        weight = self.weights.tensors[name] + self.config.norm_offset
        return RmsNorm(weight, self.config.rms_norm_eps, dtype or self.dtype)

    def attention(self, index: int) -> SelfAttention:
        """Return the attention block of a layer."""
        config, here = self.config, f"layers.{index}."
        norms = None
        if config.qk_norm:
            norms = HeadNorms(self.norm(here + "query_norm"), self.norm(here + "key_norm"))
        scale = config.query_scale
        return SelfAttention(
            qkv=self._linear(here + "qkv"),
            output=self._linear(here + "output"),
            heads=head_shape(config),
            scale=config.head_dim**-0.5 if scale is None else scale,
            norms=norms,
        )

    def mlp(self, index: int) -> GatedMlp:
        """Return the feed-forward block of a layer."""
        here = f"layers.{index}."
        return GatedMlp(
            self._linear(here + "gate_up"), self._linear(here + "down"), self.config.activation
        )

    def _linear(self, name: str) -> Linear:
        weights = self.weights
        return Linear(name, weights.linears[name], weights.tensors.get(name + ".bias"))
