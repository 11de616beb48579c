"""Sampling in plain torch, on any device; the oracle of faster kernels.

Every operation treats each row alone and with the same rounding in any company: sums along a row
are made in a fixed order (`torch.sum` changes its order when a batch has one row and several
threads).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.kernels.sampling import Chosen, Draws, PenaltyFactors, Said, SamplingKernels

_CANDIDATES = (256, 4096)
"""Tokens looked at first for top-k and top-p; a full sort of the vocabulary is rarely needed."""
_SUM_BLOCK = 64
_WORD_BITS = 32
_LOWEST = float("-inf")


class TorchSampling(SamplingKernels):
    """See `SamplingKernels`."""

    def greatest(self, logits: Tensor, rows: Sequence[int] | None = None) -> Chosen:
        """Return value and index of each row's maximum."""
        values, ids = _chosen(logits, rows).max(dim=-1)
        return values.tolist(), ids.tolist()

    def draw(self, logits: Tensor, draws: Draws) -> Chosen:
        """Draw by temperature, min-p, top-k and top-p."""
        best_values, ids = logits.max(dim=-1)
        random = (draws.temperature > 0).nonzero().squeeze(1)
        if random.numel():
            ids[random] = _draw(some_rows(logits, random), _columns(draws, random))
        return best_values.tolist(), ids.tolist()

    def log_softmax(self, logits: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        """Return log probabilities."""
        return torch.log_softmax(_chosen(logits, rows), dim=-1)

    def best(self, values: Tensor, num: int) -> tuple[Tensor, Tensor]:
        """Return the largest values of each row."""
        return best(values, num)

    def forbid(self, logits: Tensor, rows: Sequence[int], words: Sequence[Tensor]) -> None:
        """Set what is not allowed to minus infinity."""
        if not rows:
            return
        vocab_size = logits.shape[1]
        num_words = -(-vocab_size // _WORD_BITS)
        together = torch.stack([_fitted(mask, num_words) for mask in words]).to(logits.device)
        forbidden = ~_unpack(together)[:, :vocab_size]
        for index, at in enumerate(rows):
            logits[at].masked_fill_(forbidden[index], _LOWEST)

    def penalise(self, row: Tensor, said: Said, factors: PenaltyFactors) -> None:
        """Apply repetition, frequency and presence penalties."""
        known = said.ids < len(row)
        ids, outputs = said.ids[known].to(row.device), said.outputs[known].to(row.device)
        values = row[ids]
        if factors.repetition != 1.0:
            factor = factors.repetition
            values = torch.where(values > 0, values / factor, values * factor)
        values -= factors.frequency * outputs
        values -= factors.presence * (outputs > 0)
        row[ids] = values


def some_rows(values: Tensor, rows: Tensor) -> Tensor:
    """Return these rows, which are in order: a copy, unless they are all."""
    return values if len(rows) == len(values) else values[rows]


def best(values: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """Return the `num` largest values of each row and their indices, equal ones by index."""
    if num == values.shape[1]:
        return values.sort(dim=-1, descending=True, stable=True)
    found, token_ids = values.topk(num, dim=-1, sorted=False)
    least = found.amin(dim=-1, keepdim=True)
    tied = ((values >= least).sum(dim=-1) > num).nonzero().squeeze(1)
    if tied.numel():
        token_ids[tied] = _first_best(values[tied], least[tied], num)
    token_ids = token_ids.sort(dim=-1).values
    ordered, order = values.gather(1, token_ids).sort(dim=-1, descending=True, stable=True)
    return ordered, token_ids.gather(1, order)


def row_sums(values: Tensor) -> Tensor:
    """Return the sum of each row as float64 `[rows, 1]`: the same bits alone and among others."""
    return _block_sums(values).sum(dim=-1, keepdim=True)


def _first_best(values: Tensor, least: Tensor, num: int) -> Tensor:
    """Return the `num` best indices of rows that have too many of the `least` of them.

    `topk` takes any of these; the first ones are wanted.
    """
    above, equal = values > least, values == least
    room = num - above.sum(dim=-1, keepdim=True)
    kept = above | (equal & (equal.cumsum(dim=-1) <= room))
    return kept.nonzero()[:, 1].view(-1, num)


def _chosen(logits: Tensor, rows: Sequence[int] | None) -> Tensor:
    return logits if rows is None else logits[list(rows)]


def _fitted(mask: Tensor, num_words: int) -> Tensor:
    """Return `num_words` words of a mask: tokens beyond it are not allowed."""
    return torch.nn.functional.pad(mask[:num_words], (0, num_words - len(mask[:num_words])))


def _unpack(words: Tensor) -> Tensor:
    """Return the bits of `[rows, words]` int32, lowest first, as booleans `[rows, 32 * words]`."""
    shifts = torch.arange(_WORD_BITS, dtype=torch.int32, device=words.device)
    return ((words.unsqueeze(-1) >> shifts) & 1).bool().flatten(1)


def _columns(draws: Draws, rows: Tensor) -> Draws:
    """Return some rows' parameters as columns `[rows, 1]`."""
    return Draws(
        draws.temperature[rows].unsqueeze(1),
        draws.min_p[rows].unsqueeze(1),
        draws.top_k[rows].unsqueeze(1),
        draws.top_p[rows].unsqueeze(1),
        draws.uniform[rows].unsqueeze(1),
    )


def _of(columns: Draws, rows: Tensor) -> Draws:
    """Return some rows of columns."""
    return Draws(
        columns.temperature[rows],
        columns.min_p[rows],
        columns.top_k[rows],
        columns.top_p[rows],
        columns.uniform[rows],
    )


def _draw(logits: Tensor, draws: Draws) -> Tensor:
    """Return one token id for each row of `logits`, which are overwritten; `draws` are columns."""
    weights = logits.sub_(logits.amax(dim=-1, keepdim=True))
    weights.div_(draws.temperature).exp_()  # the best token weighs 1
    if draws.min_p.any():
        weights.masked_fill_(weights < draws.min_p, 0.0)
    narrow = ((draws.top_k > 0) | (draws.top_p < 1.0)).squeeze(1)
    ids = torch.empty(logits.shape[0], dtype=torch.long, device=logits.device)
    wide_rows, narrow_rows = (~narrow).nonzero().squeeze(1), narrow.nonzero().squeeze(1)
    if wide_rows.numel():
        ids[wide_rows] = _draw_wide(some_rows(weights, wide_rows), draws.uniform[wide_rows])
    if narrow_rows.numel():
        ids[narrow_rows] = _draw_narrow(some_rows(weights, narrow_rows), _of(draws, narrow_rows))
    return ids


def _block_sums(values: Tensor) -> Tensor:
    """Return the sums of blocks of `_SUM_BLOCK` neighbours, the last one shorter, as float64."""
    whole = values.shape[1] // _SUM_BLOCK * _SUM_BLOCK
    blocks = [values[:, :whole].unflatten(1, (-1, _SUM_BLOCK)).sum(dim=-1)] if whole else []
    if whole < values.shape[1]:
        blocks.append(values[:, whole:].sum(dim=-1, keepdim=True))
    return torch.cat(blocks, dim=1).double()


def _draw_wide(weights: Tensor, uniform: Tensor) -> Tensor:
    """Draw among all tokens: first a block of neighbours, then one of them."""
    sums = _block_sums(weights)
    blocks, share = _pick(sums, uniform)
    places = blocks.unsqueeze(1) * _SUM_BLOCK + torch.arange(_SUM_BLOCK, device=weights.device)
    inside = places < weights.shape[1]
    few = weights.gather(1, places.clamp(max=weights.shape[1] - 1)).double()
    picked, _ = _pick(few.masked_fill_(~inside, 0.0), share)
    return places.gather(1, picked.unsqueeze(1)).squeeze(1)


def _draw_narrow(weights: Tensor, draws: Draws) -> Tensor:
    """Draw under top-k and top-p, from as few of the best candidates as are enough."""
    vocab_size = weights.shape[1]
    ids = torch.zeros(weights.shape[0], dtype=torch.long, device=weights.device)
    rows = torch.arange(weights.shape[0], device=weights.device)
    for num in (*(n for n in _CANDIDATES if n < vocab_size), vocab_size):
        picked, enough = _draw_among(some_rows(weights, rows), _of(draws, rows), num)
        ids[rows] = picked
        rows = rows[~enough]
        if not rows.numel():
            break
    return ids


def _draw_among(weights: Tensor, draws: Draws, num: int) -> tuple[Tensor, Tensor]:
    """Draw among the `num` best tokens; also return for which rows that was enough."""
    values, token_ids = best(weights, num)
    sorted_weights = values.double()
    ranks = torch.arange(num, device=weights.device)
    has_top_k = draws.top_k > 0
    sorted_weights.masked_fill_(has_top_k & (ranks >= draws.top_k), 0.0)
    sums = _running_sums(sorted_weights)
    mass = torch.where(has_top_k & (draws.top_k <= num), sums[:, -1:], row_sums(weights))
    wanted = draws.top_p * mass
    sorted_weights.masked_fill_((sums - sorted_weights) >= wanted, 0.0)
    places, _ = _pick(sorted_weights, draws.uniform)
    picked = token_ids.gather(1, places.unsqueeze(1)).squeeze(1)
    complete = (values[:, -1:] == 0.0) | (sums[:, -1:] >= wanted)
    enough = (has_top_k & (draws.top_k <= num)) | (~has_top_k & complete)
    return picked, enough.squeeze(1) | (num == weights.shape[1])


def _pick(weights: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Return the index where the running sum passes the share `at` of the total, never of nothing.

    Also return how far inside of that index the share lies, as a share of its weight.
    """
    sums = _running_sums(weights)
    total = sums[:, -1:].contiguous()
    wanted = at * total
    last = torch.searchsorted(sums, total)  # where rounding makes `wanted` the total itself
    found = torch.minimum(torch.searchsorted(sums, wanted, right=True), last)
    found.clamp_(max=weights.shape[1] - 1)
    weight = weights.gather(1, found)
    before = sums.gather(1, found) - weight
    return found.squeeze(1), ((wanted - before) / weight).clamp_(0.0, 1.0)


def _running_sums(values: Tensor) -> Tensor:
    """Return the cumulative sums of each row, rounded alike alone and among others."""
    if values.is_cuda and len(values) == 1:  # CUDA adds up a lone row in another order
        return values.expand(2, -1).contiguous().cumsum(dim=-1)[:1]
    return values.cumsum(dim=-1)
