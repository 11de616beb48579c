"""Root mean square normalisation with a weight."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.backend import KernelBackend


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """Normalises over the last dimension, in float32."""

    weight: Tensor
    """`[size]`, float32, with the family's offset in it."""
    epsilon: float
    dtype: torch.dtype
    """Of the result."""

    def __call__(self, rows: Tensor, kernels: KernelBackend) -> Tensor:
        """Normalise `[..., size]` rows of any dtype."""
        return kernels.rms_norm(rows.float(), self.weight, self.epsilon, self.dtype)
