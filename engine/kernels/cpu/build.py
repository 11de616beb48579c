"""Writes a loaded model into the structure of which `qd_engine_create` makes an engine."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.checkpoint.model_config import ModelConfig
from engine.kernels.backend import LinearWeight
from engine.kernels.cpu.packing import packed_bias
from engine.kernels.cpu.structs import Layer, Linear, Model, Norm, Segment
from engine.kernels.cpu.weights import Format, PackedWeight
from engine.layers.decoder_layer import DecoderLayer, PreNormLayer, SandwichNormLayer
from engine.layers.linear import Linear as LinearLayer
from engine.layers.norm import RmsNorm
from engine.layers.rotary import Rotary
from engine.models.decoder import DecoderParts

_INPUTS = {Format.BF16: 0, Format.W4_G32: 1, Format.I8_G32: 1, Format.I8_G64: 2}
"""How each format wants its inputs: `QD_INPUT_*`."""
_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}
CACHE_DTYPES = {"bfloat16": 0, "int8": 1}
"""`QD_KV_*`."""


@dataclass(frozen=True, slots=True)
class CpuCache:
    """The memory of the KV cache."""

    layers: Sequence[Tensor]
    """One uint8 tensor for each layer, aligned to 64 bytes."""
    dtype: str
    """A key of `CACHE_DTYPES`."""
    block_size: int
    num_blocks: int
    num_window_blocks: int


class ModelWriter:
    """Makes the structure, and keeps what it points to.

    Args:
        config: Sizes and constants.
        parts: Layers whose weights are packed.
        embedding: Looked up for each token.
        cache: Where keys and values go.
        max_positions: Longest context.
    """

    def __init__(
        self,
        config: ModelConfig,
        parts: DecoderParts,
        embedding: LinearWeight,
        cache: CpuCache,
        max_positions: int,
    ) -> None:
        self._config = config
        self._parts = parts
        self._embedding = embedding
        self._cache = cache
        self._max_positions = max_positions
        self.kept: list[object] = [parts, embedding, cache]
        """Must live as long as the structure is used."""

    def write(self) -> Model:
        """Return the structure."""
        config, cache, first = self._config, self._cache, self._parts.layers[0]
        attention = _blocks(first).attention
        rotary = self._rotary(is_local=False)
        window_rotary = self._rotary(is_local=True)
        layers = (Layer * config.num_layers)(
            *(self._layer(index, layer) for index, layer in enumerate(self._parts.layers))
        )
        self.kept.append(layers)
        return Model(
            layers=layers,
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rotary_dim=config.rotary_dim or config.head_dim,
            inner_size=config.intermediate_size,
            vocab_size=config.vocab_size,
            activation=_ACTIVATIONS[config.activation],
            window=config.sliding_window or 0,
            attention_scale=attention.scale,
            attention_softcap=attention.softcap or 0.0,
            logits_softcap=config.logits_softcap or 0.0,
            # the scale has the precision of the table, as in transformers
            embedding_scale=torch.tensor(config.embedding_scale, dtype=torch.bfloat16).item(),
            frequencies=self._address(rotary.frequencies),
            window_frequencies=self._address(window_rotary.frequencies),
            rotary_factor=rotary.factor,
            window_rotary_factor=window_rotary.factor,
            embedding=self._linear(self._embedding.content),
            final_norm=self._norm(self._parts.norm),
            head=self._linear(self._parts.head.content),
            cache_dtype=CACHE_DTYPES[cache.dtype],
            block_size=cache.block_size,
            num_blocks=cache.num_blocks,
            num_window_blocks=cache.num_window_blocks,
        )

    def _layer(self, index: int, layer: DecoderLayer) -> Layer:
        blocks = _blocks(layer)
        attention, mlp, norms = blocks.attention, blocks.mlp, blocks.attention.norms
        out_norms = (None, None)
        if isinstance(blocks, SandwichNormLayer):
            out_norms = (blocks.attention_out_norm, blocks.mlp_out_norm)
        return Layer(
            attention_norm=self._norm(blocks.attention_norm),
            qkv=self._biased(attention.qkv),
            query_norm=self._norm(norms.query if norms else None),
            key_norm=self._norm(norms.key if norms else None),
            output=self._biased(attention.output),
            attention_out_norm=self._norm(out_norms[0]),
            mlp_norm=self._norm(blocks.mlp_norm),
            gate_up=self._biased(mlp.gate_up),
            down=self._biased(mlp.down),
            mlp_out_norm=self._norm(out_norms[1]),
            cache=self._address(self._cache.layers[index]),
            is_window=self._config.is_sliding(index),
        )

    def _norm(self, norm: RmsNorm | None) -> Norm:
        if norm is None:
            return Norm(weight=None, epsilon=0.0)
        return Norm(weight=self._address(norm.weight), epsilon=norm.epsilon)

    def _biased(self, layer: LinearLayer) -> Linear:
        weight: PackedWeight = layer.weight.content
        if layer.bias is None:
            return self._linear(weight)
        return self._linear(weight, packed_bias(layer.bias, weight))

    def _linear(self, weight: PackedWeight, biases: Sequence[Tensor] | None = None) -> Linear:
        segments = (Segment * len(weight.segments))()
        for at, segment in enumerate(weight.segments):
            segments[at] = Segment(
                panels=self._address(segment.panels),
                bias=None if biases is None else self._address(biases[at]),
                format=segment.format,
                rows=segment.rows,
                width=segment.width,
                first_column=segment.first_column,
            )
        self.kept.append(segments)
        return Linear(
            segments=segments,
            num_segments=len(segments),
            input=_INPUTS[weight.segments[0].format],
            width=weight.width,
            columns=weight.columns,
        )

    def _rotary(self, *, is_local: bool) -> Rotary:
        device = torch.device("cpu")
        return Rotary(self._config, self._max_positions, device, is_local=is_local)

    def _address(self, tensor: Tensor) -> int:
        assert tensor.is_contiguous(), "the kernels read whole rows"
        assert tensor.dtype in (torch.uint8, torch.float32), "bytes or float32"
        self.kept.append(tensor)
        return tensor.data_ptr()


def _blocks(layer: DecoderLayer) -> PreNormLayer | SandwichNormLayer:
    assert isinstance(layer, PreNormLayer | SandwichNormLayer), "families have these two"
    return layer
