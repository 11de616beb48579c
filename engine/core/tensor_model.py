"""A model whose layers compute with torch tensors, on any torch device."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.backend import KernelBackend, LayerCache
from engine.kernels.model import KernelFacts, LoadedModel, PackedStep, WeightsSize
from engine.kernels.torch_sampling import TorchSampling
from engine.layers.linear import StepAdapters
from engine.models.decoder import Decoder, ModelInput


@dataclass(frozen=True, slots=True)
class TensorParts:
    """What a `TensorModel` is made of."""

    decoder: Decoder
    caches: Sequence[LayerCache]
    kernels: KernelBackend
    device: torch.device
    window: int | None
    """Tokens that sliding-window layers see; None: there are none."""


class TensorModel(LoadedModel):
    """Plans a step for the backend, makes tensors of it and runs the decoder.

    Args:
        parts: Layers, memory and the backend.
        facts: About the backend.
        weights: Their size.
    """

    checks_values = False

    def __init__(self, parts: TensorParts, facts: KernelFacts, weights: WeightsSize) -> None:
        self.facts = facts
        self.weights = weights
        self.sampling = TorchSampling()
        self._parts = parts

    def padded_rows(self, num_rows: int) -> int:
        """Return the number of rows of whole tiles."""
        return self._parts.kernels.padded_rows(num_rows)

    @torch.inference_mode()
    def forward(self, step: PackedStep, adapters: StepAdapters | None) -> Tensor:
        """Compute one step."""
        batch = self.input(step, adapters)
        return self._parts.decoder.forward(batch, self._parts.caches)

    def input(self, step: PackedStep, adapters: StepAdapters | None) -> ModelInput:
        """Make the tensors of a step."""
        kernels, device = self._parts.kernels, self._parts.device
        block_size = self._parts.caches[0].block_size
        plan = kernels.plan(step.spans, block_size, self._parts.window)
        padding = [0] * (kernels.padded_rows(len(step.token_ids)) - len(step.token_ids))
        positions = [
            position
            for span in step.spans
            for position in range(span.start_position, span.start_position + span.num_rows)
        ]
        return ModelInput(
            token_ids=torch.tensor([*step.token_ids, *padding], device=device),
            positions=torch.tensor(positions + padding, device=device),
            plan=plan,
            sampled_rows=torch.tensor(step.sampled_rows, dtype=torch.long, device=device),
            adapters=adapters,
        )

    def clear_blocks(self, num_blocks: int) -> None:
        """Empty the first blocks of every layer."""
        for cache in self._parts.caches:
            cache.keys[:num_blocks].zero_()
            cache.values[:num_blocks].zero_()

    def close(self) -> None:
        """Nothing but memory, which goes with the last reference."""
