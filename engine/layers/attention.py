"""Self-attention with grouped key-value heads, rotary positions and a paged cache."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.backend import HeadShape, KernelBackend, LayerCache
from engine.layers.linear import Linear
from engine.layers.norm import RmsNorm
from engine.layers.step import LayerStep


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Norms of each query and key head before rotation, over `head_dim`."""

    query: RmsNorm
    key: RmsNorm


@dataclass(frozen=True, slots=True)
class SelfAttention:
    """Projects to queries, keys and values in one product, attends, projects back."""

    qkv: Linear
    """To `(heads + 2 * kv_heads) * head_dim`."""
    output: Linear
    heads: HeadShape
    scale: float
    """Factor of the scores."""
    norms: HeadNorms | None = None
    softcap: float | None = None
    """Scores become `softcap * tanh(score / softcap)`."""

    def __call__(self, rows: Tensor, cache: LayerCache, step: LayerStep) -> Tensor:
        """Attend for `[rows, hidden]`; stores the rows' keys and values first."""
        kernels, plan, num_heads = step.kernels, step.plan, self.heads.num_heads
        num_rotated = num_heads + self.heads.num_kv_heads
        qkv = self.qkv(rows, kernels, step.adapters)
        qkv = qkv.view(qkv.shape[0], -1, self.heads.head_dim)
        queries_and_keys = qkv[:, :num_rotated]
        if self.norms is not None:
            queries_and_keys = self._normalise(queries_and_keys, self.norms, kernels)
        rotated = kernels.rotary(queries_and_keys, *step.rotary)
        tokens = plan.slots.shape[0]
        kernels.write_cache(rotated[:tokens, num_heads:], qkv[:tokens, num_rotated:], cache, plan)
        mixed = kernels.attention(rotated[:, :num_heads], cache, plan, self.scale, self.softcap)
        return self.output(mixed.to(rows.dtype), kernels, step.adapters)

    def _normalise(self, heads: Tensor, norms: HeadNorms, kernels: KernelBackend) -> Tensor:
        queries, keys = heads[:, : self.heads.num_heads], heads[:, self.heads.num_heads :]
        return torch.cat((norms.query(queries, kernels), norms.key(keys, kernels)), dim=1)
