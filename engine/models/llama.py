"""Llama, and what has its layers: Mistral, Qwen2, Qwen3.

They differ in values of the configuration alone: Mistral and Qwen2 may have sliding windows, Qwen2
has biases in the projections to queries, keys and values, Qwen3 norms of queries and keys.
"""

from engine.checkpoint.model_config import ModelConfig
from engine.layers.decoder_layer import PreNormLayer
from engine.models.blocks import (
    BlockBuilder,
    attention_parameters,
    mlp_parameters,
    norm_parameter,
)
from engine.models.family import ModelFamily
from engine.models.parameters import Parameter


def norm_parameters(config: ModelConfig, index: int) -> list[Parameter]:
    """Return the norms of `pre_norm_layer`."""
    here, there, size = f"layers.{index}.", f"model.layers.{index}.", config.hidden_size
    return [
        norm_parameter(here + "attention_norm", size, there + "input_layernorm"),
        norm_parameter(here + "mlp_norm", size, there + "post_attention_layernorm"),
    ]


def pre_norm_layer(builder: BlockBuilder, index: int) -> PreNormLayer:
    """Build a layer."""
    here = f"layers.{index}."
    return PreNormLayer(
        attention_norm=builder.norm(here + "attention_norm"),
        attention=builder.attention(index),
        mlp_norm=builder.norm(here + "mlp_norm"),
        mlp=builder.mlp(index),
    )


def _layer_parameters(config: ModelConfig, index: int) -> list[Parameter]:
    return [
        *norm_parameters(config, index),
        *attention_parameters(config, index),
        *mlp_parameters(config, index),
    ]


FAMILY = ModelFamily(_layer_parameters, pre_norm_layer)
