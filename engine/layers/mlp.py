"""The gated feed-forward block."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from engine.layers.linear import Linear
from engine.layers.step import LayerStep


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """`down(activation(gate(x)) * up(x))`, gate and up in one product."""

    gate_up: Linear
    """To `2 * inner`, the gate in the first half."""
    down: Linear
    activation: Literal["silu", "gelu_tanh"] = "silu"

    def __call__(self, rows: Tensor, step: LayerStep) -> Tensor:
        """Transform `[rows, hidden]`."""
        kernels = step.kernels
        gate_up = self.gate_up(rows, kernels, step.adapters)
        match self.activation:
            case "silu":
                inner = kernels.silu_mul(gate_up)
            case "gelu_tanh":
                inner = kernels.gelu_mul(gate_up)
        return self.down(inner, kernels, step.adapters)
