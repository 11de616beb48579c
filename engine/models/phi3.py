"""Phi-3: Llama's layers, with queries, keys and values, and gate and up, fused in the checkpoint.

A part of each head rotates, and positions may be stretched by LongRoPE: both are facts of the
configuration that `Rotary` reads.
"""

from engine.checkpoint.model_config import ModelConfig
from engine.models.blocks import attention_parameters, mlp_parameters
from engine.models.family import ModelFamily
from engine.models.llama import norm_parameters, pre_norm_layer
from engine.models.parameters import Parameter


def _layer_parameters(config: ModelConfig, index: int) -> list[Parameter]:
    return [
        *norm_parameters(config, index),
        *attention_parameters(config, index, ("qkv_proj",)),
        *mlp_parameters(config, index, ("gate_up_proj",)),
    ]


FAMILY = ModelFamily(_layer_parameters, pre_norm_layer)
