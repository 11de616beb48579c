"""Where each weight of a model goes in one block of memory: in its format, padded and aligned.

The block is what the weight cache keeps on disk, so a plan can be stored and compared.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import torch
from torch import Tensor

from engine.checkpoint.tensors import TensorEntry
from engine.kernels.backend import LinearWeight
from engine.kernels.cpu.quantization import QuantizationChoice
from engine.kernels.cpu.weights import (
    GATED_ROWS,
    PANEL_ROWS,
    Format,
    PackedSegment,
    PackedWeight,
    panel_bytes,
)
from engine.models.parameters import Parameter, Weights

_ALIGNMENT_BYTES = 64
_FLOAT_BYTES = 4


class PlannedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one format."""

    format: int
    rows: int
    """As `PackedSegment.rows`."""
    first_column: int
    sources: tuple[str, ...]
    """Tensors of the checkpoint whose rows these are, one after the other."""
    offset: int
    """In the block."""
    num_bytes: int


class PlannedWeight(msgspec.Struct, frozen=True, kw_only=True):
    """A matrix that is packed."""

    names: tuple[str, ...]
    """More than one where an embedding is also the head."""
    columns: int
    in_features: int
    width: int
    is_gate_up: bool
    segments: tuple[PlannedSegment, ...]


class PlannedTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A vector that stays one, in float32."""

    name: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    offset: int


class WeightPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All weights of a model."""

    weights: tuple[PlannedWeight, ...]
    tensors: tuple[PlannedTensor, ...]
    num_bytes: int

    def weights_in(self, block: Tensor) -> Weights:
        """Return the weights as views of a filled block, uint8, aligned to 64 bytes."""
        linears: dict[str, LinearWeight] = {}
        for planned in self.weights:
            packed = _packed(planned, block)
            weight = LinearWeight(packed, is_packed=True, num_bytes=packed.num_bytes)
            linears |= dict.fromkeys(planned.names, weight)
        tensors = {
            planned.name: tensor_in(block, planned.offset, planned.shape)
            for planned in self.tensors
        }
        return Weights(tensors, linears)


def tensor_in(block: Tensor, offset: int, shape: Sequence[int]) -> Tensor:
    """Return a float32 view of a block of bytes."""
    size = torch.Size(shape).numel() * _FLOAT_BYTES
    return block[offset : offset + size].view(torch.float32).view(*shape)


def make_plan(
    parameters: Iterable[Parameter],
    entries: Mapping[str, TensorEntry],
    choice: QuantizationChoice,
) -> WeightPlan:
    """Lay out a model; matrices are packed, vectors are kept in float32.

    Args:
        parameters: Of the model.
        entries: Each source of a parameter.
        choice: In which formats.
    """
    planner = _Planner(entries, choice)
    for parameter in parameters:
        planner.add(parameter)
    return planner.plan()


class _Planner:
    def __init__(self, entries: Mapping[str, TensorEntry], choice: QuantizationChoice) -> None:
        self._entries = entries
        self._choice = choice
        self._weights: dict[tuple[str, ...], PlannedWeight] = {}
        self._tensors: list[PlannedTensor] = []
        self._end = 0

    def add(self, parameter: Parameter) -> None:
        if len(parameter.shape) == 1:
            offset = self._place(parameter.shape[0] * _FLOAT_BYTES)
            self._tensors.append(
                PlannedTensor(
                    name=parameter.name,
                    shape=parameter.shape,
                    sources=parameter.sources,
                    offset=offset,
                )
            )
            return
        known = self._weights.get(parameter.sources)
        self._weights[parameter.sources] = (
            self._weight(parameter)
            if known is None
            else msgspec.structs.replace(known, names=(*known.names, parameter.name))
        )

    def plan(self) -> WeightPlan:
        return WeightPlan(
            weights=tuple(self._weights.values()),
            tensors=tuple(self._tensors),
            num_bytes=self._end,
        )

    def _place(self, num_bytes: int) -> int:
        offset = self._end
        self._end = _rounded_up(offset + num_bytes, _ALIGNMENT_BYTES)
        return offset

    def _weight(self, parameter: Parameter) -> PlannedWeight:
        rows, in_features = parameter.shape
        formats = self._choice.formats(
            [self._entries[source].kind for source in parameter.sources],
            is_table=not parameter.is_linear or parameter.feeds_logits,
            is_gate_up=parameter.is_gate_up,
        )
        # what the product before it gives is padded too, if that is a gate and up matrix
        width = _rounded_up(in_features, max(GATED_ROWS, *(each.group for each in formats)))
        return PlannedWeight(
            names=(parameter.name,),
            columns=_rounded_up(rows // 2, GATED_ROWS) if parameter.is_gate_up else rows,
            in_features=in_features,
            width=width,
            is_gate_up=parameter.is_gate_up,
            segments=tuple(self._segments(parameter, formats, width)),
        )

    def _segments(
        self, parameter: Parameter, formats: Sequence[Format], width: int
    ) -> Iterable[PlannedSegment]:
        first_column = 0
        for format_, sources in _runs(parameter.sources, formats):
            rows = sum(self._entries[source].num_rows for source in sources)
            if parameter.is_gate_up:
                rows = 2 * _rounded_up(rows // 2, GATED_ROWS)
            num_bytes = -(-rows // PANEL_ROWS) * panel_bytes(format_, width)
            yield PlannedSegment(
                format=format_,
                rows=rows,
                first_column=first_column,
                sources=tuple(sources),
                offset=self._place(num_bytes),
                num_bytes=num_bytes,
            )
            first_column += rows


def _runs(sources: Sequence[str], formats: Sequence[Format]) -> Iterable[tuple[Format, list[str]]]:
    """Put neighbours of the same format together."""
    runs: list[tuple[Format, list[str]]] = []
    for source, format_ in zip(sources, formats, strict=True):
        if runs and runs[-1][0] is format_:
            runs[-1][1].append(source)
        else:
            runs.append((format_, [source]))
    return runs


def _packed(planned: PlannedWeight, block: Tensor) -> PackedWeight:
    return PackedWeight(
        segments=tuple(
            PackedSegment(
                format=Format(segment.format),
                rows=segment.rows,
                width=planned.width,
                first_column=segment.first_column,
                panels=block[segment.offset : segment.offset + segment.num_bytes],
            )
            for segment in planned.segments
        ),
        columns=planned.columns,
        in_features=planned.in_features,
    )


def _rounded_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
