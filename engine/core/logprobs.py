"""Log probabilities of the unfiltered model, for sampled and for prompt tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.kernels.sampling import SamplingKernels
from engine.kernels.torch_sampling import TorchSampling
from engine.wire.messages import TokenLogprob, TokenLogprobs

MAX_LOGPROBS = 32
"""Most entries of `TokenLogprobs.top`: a fixed number, so that ties at the end of the list do not
depend on what other requests asked for."""
_PROMPT_ROWS = 64
"""Prompt positions at a time: float32 rows of a large vocabulary are a megabyte each."""


def token_logprobs(
    raw: Tensor, chosen: Sequence[int], counts: Sequence[int], kernels: SamplingKernels
) -> list[TokenLogprobs]:
    """Return what is to be said of each row.

    The chosen token's number and the list are read from the same tensor: bit-equal where the token
    is in the list. Equal candidates are listed by token id.

    Args:
        raw: `[rows, vocab]` log probabilities.
        chosen: The token of each row.
        counts: Candidates wanted for each row, at most `MAX_LOGPROBS`.
        kernels: Find them.
    """
    own = raw.gather(1, torch.tensor(chosen, device=raw.device).unsqueeze(1)).squeeze(1)
    values, token_ids = kernels.best(raw, min(MAX_LOGPROBS, raw.shape[1]))
    rows = zip(chosen, own.tolist(), counts, values.tolist(), token_ids.tolist(), strict=True)
    return [
        TokenLogprobs(token_id=token_id, logprob=logprob, top=_top(ids, numbers, count))
        for token_id, logprob, count, numbers, ids in rows
    ]


def prompt_logprobs(
    logits: Tensor, targets: Sequence[int], k: int, kernels: SamplingKernels | None = None
) -> tuple[TokenLogprobs, ...]:
    """Return the log probability of each prompt token that follows a row.

    Args:
        logits: `[rows, vocab]` float32, as the model gave them; not changed.
        targets: The prompt token after each row.
        k: Candidates wanted for each, at most `MAX_LOGPROBS`.
        kernels: Compute over the rows; plain torch by default.
    """
    kernels = kernels or TorchSampling()
    entries: list[TokenLogprobs] = []
    for start in range(0, len(targets), _PROMPT_ROWS):
        some = targets[start : start + _PROMPT_ROWS]
        raw = kernels.log_softmax(logits[start : start + len(some)])
        entries += token_logprobs(raw, some, [k] * len(some), kernels)
    return tuple(entries)


def _top(ids: list[int], numbers: list[float], count: int) -> tuple[TokenLogprob, ...]:
    pairs = zip(ids[:count], numbers[:count], strict=True)
    return tuple(TokenLogprob(token_id=token_id, logprob=logprob) for token_id, logprob in pairs)
