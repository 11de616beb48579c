"""Repetition, frequency and presence penalties over what a request has said so far.

A penalty is a function of the request's history alone. What is kept between steps only saves the
counting: it is compared with the whole history before each use, and rolled back where they differ
(after a wrong draft, or when an id comes back with another text).
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.core.batch import SampleRow
from engine.kernels.sampling import PenaltyFactors, Said, SamplingKernels
from engine.kernels.torch_sampling import TorchSampling
from engine.wire.messages import SamplingParams

MAX_KEPT_TOKENS = 1 << 20
"""Histories kept between steps, all together; beyond that the least recent are counted anew."""
MAX_IDLE_STEPS = 256
"""A history that no step asked for since is forgotten."""


def has_penalty(sampling: SamplingParams) -> bool:
    """Whether any of the three penalties is on."""
    return (
        sampling.repetition_penalty != 1.0
        or sampling.frequency_penalty != 0.0
        or sampling.presence_penalty != 0.0
    )


class TokenCounts:
    """The distinct tokens of one history, and how often each is in its output part."""

    def __init__(self, num_prompt_tokens: int) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self.tokens: list[int] = []
        self._slots: dict[int, int] = {}
        self._ids = array("q")
        self._outputs = array("q")

    def follow(self, history: Sequence[int]) -> None:
        """Count exactly `history`, starting from what was counted before."""
        shared = _common_prefix(self.tokens, history)
        while len(self.tokens) > shared:
            self._pop()
        for token_id in history[shared:]:
            self._push(token_id)

    def said(self) -> Said:
        """Return the distinct tokens and their counts; to be dropped before the next `follow`."""
        return Said(
            ids=torch.frombuffer(self._ids, dtype=torch.int64),
            outputs=torch.frombuffer(self._outputs, dtype=torch.int64),
        )

    def _push(self, token_id: int) -> None:
        slot = self._slots.setdefault(token_id, len(self._ids))
        if slot == len(self._ids):
            self._ids.append(token_id)
            self._outputs.append(0)
        self._outputs[slot] += len(self.tokens) >= self.num_prompt_tokens
        self.tokens.append(token_id)

    def _pop(self) -> None:
        """Undo the last `_push`. A token's slot stays while the token is left in the history."""
        token_id = self.tokens.pop()
        slot = self._slots[token_id]
        self._outputs[slot] -= len(self.tokens) >= self.num_prompt_tokens
        if slot == len(self._ids) - 1 and token_id not in self.tokens:
            del self._slots[token_id]
            self._ids.pop()
            self._outputs.pop()


class Penalties:
    """Applies the penalties of a batch.

    Args:
        kernels: Change the logits; plain torch by default.
    """

    def __init__(self, kernels: SamplingKernels | None = None) -> None:
        self._kernels = kernels or TorchSampling()
        self._kept: OrderedDict[str, tuple[int, TokenCounts]] = OrderedDict()
        """By request, the least recent first, with the step that used it last."""
        self._step = 0
        self.num_kept_tokens = 0
        """Of all histories that are kept."""

    def apply(self, logits: Tensor, rows: Sequence[SampleRow]) -> None:
        """Change the logits `[rows, vocab]` of rows with penalties, in place."""
        self._step += 1
        for at, row in enumerate(rows):
            if has_penalty(row.sampling) and row.history:
                counts = self._counts(row)
                self._kernels.penalise(logits[at], counts.said(), _factors(row.sampling))
        self._forget_idle()

    def _counts(self, row: SampleRow) -> TokenCounts:
        """Return the counts of the row's history."""
        _, counts = self._kept.pop(row.request_id, (0, None))
        self.num_kept_tokens -= len(counts.tokens) if counts else 0
        if counts is None or counts.num_prompt_tokens != row.num_prompt_tokens:
            counts = TokenCounts(row.num_prompt_tokens)
        counts.follow(row.history)
        self._kept[row.request_id] = (self._step, counts)
        self.num_kept_tokens += len(counts.tokens)
        return counts

    def _forget_idle(self) -> None:
        while self._kept:
            oldest, (step, counts) = next(iter(self._kept.items()))
            is_idle = step < self._step - MAX_IDLE_STEPS
            if not is_idle and self.num_kept_tokens <= MAX_KEPT_TOKENS:
                return
            del self._kept[oldest]
            self.num_kept_tokens -= len(counts.tokens)


def _factors(sampling: SamplingParams) -> PenaltyFactors:
    return PenaltyFactors(
        repetition=sampling.repetition_penalty,
        frequency=sampling.frequency_penalty,
        presence=sampling.presence_penalty,
    )


def _common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many leading tokens are the same."""
    length = min(len(first), len(second))
    begin = first if len(first) == length else first[:length]  # copied only if it must be
    if begin == second[:length]:  # the usual case, at the speed of a memory compare
        return length
    pairs = zip(first, second, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), length)
