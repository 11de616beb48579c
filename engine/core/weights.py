"""Fills a model's parameters from a checkpoint, piece by piece."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from engine.checkpoint.checkpoint import Checkpoint
from engine.core.memory import allocate
from engine.kernels.backend import KernelBackend, LinearWeight
from engine.models.parameters import Parameter, Weights

BytesDone = Callable[[int, int], None]
"""Called with (done, total) bytes of the checkpoint's files."""


class WeightLoader:
    """Reads, dequantizes, converts and packs parameters.

    Needs little more memory than the result: one parameter and a few megabytes of the file are in
    flight.

    Args:
        checkpoint: Where the tensors are.
        dtype: In which the parameters are kept.
        device: Where they are kept.
        progress: Told after each piece.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
        progress: BytesDone,
    ) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._done_bytes = 0
        self._total_bytes = 0

    def load(self, parameters: Sequence[Parameter], kernels: KernelBackend) -> Weights:
        """Load every parameter.

        Raises:
            CheckpointError: a tensor is missing, has another shape, or cannot be read.
        """
        entries = [
            entry for p in parameters for entry in self._checkpoint.stacked(p.sources, p.shape)
        ]
        self._done_bytes, self._total_bytes = 0, sum(entry.num_bytes for entry in entries)
        logits_dtype = kernels.logits_dtype(self._dtype, self._device)
        shapes = {
            p.name: p.shape
            for p in parameters
            if not (p.is_linear or p.feeds_logits or p.is_float32)
        }
        tensors = dict(allocate(shapes, self._dtype, self._device))
        linears: dict[str, LinearWeight] = {}
        for parameter in parameters:
            dtype = logits_dtype if parameter.feeds_logits else self._dtype
            if parameter.is_linear:
                linears[parameter.name] = kernels.pack(self._filled(parameter, dtype))
            elif parameter.is_float32:
                tensors[parameter.name] = self._filled(parameter, torch.float32)
            elif parameter.feeds_logits:
                tensors[parameter.name] = self._filled(parameter, dtype)
            else:
                self._fill(tensors[parameter.name], parameter)
        return Weights(tensors, linears)

    def _filled(self, parameter: Parameter, dtype: torch.dtype) -> Tensor:
        target = torch.empty(parameter.shape, dtype=dtype, device=self._device)
        self._fill(target, parameter)
        return target

    def _fill(self, target: Tensor, parameter: Parameter) -> None:
        row = 0
        for source in parameter.sources:
            entry = self._checkpoint.tensors[source]
            for first, values in self._checkpoint.read_pieces(source):
                piece = _as_tensor(values, entry.kind)
                target[row + first : row + first + piece.shape[0]].copy_(piece)
                self._done_bytes += entry.num_bytes * piece.shape[0] // entry.num_rows
                self._progress(self._done_bytes, self._total_bytes)
            row += entry.num_rows


def _as_tensor(values: Any, kind: str) -> Tensor:
    tensor = torch.from_numpy(values)
    return tensor.view(torch.bfloat16) if kind == "BF16" else tensor
