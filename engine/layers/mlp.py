"""The gated feed-forward block."""

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.backend import KernelBackend, LinearWeight


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """`down(silu(gate(x)) * up(x))`, gate and up in one product."""

    gate_up_weight: LinearWeight
    """`[2 * inner, hidden]`."""
    down_weight: LinearWeight

    def __call__(self, rows: Tensor, kernels: KernelBackend) -> Tensor:
        """Transform `[rows, hidden]`."""
        inner = kernels.silu_mul(kernels.linear(rows, self.gate_up_weight))
        return kernels.linear(inner, self.down_weight)
