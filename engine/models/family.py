"""What every family of models offers; families differ in their layers only."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.checkpoint.model_config import ModelConfig
from engine.kernels.backend import ModelShapes
from engine.layers.decoder_layer import DecoderLayer
from engine.models.blocks import (
    EMBEDDING,
    BlockBuilder,
    head_shape,
    linear_shapes,
    norm_parameter,
)
from engine.models.decoder import DecoderParts
from engine.models.parameters import Parameter, Weights

HEAD = "head"
_NORM = "norm"


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """Architectures that share their layers."""

    layer_parameters: Callable[[ModelConfig, int], list[Parameter]]
    """Of the layer with an index."""
    layer: Callable[[BlockBuilder, int], DecoderLayer]
    """Builds the layer with an index."""

    def parameters(self, config: ModelConfig) -> list[Parameter]:
        """Return every parameter of the model."""
        table = (config.vocab_size, config.hidden_size)
        found = [Parameter(EMBEDDING, table, ("model.embed_tokens.weight",))]
        for index in range(config.num_layers):
            found += self.layer_parameters(config, index)
        found.append(norm_parameter(_NORM, config.hidden_size, "model.norm"))
        # a tied head is a copy of the embedding: it has another dtype and another layout
        source = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
        found.append(Parameter(HEAD, table, (source,), is_linear=True, feeds_logits=True))
        return found

    def shapes(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> ModelShapes:
        """Return what a kernel backend tunes itself for."""
        return ModelShapes(
            linears=tuple(dict.fromkeys(linear_shapes(config).values())),
            head=(config.vocab_size, config.hidden_size),
            heads=head_shape(config),
            dtype=dtype,
            device=device,
        )

    def parts(
        self, config: ModelConfig, weights: Weights, dtype: torch.dtype, logits_dtype: torch.dtype
    ) -> DecoderParts:
        """Build the model's layers from everything that `parameters` names.

        Args:
            config: Sizes and constants.
            weights: As a loader filled them.
            dtype: Of what goes into linear layers.
            logits_dtype: Of what goes into the head.
        """
        builder = BlockBuilder(config, weights, dtype)
        return DecoderParts(
            layers=[self.layer(builder, index) for index in range(config.num_layers)],
            norm=builder.norm(_NORM, logits_dtype),
            head=weights.linears[HEAD],
        )
