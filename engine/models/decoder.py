"""The decoder that all families share: embedding, layers, norm, output embedding."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor

from engine.checkpoint.model_config import ModelConfig
from engine.kernels.backend import KernelBackend, LayerCache, LinearWeight, StepPlan
from engine.layers.decoder_layer import DecoderLayer
from engine.layers.linear import StepAdapters
from engine.layers.norm import RmsNorm
from engine.layers.rotary import Rotary
from engine.layers.step import LayerStep


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One packed batch: the tokens of all requests one after the other."""

    token_ids: Tensor
    """`[rows]`, padded with any valid id to the backend's row count."""
    positions: Tensor
    """`[rows]`."""
    plan: StepPlan
    sampled_rows: Tensor
    """Rows whose logits are wanted."""
    adapters: StepAdapters | None = None
    """None: no row of the step uses one."""


@dataclass(frozen=True, slots=True)
class DecoderParts:
    """What all backends make a decoder of; the embedding is looked up in their own way."""

    layers: Sequence[DecoderLayer]
    norm: RmsNorm
    head: LinearWeight


class Decoder:
    """A decoder over packed rows.

    Args:
        config: Sizes and constants.
        embedding: `[vocab, hidden]`.
        parts: Layers and weights.
        kernels: Prepared for the model's `ModelShapes`.
        max_positions: Longest context.
    """

    def __init__(
        self,
        config: ModelConfig,
        embedding: Tensor,
        parts: DecoderParts,
        kernels: KernelBackend,
        max_positions: int,
    ) -> None:
        self._config = config
        self._embedding = embedding
        self._parts = parts
        self._kernels = kernels
        # the scale has the precision of the table, as in transformers
        self._scale = torch.tensor(config.embedding_scale, dtype=embedding.dtype).item()
        self._sliding = [config.is_sliding(layer) for layer in range(config.num_layers)]
        device = embedding.device
        self._rotary = Rotary(config, max_positions, device)
        self._window_rotary = self._rotary
        if config.local_rope_theta is not None:
            self._window_rotary = Rotary(config, max_positions, device, is_local=True)

    @torch.inference_mode()
    def forward(self, batch: ModelInput, caches: Sequence[LayerCache]) -> Tensor:
        """Compute one step; returns `[sampled rows, vocab]` float32 logits."""
        hidden = self._embed(batch.token_ids)
        steps = self._layer_steps(batch)
        for layer, cache, step in zip(self._parts.layers, caches, steps, strict=True):
            layer(hidden, cache, step)
        if not batch.sampled_rows.numel():  # every request is in the middle of its prompt
            return hidden.new_empty(0, self._config.vocab_size)
        last = self._parts.norm(hidden[batch.sampled_rows], self._kernels)
        return self._cap(self._kernels.logits(last, self._parts.head))

    def _embed(self, token_ids: Tensor) -> Tensor:
        hidden = self._kernels.embedding(token_ids, self._embedding)
        return hidden if self._scale == 1.0 else hidden.mul_(self._scale)

    def _layer_steps(self, batch: ModelInput) -> Iterator[LayerStep]:
        """Yield the step of each layer's kind."""
        plan, kernels, adapters = batch.plan, self._kernels, batch.adapters
        rotary = self._rotary.at(batch.positions)
        full = LayerStep(kernels, plan.full, rotary, adapters)
        if not any(self._sliding):
            return repeat(full, len(self._sliding))
        assert plan.window is not None, "the batch was planned without the model's window"
        if self._window_rotary is not self._rotary:
            rotary = self._window_rotary.at(batch.positions)
        window = LayerStep(kernels, plan.window, rotary, adapters)
        return (window if is_sliding else full for is_sliding in self._sliding)

    def _cap(self, logits: Tensor) -> Tensor:
        cap = self._config.logits_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)
