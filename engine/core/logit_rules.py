"""What a request allows and forbids: allowed tokens, grammar, bad words, banned tokens, logit bias.

Applied in this order, each row by its own rules alone.
"""

import logging
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from engine.core.batch import SampleRow, TokenMask
from engine.core.endings import NOTHING_LEFT
from engine.core.kept import Kept
from engine.kernels.sampling import SamplingKernels
from engine.kernels.torch_sampling import TorchSampling

logger = logging.getLogger(__name__)

BiasTensors = tuple[Tensor, Tensor]

NO_MASK = "the grammar could not say which tokens are allowed"
NO_NUMBER = "the model gave no number"
_LOWEST = float("-inf")
_WORD_BITS = 32
_SIGN = 1 << 31


class LogitRules:
    """Applies the rules of a batch.

    Args:
        kernels: Look at and change the logits; plain torch by default.
    """

    def __init__(self, kernels: SamplingKernels | None = None) -> None:
        self._kernels = kernels or TorchSampling()
        self._allowed = Kept[Tensor]()
        self._biases = Kept[BiasTensors]()

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
            numberless = dict.fromkeys(self._without_number(logits, limited), NO_NUMBER)
            maskless = self._limit(logits, rows)
            empty = dict.fromkeys(self._without_number(logits, limited), NOTHING_LEFT)
            faults = {**empty, **maskless, **numberless}
        if any(row.banned_token_ids for row in rows):
            self._ban(logits, rows, set(limited))
        self._add_bias(logits, rows)
        self._allowed.end_round()
        self._biases.end_round()
        return faults

    def _without_number(self, logits: Tensor, rows: list[int]) -> list[int]:
        """Return the rows whose best logit is no finite number."""
        best, _ = self._kernels.greatest(logits, rows)
        return [at for at, value in zip(rows, best, strict=True) if not math.isfinite(value)]

    def _limit(self, logits: Tensor, rows: Sequence[SampleRow]) -> dict[int, str]:
        """Forbid by allowed tokens, grammar and bad words."""
        vocab_size = logits.shape[1]
        listed = [at for at, row in enumerate(rows) if row.sampling.allowed_token_ids]
        if listed:
            lists = [rows[at].sampling.allowed_token_ids for at in listed]
            words = [
                self._allowed.of(ids, lambda ids=ids: _words_of(ids, vocab_size)) for ids in lists
            ]
            self._kernels.forbid(logits, listed, words)
        faults = self._apply_grammars(logits, rows)
        _forbid(logits, list(_bad_word_pairs(rows)))
        return faults

    def _apply_grammars(self, logits: Tensor, rows: Sequence[SampleRow]) -> dict[int, str]:
        """Mask by every row's grammar; return the rows whose grammar failed."""
        faults: dict[int, str] = {}
        masks: dict[int, Tensor] = {}
        for at, row in enumerate(rows):
            if row.grammar is None:
                continue
            mask = _mask_words(row.grammar)
            if mask is None:
                faults[at] = NO_MASK
            else:
                masks[at] = mask
        if masks:
            self._kernels.forbid(logits, list(masks), list(masks.values()))
        return faults

    def _ban(self, logits: Tensor, rows: Sequence[SampleRow], limited: set[int]) -> None:
        """Forbid banned tokens, but not in limited rows that have nothing else."""
        pairs = [(at, token_id) for at, row in enumerate(rows) for token_id in row.banned_token_ids]
        pairs = [(at, token_id) for at, token_id in pairs if 0 <= token_id < logits.shape[1]]
        saved = [pair for pair in pairs if pair[0] in limited]
        values = logits[tuple(zip(*saved, strict=True))].tolist() if saved else []
        _forbid(logits, pairs)
        stuck = set(self._without_number(logits, sorted({at for at, _ in saved}))) if saved else ()
        for (at, token_id), value in zip(saved, values, strict=True):
            if at in stuck:
                logits[at, token_id] = value

    def _add_bias(self, logits: Tensor, rows: Sequence[SampleRow]) -> None:
        for at, row in enumerate(rows):
            pairs = row.sampling.logit_bias
            if pairs:
                ids, biases = self._biases.of(pairs, lambda pairs=pairs: _bias(pairs, logits))
                logits[at].index_add_(0, ids, biases)


def _is_limited(row: SampleRow) -> bool:
    sampling = row.sampling
    return bool(row.grammar or sampling.allowed_token_ids or sampling.bad_words)


def _words_of(ids: Sequence[int], vocab_size: int) -> Tensor:
    """Return the mask that allows these tokens, see `SamplingKernels.forbid`."""
    num_words = -(-vocab_size // _WORD_BITS)
    bits = torch.zeros(num_words * _WORD_BITS, dtype=torch.int64)
    bits[[token_id for token_id in ids if 0 <= token_id < vocab_size]] = 1
    words = (bits.view(num_words, _WORD_BITS) << torch.arange(_WORD_BITS)).sum(dim=1)
    words[words >= _SIGN] -= 2 * _SIGN
    return words.to(torch.int32)


def _bias(pairs: Sequence[tuple[int, float]], logits: Tensor) -> BiasTensors:
    known = [pair for pair in pairs if 0 <= pair[0] < logits.shape[1]]
    ids = torch.tensor([token_id for token_id, _ in known], dtype=torch.long, device=logits.device)
    biases = [bias for _, bias in known]
    return ids, torch.tensor(biases, dtype=logits.dtype, device=logits.device)


def _mask_words(grammar: TokenMask) -> Tensor | None:
    try:
        return torch.as_tensor(grammar.mask(), dtype=torch.int32).flatten().contiguous()
    except Exception:
        logger.exception("a grammar gave no mask")
        return None


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
