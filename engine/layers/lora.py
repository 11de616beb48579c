"""LoRA: what an adapter adds to linear layers, each row of a step through its own adapter.

Adapters of rank `r` add `(x @ A.T) @ B.T * scale` to a layer's output. The product is taken in
float32 and added before one rounding to the output's dtype. Each adapter's rows are multiplied on
their own, so the bits of a row depend on its own adapter and nothing else, and rows without one
are not touched.

Source:
    Hu et al. 2021, LoRA, https://arxiv.org/abs/2106.09685
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.backend import KernelBackend
from engine.layers.linear import StepAdapters


@dataclass(frozen=True, slots=True)
class LowRankUpdate:
    """What an adapter adds to some neighbouring columns of a layer's output."""

    first_column: int
    down: Tensor
    """`[rank, in]`, float32."""
    up: Tensor
    """`[columns, rank]`, float32, with the scale in it; may lie in memory as its transpose."""

    @property
    def num_bytes(self) -> int:
        """Return the size of both matrices."""
        return self.down.nbytes + self.up.nbytes

    def to(self, device: torch.device) -> "LowRankUpdate":
        """Return the same on another device; itself where it is there already."""
        return LowRankUpdate(self.first_column, self.down.to(device), self.up.to(device))


AdapterUpdates = Mapping[str, Sequence[LowRankUpdate]]
"""An adapter's updates by `Parameter.name` of the layer's weight."""


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """The rows of a step that go through one adapter."""

    rows: slice | Tensor
    """Neighbouring rows as a slice, others as `[n]` indices in ascending order."""
    updates: AdapterUpdates


class AdapterKernels(ABC):
    """How a backend wants adapters to lie in memory, and what a step needs of them."""

    joins: bool
    """Whether parts that share their input are better joined to one update, see
    `engine.core.adapter_layout`."""
    transposes: bool
    """Whether `LowRankUpdate.up` must lie in memory as its transpose."""

    @abstractmethod
    def prepare(self, updates: AdapterUpdates) -> AdapterUpdates:
        """Do once for an adapter what no step should do; called from the reading thread.

        Returns:
            The same updates, to be used in steps; may carry more than they did.
        """

    @abstractmethod
    def step(self, groups: Sequence[AdapterRows]) -> StepAdapters:
        """Return the adapters of a step; no row is in two groups."""


class TensorAdapters(AdapterKernels):
    """For backends that compute with tensors.

    Args:
        kernels: Computes the products.
        device: Where steps run.
    """

    joins = True
    transposes = False

    def __init__(self, kernels: KernelBackend, device: torch.device) -> None:
        self._kernels = kernels
        self._device = device

    def prepare(self, updates: AdapterUpdates) -> AdapterUpdates:
        """Let the kernels find out what they must know of these shapes."""
        prepare(updates, self._kernels, self._device)
        return updates

    def step(self, groups: Sequence[AdapterRows]) -> StepAdapters:
        """Return the adapters of a step."""
        return PackedAdapters(groups, self._kernels)


class PackedAdapters(StepAdapters):
    """The adapters of one step over packed rows.

    Args:
        groups: One for each adapter; no row is in two.
        kernels: Computes the products.
    """

    def __init__(self, groups: Sequence[AdapterRows], kernels: KernelBackend) -> None:
        self._groups = groups
        self._kernels = kernels

    def apply(self, name: str, rows: Tensor, out: Tensor) -> None:
        """Add each adapter's updates of the layer to its rows of `out`."""
        for group in self._groups:
            updates = group.updates.get(name, ())
            if updates:
                inputs = rows[group.rows]
                for update in updates:
                    self._add(update, group.rows, inputs, out)

    def _add(self, update: LowRankUpdate, at: slice | Tensor, inputs: Tensor, out: Tensor) -> None:
        columns = slice(update.first_column, update.first_column + update.up.shape[0])
        change = self._kernels.low_rank(inputs, update.down, update.up)
        out[at, columns] = change.add_(out[at, columns]).to(out.dtype)


def prepare(updates: AdapterUpdates, kernels: KernelBackend, device: torch.device) -> None:
    """Let the kernels find out what they must know of these shapes, so that no step has to."""
    shapes = {(u.down.shape, u.up.shape) for together in updates.values() for u in together}
    for down, up in shapes:
        rows = torch.zeros(1, down[1], device=device)
        kernels.low_rank(rows, torch.zeros(down, device=device), torch.zeros(up, device=device))


def row_groups(
    spans: Sequence[tuple[int, int, str | None]], device: torch.device
) -> dict[str, slice | Tensor]:
    """Return which rows each adapter has.

    Args:
        spans: `(first row, number of rows, adapter or None)`, in ascending order.
        device: Of the indices.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for first, count, adapter in spans:
        if adapter is not None:
            pieces = found.setdefault(adapter, [])
            if pieces and pieces[-1][1] == first:
                pieces[-1] = (pieces[-1][0], first + count)
            else:
                pieces.append((first, first + count))
    return {adapter: _rows(pieces, device) for adapter, pieces in found.items()}


def _rows(pieces: Sequence[tuple[int, int]], device: torch.device) -> slice | Tensor:
    if len(pieces) == 1:
        return slice(*pieces[0])
    return torch.cat([torch.arange(first, end) for first, end in pieces]).to(device)
