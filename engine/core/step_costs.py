"""What a step costs by the shape of the model: operations, and bytes that it must read.

Estimates for utilisation against the machine's measured ceilings: two operations per weight and
row, four per head value and (query, key) pair, every weight read once a step, keys and values once
per request. What an implementation does beyond that is its own inefficiency.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.checkpoint.model_config import ModelConfig
from engine.core.batch import ScheduledRequest


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """Constants of one model."""

    row_flops: float
    """Of the linear layers, for each computed token."""
    head_flops: float
    """Of the output projection, for each row of logits."""
    pair_flops: float
    """Of full attention, for each query and key that meet, over all layers."""
    window_pair_flops: float
    weights_bytes: int
    token_bytes: int
    """Keys and values of a token in the full-attention layers."""
    window_token_bytes: int
    window: int = 0
    """Tokens that a sliding-window layer sees; 0: there are none."""


def costs_of(
    config: ModelConfig, parameters: int, weights_bytes: int, token_bytes: int
) -> ModelCosts:
    """Derive the constants.

    Args:
        config: Of the model.
        parameters: Weights of its linear layers, without embedding and head.
        weights_bytes: Bytes of the weights that every step reads.
        token_bytes: Of a token's keys and values in one layer.
    """
    sliding = sum(config.is_sliding(layer) for layer in range(config.num_layers))
    full = config.num_layers - sliding
    pair = 4.0 * config.num_heads * config.head_dim
    return ModelCosts(
        row_flops=2.0 * parameters,
        head_flops=2.0 * config.vocab_size * config.hidden_size,
        pair_flops=pair * full,
        window_pair_flops=pair * sliding,
        weights_bytes=weights_bytes,
        token_bytes=token_bytes * full,
        window_token_bytes=token_bytes * sliding,
        window=config.sliding_window or 0 if sliding else 0,
    )


def step_costs(costs: ModelCosts, batch: Sequence[ScheduledRequest]) -> tuple[float, float]:
    """Return the operations of a step and the bytes that it must read."""
    rows = pairs = window_pairs = samples = context = window_context = 0
    for share in batch:
        count, start = len(share.token_ids), share.start_position
        end = start + count
        rows += count
        samples += share.samples
        context += end
        pairs += count * (start + end + 1) // 2
        if costs.window:
            seen = min(end, costs.window)
            window_context += seen
            window_pairs += count * seen
    flops = (
        rows * costs.row_flops
        + samples * costs.head_flops
        + pairs * costs.pair_flops
        + window_pairs * costs.window_pair_flops
    )
    num_bytes = (
        costs.weights_bytes
        + context * costs.token_bytes
        + window_context * costs.window_token_bytes
    )
    return flops, float(num_bytes)
