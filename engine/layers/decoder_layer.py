"""The two ways in which families arrange norms around attention and feed-forward block."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.kernels.backend import LayerCache
from engine.layers.attention import SelfAttention
from engine.layers.mlp import GatedMlp
from engine.layers.norm import RmsNorm
from engine.layers.step import LayerStep


class DecoderLayer(Protocol):
    """One layer of a decoder."""

    def __call__(self, hidden: Tensor, cache: LayerCache, step: LayerStep) -> None:
        """Add the layer's part to the residual stream `[rows, hidden]`, float32."""
        ...


@dataclass(frozen=True, slots=True)
class PreNormLayer:
    """Normalises what goes into each block."""

    attention_norm: RmsNorm
    attention: SelfAttention
    mlp_norm: RmsNorm
    mlp: GatedMlp

    def __call__(self, hidden: Tensor, cache: LayerCache, step: LayerStep) -> None:
        """Add attention, then the feed-forward block."""
        rows = self.attention_norm(hidden, step.kernels)
        hidden += self.attention(rows, cache, step)
        hidden += self.mlp(self.mlp_norm(hidden, step.kernels), step)


@dataclass(frozen=True, slots=True)
class SandwichNormLayer:
    """Normalises what goes into each block and what comes out of it."""

    attention_norm: RmsNorm
    attention: SelfAttention
    attention_out_norm: RmsNorm
    mlp_norm: RmsNorm
    mlp: GatedMlp
    mlp_out_norm: RmsNorm

    def __call__(self, hidden: Tensor, cache: LayerCache, step: LayerStep) -> None:
        """Add attention, then the feed-forward block."""
        kernels = step.kernels
        mixed = self.attention(self.attention_norm(hidden, kernels), cache, step)
        hidden += self.attention_out_norm(mixed, kernels)
        inner = self.mlp(self.mlp_norm(hidden, kernels), step)
        hidden += self.mlp_out_norm(inner, kernels)
