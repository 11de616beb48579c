"""What a request allows and forbids: allowed tokens, grammar, bad words, banned tokens, logit bias.

Applied in this order, each row by its own rules alone.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from engine.core.batch import SampleRow, TokenMask
from engine.core.endings import NOTHING_LEFT

logger = logging.getLogger(__name__)

T = TypeVar("T")
BiasTensors = tuple[Tensor, Tensor]

NO_MASK = "the grammar could not say which tokens are allowed"
NO_NUMBER = "the model gave no number"
_KEPT_LISTS = 256
_LOWEST = float("-inf")
_WORD_BITS = 32


class LogitRules:
    """Applies the rules of a batch."""

    def __init__(self) -> None:
        self._allowed = _Kept[Tensor]()
        self._biases = _Kept[BiasTensors]()

    def apply(self, logits: Tensor, rows: Sequence[SampleRow]) -> dict[int, str]:
        """Set what is forbidden to minus infinity and add biases, in place.

        Banned tokens come free again where the other rules leave nothing else: a complete grammar
        must be able to end although `min_tokens` is not reached.

        Args:
            logits: `[rows, vocab]` float32.
            rows: One for each row.

        Returns:
            Why a row can have no token, by its index.
        """
        limited = [at for at, row in enumerate(rows) if _is_limited(row)]
        faults: dict[int, str] = {}
        if limited:
            numberless = dict.fromkeys(_without_number(logits, limited), NO_NUMBER)
            maskless = self._limit(logits, rows)
            empty = dict.fromkeys(_without_number(logits, limited), NOTHING_LEFT)
            faults = {**empty, **maskless, **numberless}
        _ban(logits, rows, limited)
        self._add_bias(logits, rows)
        return faults

    def _limit(self, logits: Tensor, rows: Sequence[SampleRow]) -> dict[int, str]:
        """Forbid by allowed tokens, grammar and bad words."""
        for at, row in enumerate(rows):
            ids = row.sampling.allowed_token_ids
            if ids:
                _keep_only(logits[at], self._allowed.of(ids, lambda ids=ids: _known(ids, logits)))
        faults = _apply_grammars(logits, rows)
        _forbid(logits, list(_bad_word_pairs(rows)))
        return faults

    def _add_bias(self, logits: Tensor, rows: Sequence[SampleRow]) -> None:
        for at, row in enumerate(rows):
            pairs = row.sampling.logit_bias
            if pairs:
                ids, biases = self._biases.of(pairs, lambda pairs=pairs: _bias(pairs, logits))
                logits[at].index_add_(0, ids, biases)


class _Kept(Generic[T]):
    """What was made of the long tuples in `SamplingParams`, which stay the same over all steps.

    Kept by identity, together with the tuple itself: it is immutable, and while it is held no other
    object has its identity.
    """

    def __init__(self) -> None:
        self._made: OrderedDict[int, tuple[object, T]] = OrderedDict()

    def of(self, source: tuple[object, ...], make: Callable[[], T]) -> T:
        """Return what is kept of `source`, or make it."""
        known = self._made.pop(id(source), None) or (source, make())
        self._made[id(source)] = known
        if len(self._made) > _KEPT_LISTS:
            self._made.popitem(last=False)
        return known[1]


def _is_limited(row: SampleRow) -> bool:
    sampling = row.sampling
    return bool(row.grammar or sampling.allowed_token_ids or sampling.bad_words)


def _without_number(logits: Tensor, rows: list[int]) -> list[int]:
    """Return the rows whose best logit is no finite number."""
    finite: list[bool] = logits[rows].amax(dim=-1).isfinite().tolist()
    return [at for at, is_finite in zip(rows, finite, strict=True) if not is_finite]


def _known(ids: Sequence[int], logits: Tensor) -> Tensor:
    """Return the ids that have a logit."""
    known = [token_id for token_id in ids if 0 <= token_id < logits.shape[1]]
    return torch.tensor(known, dtype=torch.long, device=logits.device)


def _bias(pairs: Sequence[tuple[int, float]], logits: Tensor) -> BiasTensors:
    known = [pair for pair in pairs if 0 <= pair[0] < logits.shape[1]]
    ids = torch.tensor([token_id for token_id, _ in known], dtype=torch.long, device=logits.device)
    biases = [bias for _, bias in known]
    return ids, torch.tensor(biases, dtype=logits.dtype, device=logits.device)


def _keep_only(logits: Tensor, ids: Tensor) -> None:
    kept = logits[ids]
    logits.fill_(_LOWEST)
    logits[ids] = kept


def _apply_grammars(logits: Tensor, rows: Sequence[SampleRow]) -> dict[int, str]:
    """Mask by every row's grammar; return the rows whose grammar failed."""
    faults: dict[int, str] = {}
    asked: list[int] = []
    words: list[Tensor] = []
    num_words = -(-logits.shape[1] // _WORD_BITS)
    for at, row in enumerate(rows):
        if row.grammar is None:
            continue
        mask = _mask_words(row.grammar, num_words)
        if mask is None:
            faults[at] = NO_MASK
        else:
            asked.append(at)
            words.append(mask)
    if asked:
        forbidden = ~_unpack(torch.stack(words).to(logits.device))[:, : logits.shape[1]]
        for index, at in enumerate(asked):
            logits[at].masked_fill_(forbidden[index], _LOWEST)
    return faults


def _mask_words(grammar: TokenMask, num_words: int) -> Tensor | None:
    """Return `num_words` words of a grammar's mask: tokens beyond it are not allowed."""
    try:
        mask = torch.as_tensor(grammar.mask(), dtype=torch.int32).flatten()
    except Exception:
        logger.exception("a grammar gave no mask")
        return None
    return torch.nn.functional.pad(mask[:num_words], (0, num_words - len(mask[:num_words])))


def _unpack(words: Tensor) -> Tensor:
    """Return the bits of `[rows, words]` int32, lowest first, as booleans `[rows, 32 * words]`."""
    shifts = torch.arange(_WORD_BITS, dtype=torch.int32, device=words.device)
    return ((words.unsqueeze(-1) >> shifts) & 1).bool().flatten(1)


def _bad_word_pairs(rows: Sequence[SampleRow]) -> Iterator[tuple[int, int]]:
    """Yield the token that would complete a bad word in the output, with its row."""
    for at, row in enumerate(rows):
        num_output = len(row.history) - row.num_prompt_tokens
        for word in row.sampling.bad_words:
            begun = word[:-1]
            if len(begun) <= num_output and _ends_with(row.history, begun):
                yield at, word[-1]


def _ends_with(history: Sequence[int], tail: tuple[int, ...]) -> bool:
    return not tail or (history[-1] == tail[-1] and tuple(history[-len(tail) :]) == tail)


def _forbid(logits: Tensor, pairs: list[tuple[int, int]]) -> None:
    known = [(at, token_id) for at, token_id in pairs if 0 <= token_id < logits.shape[1]]
    if known:
        rows, ids = zip(*known, strict=True)
        logits[list(rows), list(ids)] = _LOWEST


def _ban(logits: Tensor, rows: Sequence[SampleRow], limited: list[int]) -> None:
    """Forbid banned tokens, but not in limited rows that have nothing else."""
    if not any(row.banned_token_ids for row in rows):
        return
    pairs = [(at, token_id) for at, row in enumerate(rows) for token_id in row.banned_token_ids]
    known = [(at, token_id) for at, token_id in pairs if 0 <= token_id < logits.shape[1]]
    saved = [
        (at, token_id, logits[at, token_id].clone()) for at, token_id in known if at in limited
    ]
    _forbid(logits, known)
    stuck = set(_without_number(logits, [at for at in limited if rows[at].banned_token_ids]))
    for at, token_id, value in saved:
        if at in stuck:
            logits[at, token_id] = value
