"""Rotary positions: the cosines and sines by which heads are rotated."""

import torch
from torch import Tensor

from engine.checkpoint.model_config import ModelConfig
from engine.layers.rotary_scaling import attention_factor, base_frequencies, scaled_frequencies


class Rotary:
    """Cosines and sines of positions, computed when asked for.

    A table would cost a long context 100 MB, and a step of 512 tokens saves no millisecond by it.

    Args:
        config: Gives head size, base and scaling.
        max_positions: Longest context of this engine.
        device: Where positions are.
        is_local: Of the sliding-window layers of a model that has a base of their own for them.

    Attributes:
        frequencies: `[rotary_dim / 2]`, float32, radians per position.
        factor: Of cosines and sines.
    """

    def __init__(
        self,
        config: ModelConfig,
        max_positions: int,
        device: torch.device,
        *,
        is_local: bool = False,
    ) -> None:
        if is_local and config.local_rope_theta is not None:
            frequencies, self.factor = base_frequencies(config, config.local_rope_theta), 1.0
        else:
            frequencies = scaled_frequencies(config, max_positions)
            self.factor = attention_factor(config.rope_scaling)
        self.frequencies = frequencies.to(device)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, each `[rows, rotary_dim]` float32.

        The two halves of a head's rotating part are the coordinates that rotate together ("half
        split", as in Hugging Face), so the second half repeats the first; in the first, sines are
        negative.
        """
        angles = torch.outer(positions.to(torch.float32), self.frequencies)
        cos, sin = angles.cos(), angles.sin()
        if self.factor != 1.0:
            cos, sin = cos.mul_(self.factor), sin.mul_(self.factor)
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
