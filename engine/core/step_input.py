"""Packs scheduled requests into one batch, and finds the requests that cannot be computed."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.core.batch import ScheduledRequest
from engine.kernels.backend import KernelBackend, Span
from engine.models.llama import ModelInput


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a request's values must stay below."""

    vocab_size: int
    max_model_len: int
    num_blocks: int
    block_size: int


def problem_of(request: ScheduledRequest, bounds: Bounds) -> str | None:
    """Return why the request cannot be computed, or None."""
    count, blocks = len(request.token_ids), len(request.block_table)
    end = request.start_position + count
    checks = (
        (count == 0 or request.start_position < 0, "there are no tokens to compute"),
        (end > bounds.max_model_len, f"{end} tokens do not fit into {bounds.max_model_len}"),
        (
            _outside(request.token_ids, bounds.vocab_size),
            f"a token id is outside the vocabulary of {bounds.vocab_size}",
        ),
        (blocks * bounds.block_size < end, f"{blocks} blocks do not hold {end} tokens"),
        (
            _outside(request.block_table, bounds.num_blocks),
            f"a block is outside the cache of {bounds.num_blocks}",
        ),
    )
    return next((problem for failed, problem in checks if failed), None)


def _outside(values: Sequence[int], limit: int) -> bool:
    return bool(values) and (min(values) < 0 or max(values) >= limit)


def pack(
    batch: Sequence[ScheduledRequest],
    kernels: KernelBackend,
    block_size: int,
    device: torch.device,
) -> ModelInput:
    """Lay the requests' tokens out one after the other."""
    token_ids: list[int] = []
    positions: list[int] = []
    spans: list[Span] = []
    sampled: list[int] = []
    for request in batch:
        count = len(request.token_ids)
        spans.append(Span(len(token_ids), count, request.start_position, request.block_table))
        token_ids.extend(request.token_ids)
        positions.extend(range(request.start_position, request.start_position + count))
        if request.samples:
            sampled.append(len(token_ids) - 1)
    plan = kernels.plan(spans, block_size)
    padding = [0] * (kernels.padded_rows(len(token_ids)) - len(token_ids))
    return ModelInput(
        token_ids=torch.tensor(token_ids + padding, device=device),
        positions=torch.tensor(positions + padding, device=device),
        plan=plan,
        sampled_rows=torch.tensor(sampled, dtype=torch.long, device=device),
    )
