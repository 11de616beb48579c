"""LoRA adapters for the C++ kernels: tables that are made once, and the rows of a step."""

import ctypes
from array import array
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from engine.kernels.cpu.structs import AdapterRows as RowsStruct
from engine.kernels.cpu.structs import Update, UpdateList
from engine.kernels.cpu.weights import GATED_ROWS
from engine.layers.linear import StepAdapters
from engine.layers.lora import AdapterKernels, AdapterRows, AdapterUpdates, LowRankUpdate

PARTS = ("qkv", "output", "gate_up", "down")
"""The products of a layer, as `qd_adapter_rows.lists` has them."""
MAX_RANK = 1024
"""`kMaxLowRank`: a step with an update of a higher rank is refused."""


class CpuUpdates(Mapping[str, Sequence[LowRankUpdate]]):
    """An adapter's updates with the table of them that the kernels read.

    Args:
        updates: By `Parameter.name`; the table points into them.
        num_layers: Of the model.
        inner_size: Of its feed-forward blocks.

    Raises:
        ValueError: a layer's product has no such name, or a rank is above `MAX_RANK`.
    """

    def __init__(self, updates: AdapterUpdates, num_layers: int, inner_size: int) -> None:
        self._updates = updates
        self._kept: list[object] = []
        self.lists = (UpdateList * (num_layers * len(PARTS)))()
        """`[num_layers][4]`."""
        for name, together in updates.items():
            layer, part = _place(name, num_layers)
            split = [piece for update in together for piece in _pieces(update, part, inner_size)]
            described = (Update * len(split))(*(self._described(*piece) for piece in split))
            self.lists[layer * len(PARTS) + PARTS.index(part)] = UpdateList(described, len(split))
            self._kept.append(described)

    def __getitem__(self, name: str) -> Sequence[LowRankUpdate]:
        return self._updates[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._updates)

    def __len__(self) -> int:
        return len(self._updates)

    def _described(self, first_column: int, down: Tensor, up: Tensor) -> Update:
        """Return the structure; matrices that do not lie as the kernels want are copied."""
        if down.shape[0] > MAX_RANK:
            raise ValueError(f"rank {down.shape[0]} is above {MAX_RANK}, the kernels' most")
        down, up = down.float().contiguous(), up.float().T.contiguous()
        self._kept += [down, up]
        return Update(
            down=down.data_ptr(),
            up=up.data_ptr(),
            rank=down.shape[0],
            width=down.shape[1],
            first_column=first_column,
            columns=up.shape[1],
        )


class CpuAdapterKernels(AdapterKernels):
    """Adapters of one model, for as long as its shape is the same.

    Args:
        num_layers: Of the model.
        inner_size: Of its feed-forward blocks.
    """

    joins = False
    transposes = True

    def __init__(self, num_layers: int, inner_size: int) -> None:
        self._num_layers = num_layers
        self._inner_size = inner_size

    def prepare(self, updates: AdapterUpdates) -> AdapterUpdates:
        """Make the adapter's table."""
        return CpuUpdates(updates, self._num_layers, self._inner_size)

    def step(self, groups: Sequence[AdapterRows]) -> StepAdapters:
        """Return the adapters of a step."""
        return CpuAdapters(groups)


class CpuAdapters(StepAdapters):
    """The adapters of one step.

    Args:
        groups: One for each adapter, with what `CpuAdapterKernels.prepare` made of its updates.
    """

    def __init__(self, groups: Sequence[AdapterRows]) -> None:
        self._groups = groups
        self._indices = [_indices(group.rows) for group in groups]
        self.rows = cpu_adapter_rows(groups, self._indices)
        """For `qd_step`; valid as long as this object."""

    def apply(self, name: str, rows: Tensor, out: Tensor) -> None:
        """Add the updates with tensors; columns are those of the checkpoint's layer."""
        for group in self._groups:
            for update in group.updates.get(name, ()):
                end = update.first_column + update.up.shape[0]
                change = (rows[group.rows] @ update.down.T) @ update.up.T
                out[group.rows, update.first_column : end] += change.to(out.dtype)


def cpu_adapter_rows(
    groups: Sequence[AdapterRows], indices: "Sequence[array[int]]"
) -> ctypes.Array[RowsStruct]:
    """Return the structures of a step's adapters.

    Args:
        groups: One for each adapter.
        indices: Their rows as int32; must live as long as the result.
    """
    found = (RowsStruct * len(groups))()
    for at, (group, rows) in enumerate(zip(groups, indices, strict=True)):
        assert isinstance(group.updates, CpuUpdates), "prepared for these kernels"
        found[at] = RowsStruct(rows.buffer_info()[0], group.updates.lists, len(rows))
    return found


def _indices(rows: slice | Tensor) -> "array[int]":
    if isinstance(rows, slice):
        return array("i", range(rows.start, rows.stop))
    return array("i", rows.tolist())


def _place(name: str, num_layers: int) -> tuple[int, str]:
    """Return the layer and the part of a `Parameter.name`."""
    match name.split("."):
        case ["layers", layer, part] if layer.isdecimal() and int(layer) < num_layers:
            if part in PARTS:
                return int(layer), part
        case _:
            pass
    raise ValueError(f"adapters cannot change {name}")


def _pieces(update: LowRankUpdate, part: str, inner_size: int) -> list[tuple[int, Tensor, Tensor]]:
    """Return the first column of the kernels' output, and both matrices.

    Of gate and up, the kernels' second half begins at the padded inner size: an update of both
    halves is cut in two, unless there is no padding.
    """
    padding = -inner_size % GATED_ROWS
    first, columns = update.first_column, update.up.shape[0]
    if part != "gate_up" or not padding or first + columns <= inner_size:
        return [(first, update.down, update.up)]
    if first >= inner_size:
        return [(first + padding, update.down, update.up)]
    gate = inner_size - first
    return [
        (first, update.down, update.up[:gate]),
        (inner_size + padding, update.down, update.up[gate:]),
    ]
