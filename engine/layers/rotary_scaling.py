"""How checkpoints stretch rotary frequencies to reach longer contexts."""

import math

import torch
from torch import Tensor

from engine.checkpoint.model_config import ModelConfig, RopeScaling


def base_frequencies(config: ModelConfig, theta: float) -> Tensor:
    """Return the unscaled frequencies `[rotary_dim / 2]`, in radians per position."""
    rotary_dim = config.rotary_dim or config.head_dim
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    return 1.0 / theta**exponents


def scaled_frequencies(config: ModelConfig, max_positions: int) -> Tensor:
    """Return the frequencies as the checkpoint's scaling changes them.

    Args:
        config: Says which scaling.
        max_positions: Longest context of this engine; LongRoPE has two sets of frequencies.
    """
    frequencies, scaling = base_frequencies(config, config.rope_theta), config.rope_scaling
    match scaling.kind:
        case "default":
            speed = 1.0
        case "linear":
            speed = 1.0 / scaling.factor
        case "llama3":
            speed = _llama3_speed(frequencies, scaling)
        case "yarn":
            speed = _yarn_speed(config)
        case "factors":
            speed = 1.0 / torch.tensor(scaling.long_factors)
        case "longrope":
            speed = 1.0 / _longrope_factors(scaling, max_positions)
    return frequencies * speed


def attention_factor(scaling: RopeScaling) -> float:
    """Return the factor of cosines and sines."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    match scaling.kind:
        case "yarn":
            return _yarn_attention_factor(scaling)
        case "longrope":
            return _longrope_attention_factor(scaling)
        case "default" | "linear" | "llama3" | "factors":
            return 1.0


def _llama3_speed(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Return 1 for fast rotations, one over the factor for slow ones, between them a blend.

    Source:
        Llama 3.1, "The Llama 3 Herd of Models", section 3.4.2, https://arxiv.org/abs/2407.21783
    """
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return keep + (1.0 - keep) / scaling.factor


def _yarn_speed(config: ModelConfig) -> Tensor:
    """Return 1 for fast rotations, one over the factor for slow ones, linearly between them.

    Source:
        Peng et al. 2023, YaRN, section 3.2, https://arxiv.org/abs/2309.00071
    """
    scaling, rotary_dim = config.rope_scaling, config.rotary_dim or config.head_dim

    def dimension(turns: float) -> float:
        """Return which dimension turns that often in the original context."""
        positions_per_turn = scaling.original_max_position_embeddings / (turns * 2 * math.pi)
        return rotary_dim * math.log(positions_per_turn) / (2 * math.log(config.rope_theta))

    first, last = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary_dim - 1)
    width = last - first if last != first else 0.001
    dimensions = torch.arange(rotary_dim // 2, dtype=torch.float32)
    slow = ((dimensions - first) / width).clamp(0.0, 1.0)
    return 1.0 - slow + slow / scaling.factor


def _yarn_attention_factor(scaling: RopeScaling) -> float:
    if scaling.mscale and scaling.mscale_all_dim:
        return _magnitude(scaling.factor, scaling.mscale) / _magnitude(
            scaling.factor, scaling.mscale_all_dim
        )
    return _magnitude(scaling.factor, 1.0)


def _magnitude(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _longrope_factors(scaling: RopeScaling, max_positions: int) -> Tensor:
    """Choose the long factors if the engine's longest context is beyond the original one.

    transformers chooses anew with every call, by its longest position: a text that grows beyond the
    original context then mixes keys of both kinds. Here all keys of an engine are of one kind, so
    that results depend on nothing but the request; an engine for short texts only (`max_model_len`)
    is exactly the original model.

    Source:
        Ding et al. 2024, LongRoPE, https://arxiv.org/abs/2402.13753
    """
    is_long = max_positions > scaling.original_max_position_embeddings
    return torch.tensor(scaling.long_factors if is_long else scaling.short_factors)


def _longrope_attention_factor(scaling: RopeScaling) -> float:
    if scaling.factor <= 1.0:
        return 1.0
    original = scaling.original_max_position_embeddings
    return math.sqrt(1.0 + math.log(scaling.factor) / math.log(original))
