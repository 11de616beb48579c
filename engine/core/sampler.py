"""Chooses the next token of every request in a batch.

Stateless: the random number of a token is a function of the request's seed and the token's
position, so neither preemption nor the company in the batch changes a text. Order: raw logprobs,
banned tokens, greedy, temperature, min-p, top-k, top-p, draw.
"""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.core.batch import ScheduledRequest, StepResult
from engine.wire.messages import SamplingParams, TokenLogprob, TokenLogprobs

GREEDY_BELOW = 1e-5
MAX_LOGPROBS = 32
"""Most entries of `TokenLogprobs.top`: a fixed number, so that ties at the end of the list do not
depend on what other requests asked for."""
_CANDIDATES = (256, 4096)
"""Tokens looked at first for top-k and top-p; a full sort of the vocabulary is rarely needed."""
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class _Draws:
    """Sampling parameters of the random rows, one value each."""

    temperature: Tensor
    min_p: Tensor
    top_k: Tensor
    top_p: Tensor
    uniform: Tensor

    def of(self, rows: Tensor) -> "_Draws":
        return _Draws(
            self.temperature[rows],
            self.min_p[rows],
            self.top_k[rows],
            self.top_p[rows],
            self.uniform[rows],
        )


class Sampler:
    """Samples whole batches.

    Args:
        secret: Makes the seeds of requests that bring none; random by default.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret or secrets.token_bytes(16)

    def sample(self, logits: Tensor, requests: Sequence[ScheduledRequest]) -> StepResult:
        """Choose a token for each row.

        Args:
            logits: `[requests, vocab]` float32; overwritten.
            requests: One for each row.

        Returns:
            A token or a fault for each request.
        """
        result = StepResult()
        wanted = [row for row, r in enumerate(requests) if r.sampling.logprobs is not None]
        raw = torch.log_softmax(logits[wanted], dim=-1) if wanted else None
        _ban(logits, requests)
        best, best_ids = logits.max(dim=-1)
        self._replace_random(best_ids, logits, requests)
        finite: list[bool] = best.isfinite().tolist()
        chosen: list[int] = best_ids.tolist()
        for row, request in enumerate(requests):
            fault = problem_of(request.sampling) if finite[row] else "the model gave no number"
            if fault:
                result.faults[request.request_id] = fault
            else:
                result.token_ids[request.request_id] = chosen[row]
        if raw is not None:
            _add_logprobs(result, raw, [requests[row] for row in wanted])
        return result

    def _replace_random(
        self, ids: Tensor, logits: Tensor, requests: Sequence[ScheduledRequest]
    ) -> None:
        rows = [row for row, r in enumerate(requests) if _is_random(r.sampling)]
        if not rows:
            return
        draws = self._draws([requests[row] for row in rows], logits.device)
        ids[rows] = _draw(logits[rows], draws)

    def _draws(self, requests: Sequence[ScheduledRequest], device: torch.device) -> _Draws:
        def column(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device).unsqueeze(1)

        sampling = [request.sampling for request in requests]
        return _Draws(
            temperature=column([s.temperature for s in sampling]),
            min_p=column([s.min_p for s in sampling]),
            top_k=column([s.top_k or 0 for s in sampling], torch.long),
            top_p=column([s.top_p for s in sampling], torch.float64),
            uniform=column([self._uniform(request) for request in requests], torch.float64),
        )

    def _uniform(self, request: ScheduledRequest) -> float:
        seed = request.sampling.seed
        if seed is None:
            digest = hashlib.blake2b(
                request.request_id.encode(), key=self._secret, digest_size=8
            ).digest()
            seed = int.from_bytes(digest, "little")
        return uniform(seed, request.num_output_tokens)


def problem_of(sampling: SamplingParams) -> str | None:
    """Return why these parameters cannot be used, or None."""
    if not 0.0 <= sampling.temperature < float("inf"):
        return f"temperature is out of range: {sampling.temperature}"
    if not 0.0 < sampling.top_p <= 1.0 or not 0.0 <= sampling.min_p <= 1.0:
        return f"top_p or min_p is out of range: {sampling.top_p}, {sampling.min_p}"
    if sampling.top_k is not None and sampling.top_k < 1:
        return f"top_k is out of range: {sampling.top_k}"
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= MAX_LOGPROBS:
        return f"logprobs is out of range: {sampling.logprobs}"
    return None


def uniform(seed: int, position: int) -> float:
    """Return the random number in [0, 1) of a seed's token at `position`.

    Source:
        The finalizer of SplitMix64, https://prng.di.unimi.it/splitmix64.c
    """
    mixed = _mix(_mix(seed & _MASK) + (position + 1) * 0x9E3779B97F4A7C15)
    return (mixed >> 12) * 2.0**-52


def _mix(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _is_random(sampling: SamplingParams) -> bool:
    return sampling.temperature >= GREEDY_BELOW and problem_of(sampling) is None


def _ban(logits: Tensor, requests: Sequence[ScheduledRequest]) -> None:
    vocab_size = logits.shape[1]
    pairs = [
        (row, token_id)
        for row, request in enumerate(requests)
        for token_id in request.banned_token_ids
        if 0 <= token_id < vocab_size
    ]
    if pairs:
        rows, token_ids = zip(*pairs, strict=True)
        logits[list(rows), list(token_ids)] = float("-inf")


def _draw(logits: Tensor, draws: _Draws) -> Tensor:
    """Return one token id for each row."""
    top = logits.amax(dim=-1, keepdim=True)
    weights = ((logits - top) / draws.temperature).exp_()  # the best token weighs 1
    weights.masked_fill_(weights < draws.min_p, 0.0)
    narrow = ((draws.top_k > 0) | (draws.top_p < 1.0)).squeeze(1)
    ids = torch.empty(logits.shape[0], dtype=torch.long, device=logits.device)
    wide_rows, narrow_rows = (~narrow).nonzero().squeeze(1), narrow.nonzero().squeeze(1)
    if wide_rows.numel():
        ids[wide_rows] = _pick(weights[wide_rows].double(), draws.uniform[wide_rows])
    if narrow_rows.numel():
        ids[narrow_rows] = _draw_narrow(weights[narrow_rows], draws.of(narrow_rows))
    return ids


def _draw_narrow(weights: Tensor, draws: _Draws) -> Tensor:
    """Draw under top-k and top-p, from as few of the best candidates as are enough."""
    vocab_size = weights.shape[1]
    ids = torch.zeros(weights.shape[0], dtype=torch.long, device=weights.device)
    rows = torch.arange(weights.shape[0], device=weights.device)
    for num in (*(n for n in _CANDIDATES if n < vocab_size), vocab_size):
        picked, enough = _draw_among(weights[rows], draws.of(rows), num)
        ids[rows] = picked
        rows = rows[~enough]
        if not rows.numel():
            break
    return ids


def _draw_among(weights: Tensor, draws: _Draws, num: int) -> tuple[Tensor, Tensor]:
    """Draw among the `num` best tokens; also return for which rows that was enough."""
    values, token_ids = _best(weights, num)
    sorted_weights = values.double()
    ranks = torch.arange(num, device=weights.device)
    has_top_k = draws.top_k > 0
    sorted_weights.masked_fill_(has_top_k & (ranks >= draws.top_k), 0.0)
    sums = sorted_weights.cumsum(dim=-1)
    mass = torch.where(
        has_top_k & (draws.top_k <= num), sums[:, -1:], weights.double().sum(dim=-1, keepdim=True)
    )
    wanted = draws.top_p * mass
    sorted_weights.masked_fill_((sums - sorted_weights) >= wanted, 0.0)
    picked = token_ids.gather(1, _pick(sorted_weights, draws.uniform).unsqueeze(1)).squeeze(1)
    complete = (values[:, -1:] == 0.0) | (sums[:, -1:] >= wanted)
    enough = (has_top_k & (draws.top_k <= num)) | (~has_top_k & complete)
    return picked, enough.squeeze(1) | (num == weights.shape[1])


def _pick(weights: Tensor, at: Tensor) -> Tensor:
    """Return for each row the index where the running sum passes the share `at` of the total."""
    sums = weights.cumsum(dim=-1)
    found = torch.searchsorted(sums, at * sums[:, -1:], right=True).squeeze(1)
    return found.clamp_(max=weights.shape[1] - 1)


def _best(values: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """Return the `num` largest values and their indices, equal ones by index."""
    if num == values.shape[1]:
        return values.sort(dim=-1, descending=True, stable=True)
    token_ids = values.topk(num, dim=-1, sorted=False).indices.sort(dim=-1).values
    ordered, order = values.gather(1, token_ids).sort(dim=-1, descending=True, stable=True)
    return ordered, token_ids.gather(1, order)


def _add_logprobs(result: StepResult, raw: Tensor, requests: Sequence[ScheduledRequest]) -> None:
    values, token_ids = _best(raw, min(MAX_LOGPROBS, raw.shape[1]))
    chosen = [result.token_ids.get(request.request_id, 0) for request in requests]
    own = raw.gather(1, torch.tensor(chosen, device=raw.device).unsqueeze(1)).squeeze(1)
    columns = zip(requests, own.tolist(), values.tolist(), token_ids.tolist(), strict=True)
    for request, logprob, best, ids in columns:
        if request.request_id not in result.token_ids:
            continue
        pairs = list(zip(ids, best, strict=True))[: request.sampling.logprobs]
        result.logprobs[request.request_id] = TokenLogprobs(
            token_id=result.token_ids[request.request_id],
            logprob=logprob,
            top=tuple(TokenLogprob(token_id=i, logprob=p) for i, p in pairs),
        )
