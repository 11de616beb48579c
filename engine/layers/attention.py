"""Self-attention with grouped key-value heads, rotary positions and a paged cache."""

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.backend import HeadShape, KernelBackend, LayerCache, LinearWeight, StepPlan


@dataclass(frozen=True, slots=True)
class SelfAttention:
    """Projects to queries, keys and values in one product, attends, projects back."""

    qkv_weight: LinearWeight
    """`[(heads + 2 * kv_heads) * head_dim, hidden]`."""
    output_weight: LinearWeight
    heads: HeadShape

    def __call__(
        self,
        rows: Tensor,
        rotary: tuple[Tensor, Tensor],
        cache: LayerCache,
        plan: StepPlan,
        kernels: KernelBackend,
    ) -> Tensor:
        """Attend for `[rows, hidden]`; stores the rows' keys and values first."""
        heads = self.heads
        rotated_heads = heads.num_heads + heads.num_kv_heads
        qkv = kernels.linear(rows, self.qkv_weight).unflatten(-1, (-1, heads.head_dim))
        rotated = kernels.rotary(qkv[:, :rotated_heads], *rotary)
        num_tokens = plan.slots.shape[0]
        kernels.write_cache(
            rotated[:num_tokens, heads.num_heads :], qkv[:num_tokens, rotated_heads:], cache, plan
        )
        mixed = kernels.attention(rotated[:, : heads.num_heads], cache, plan)
        return kernels.linear(mixed.to(rows.dtype), self.output_weight)
