"""What the layers of one kind share in one step."""

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.backend import KernelBackend, LayerPlan
from engine.layers.linear import StepAdapters


@dataclass(frozen=True, slots=True)
class LayerStep:
    """A step as the full-attention layers, or the sliding-window layers, see it."""

    kernels: KernelBackend
    plan: LayerPlan
    rotary: tuple[Tensor, Tensor]
    """Cosines and sines of the rows, from this kind's `Rotary`."""
    adapters: StepAdapters | None
