"""Gemma 3 (text): norms before and after each block, of queries and keys, sliding windows.

The rest are facts of the configuration: scaled embeddings, norm weights stored without their one,
scores scaled by another number than the head size, another RoPE base in the sliding layers.
"""

import torch

from engine.checkpoint.model_config import ModelConfig
from engine.layers.decoder_layer import SandwichNormLayer
from engine.models.blocks import (
    BlockBuilder,
    attention_parameters,
    mlp_parameters,
    norm_parameter,
)
from engine.models.family import ModelFamily
from engine.models.parameters import Parameter

_NORMS = {
    "attention_norm": "input_layernorm",
    "attention_out_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm",
}


def _layer_parameters(config: ModelConfig, index: int) -> list[Parameter]:
    here, there, size = f"layers.{index}.", f"model.layers.{index}.", config.hidden_size
    return [
        *(norm_parameter(here + ours, size, there + theirs) for ours, theirs in _NORMS.items()),
        *attention_parameters(config, index),
        *mlp_parameters(config, index),
    ]


def _layer(builder: BlockBuilder, index: int) -> SandwichNormLayer:
    here = f"layers.{index}."
    return SandwichNormLayer(
        attention_norm=builder.norm(here + "attention_norm"),
        attention=builder.attention(index),
        attention_out_norm=builder.norm(here + "attention_out_norm", torch.float32),
        mlp_norm=builder.norm(here + "mlp_norm"),
        mlp=builder.mlp(index),
        mlp_out_norm=builder.norm(here + "mlp_out_norm", torch.float32),
    )


FAMILY = ModelFamily(_layer_parameters, _layer)
