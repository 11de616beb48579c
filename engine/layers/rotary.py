"""Rotary position tables, with the frequency scalings that checkpoints ask for."""

import math

import torch
from torch import Tensor

from engine.checkpoint.model_config import ModelConfig, RopeScaling


class RotaryTable:
    """Cosines and sines of every position a model may see.

    Args:
        config: Gives head size, base and scaling.
        max_positions: Number of positions.
        device: Where the tables live.
    """

    def __init__(self, config: ModelConfig, max_positions: int, device: torch.device) -> None:
        frequencies = _frequencies(config)
        positions = torch.arange(max_positions, dtype=torch.float32)
        angles = torch.outer(positions, frequencies)
        self._cos = torch.cat((angles.cos(), angles.cos()), dim=-1).to(device)
        self._sin = torch.cat((-angles.sin(), angles.sin()), dim=-1).to(device)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, each `[rows, head_dim]` float32.

        The two halves of a head are the coordinates that rotate together ("half split", as in
        Hugging Face), so the second half repeats the first; in the first, sines are negative.
        """
        return self._cos[positions], self._sin[positions]


def _frequencies(config: ModelConfig) -> Tensor:
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    scaling = config.rope_scaling
    match scaling.kind:
        case "default":
            return frequencies
        case "linear":
            return frequencies / scaling.factor
        case "llama3":
            return _stretch_low_frequencies(frequencies, scaling)


def _stretch_low_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Divide slow rotations by the factor, keep fast ones, blend in between.

    Source:
        Llama 3.1, "The Llama 3 Herd of Models", section 3.4.2, https://arxiv.org/abs/2407.21783
    """
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (keep + (1.0 - keep) / scaling.factor)
