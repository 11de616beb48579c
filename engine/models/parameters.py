"""How a model says which tensors of a checkpoint it needs, and in which shape it keeps them."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from engine.kernels.backend import LinearWeight


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of a model, filled from one or more tensors stacked along the rows."""

    name: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    """Checkpoint names; stacked in this order they give `shape`."""
    is_linear: bool = False
    """Whether it is only ever multiplied with, so that the backend may pack it."""
    feeds_logits: bool = False
    """Kept in `KernelBackend.logits_dtype`: its rounding alone would decide between near ties."""
    is_float32: bool = False
    """Kept in float32 whatever the model's dtype: norms are small and scale everything."""
    is_gate_up: bool = False
    """Linear, with the gate's rows in the first half and the up projection's in the second."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Loaded parameters by `Parameter.name`."""

    tensors: Mapping[str, Tensor]
    linears: Mapping[str, LinearWeight]

    @property
    def num_bytes(self) -> int:
        """Return the size of all parameters; one that has two names counts once."""
        plain = sum(tensor.nbytes for tensor in self.tensors.values())
        linears = {id(weight): weight.num_bytes for weight in self.linears.values()}
        return plain + sum(linears.values())
