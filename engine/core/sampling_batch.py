"""The sampling parameters of all rows of a step, checked and brought into columns.

Steps that follow each other mostly have the same requests: what was made for one is used by the
next.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.core.kept import Kept
from engine.core.logprobs import MAX_LOGPROBS
from engine.kernels.sampling import Draws
from engine.wire.messages import SamplingParams

GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True)
class RowChoice:
    """How one row's token is chosen; greedy where the parameters have a problem."""

    problem: str | None
    temperature: float = 0.0
    min_p: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    @property
    def is_random(self) -> bool:
        """Whether a random number decides."""
        return self.temperature > 0.0


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """What the rows of a step have in common with the next step's."""

    sampling: list[SamplingParams]
    problems: dict[int, str]
    """Why the parameters of a row cannot be used."""
    scored: list[int]
    """Rows that want logprobs."""
    random: list[int]
    """Rows that need a random number."""
    temperature: Tensor
    min_p: Tensor
    top_k: Tensor
    top_p: Tensor

    def draws(self, uniform: Sequence[float], device: torch.device) -> Draws:
        """Return the parameters with the random number of each row."""
        # `torch.tensor` of a list, or `to` for each column, takes longer than the draw
        numbers = torch.frombuffer(array("d", uniform), dtype=torch.float64)
        columns = (self.temperature, self.min_p, self.top_k, self.top_p, numbers)
        if device.type == "cpu":
            return Draws(*columns)
        return Draws(*(column.to(device) for column in columns))


class SamplingBatches:
    """Makes the batch of a step, or finds that it is the last one's."""

    def __init__(self) -> None:
        self._choices = Kept[RowChoice]()
        self._last: SamplingBatch | None = None

    def of(self, sampling: list[SamplingParams]) -> SamplingBatch:
        """Return the batch of rows with these parameters."""
        if self._last is None or self._last.sampling != sampling:
            self._last = self._made(sampling)
        return self._last

    def _made(self, sampling: list[SamplingParams]) -> SamplingBatch:
        rows = [self._choices.of(one, lambda one=one: _choice(one)) for one in sampling]
        self._choices.end_round()
        return SamplingBatch(
            sampling=sampling,
            problems={at: row.problem for at, row in enumerate(rows) if row.problem},
            scored=[at for at, one in enumerate(sampling) if one.logprobs is not None],
            random=[at for at, row in enumerate(rows) if row.is_random],
            temperature=torch.tensor([row.temperature for row in rows], dtype=torch.float32),
            min_p=torch.tensor([row.min_p for row in rows], dtype=torch.float32),
            top_k=torch.tensor([row.top_k for row in rows], dtype=torch.long),
            top_p=torch.tensor([row.top_p for row in rows], dtype=torch.float64),
        )


def problem_of(sampling: SamplingParams) -> str | None:
    """Return why these parameters cannot be used, or None."""
    if not 0.0 <= sampling.temperature < math.inf:
        return f"temperature is out of range: {sampling.temperature}"
    if not 0.0 < sampling.top_p <= 1.0 or not 0.0 <= sampling.min_p <= 1.0:
        return f"top_p or min_p is out of range: {sampling.top_p}, {sampling.min_p}"
    if sampling.top_k is not None and sampling.top_k < 1:
        return f"top_k is out of range: {sampling.top_k}"
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= MAX_LOGPROBS:
        return f"logprobs is out of range: {sampling.logprobs}"
    return _penalty_problem(sampling)


def _penalty_problem(sampling: SamplingParams) -> str | None:
    if not 0.0 < sampling.repetition_penalty < math.inf:
        return f"repetition_penalty is out of range: {sampling.repetition_penalty}"
    if not math.isfinite(sampling.frequency_penalty + sampling.presence_penalty):
        return "frequency_penalty or presence_penalty is no number"
    return None


def _choice(sampling: SamplingParams) -> RowChoice:
    problem = problem_of(sampling)
    if problem is not None or sampling.temperature < GREEDY_BELOW:
        return RowChoice(problem)
    return RowChoice(
        problem=None,
        temperature=sampling.temperature,
        min_p=sampling.min_p,
        top_k=sampling.top_k or 0,
        top_p=sampling.top_p,
    )
