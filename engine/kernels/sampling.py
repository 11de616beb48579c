"""What sampling computes over whole rows of logits; everything else about it is plain Python."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Draws:
    """Sampling parameters, one value for each row."""

    temperature: Tensor
    """`[rows]` float32; 0: the first of the best tokens."""
    min_p: Tensor
    """`[rows]` float32."""
    top_k: Tensor
    """`[rows]` int64; 0: off."""
    top_p: Tensor
    """`[rows]` float64; 1: off."""
    uniform: Tensor
    """`[rows]` float64, in [0, 1)."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a text has said so far."""

    ids: Tensor
    """`[n]` int64, distinct tokens."""
    outputs: Tensor
    """`[n]` int64, how often each is in the output."""


@dataclass(frozen=True, slots=True)
class PenaltyFactors:
    """See `SamplingParams`."""

    repetition: float
    frequency: float
    presence: float


Chosen = tuple[list[float], list[int]]
"""Of each row the best value, and a token: plain numbers, whatever device they come from."""


class SamplingKernels(ABC):
    """Operations on `[rows, vocab]` float32 logits; each row alone, the same bits in any company.

    A row in which one value is no number gives no number as its best value, and any token.
    """

    @abstractmethod
    def greatest(self, logits: Tensor, rows: Sequence[int] | None = None) -> Chosen:
        """Return the best value and its first index of each row, or of these rows."""

    @abstractmethod
    def draw(self, logits: Tensor, draws: Draws) -> Chosen:
        """Return as `greatest`, but of random rows an index that was drawn.

        Weights are `exp((logit - best) / temperature)`. What weighs less than `min_p` is out, then
        all but the `top_k` heaviest tokens, then those before which the heavier ones have `top_p`
        of what is left; of equals, the first are kept. The rest is drawn by weight. The logits are
        overwritten.
        """

    @abstractmethod
    def log_softmax(self, logits: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        """Return log probabilities of the rows, or of these rows, in memory of their own."""

    @abstractmethod
    def best(self, values: Tensor, num: int) -> tuple[Tensor, Tensor]:
        """Return the `num` largest values of each row and their indices, equal ones by index."""

    @abstractmethod
    def forbid(self, logits: Tensor, rows: Sequence[int], words: Sequence[Tensor]) -> None:
        """Set what is not allowed to minus infinity.

        Args:
            logits: Changed in place.
            rows: Which ones.
            words: `[any]` int32 for each of them: bit `i % 32` of word `i // 32` says whether
                token `i` may come; tokens beyond the words may not.
        """

    @abstractmethod
    def penalise(self, row: Tensor, said: Said, factors: PenaltyFactors) -> None:
        """Apply all three penalties to the `[vocab]` logits of one row, in this order, in place.

        Tokens beyond the row are passed over.

        Source:
            Repetition: Keskar et al. 2019, CTRL, section 4.1, https://arxiv.org/abs/1909.05858,
            with negative logits multiplied. Frequency and presence: the OpenAI API reference.
        """
