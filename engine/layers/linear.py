"""A linear layer: its product, its bias, and what a request's LoRA adapter adds."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.kernels.backend import KernelBackend, LinearWeight


class StepAdapters(Protocol):
    """The LoRA adapters of one step: which rows use which."""

    def apply(self, name: str, rows: Tensor, out: Tensor) -> None:
        """Add to `out` what each row's adapter changes in the layer; other rows stay untouched.

        Args:
            name: `Parameter.name` of the layer's weight.
            rows: `[rows, in]`, its input.
            out: `[rows, out]`, its output, changed in place.
        """
        ...


@dataclass(frozen=True, slots=True)
class Linear:
    """`rows @ weight.T + bias`, for padded rows."""

    name: str
    """`Parameter.name` of the weight."""
    weight: LinearWeight
    bias: Tensor | None = None
    """`[out]`."""

    def __call__(
        self, rows: Tensor, kernels: KernelBackend, adapters: StepAdapters | None
    ) -> Tensor:
        """Transform `[rows, in]` to `[rows, out]`."""
        out = kernels.linear(rows, self.weight)
        if self.bias is not None:
            out = out + self.bias
        if adapters is not None:
            adapters.apply(self.name, rows, out)
        return out
