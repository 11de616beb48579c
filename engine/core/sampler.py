"""Chooses the next token of every row of a batch.

Stateless: a token is a function of its row alone. The random number is a function of the request's
seed and the token's position, so neither preemption nor drafts nor the company in the batch change
a text. Order: raw logprobs, allowed tokens and grammar, bad words, banned tokens, logit bias,
penalties, greedy, temperature, min-p, top-k, top-p, draw.
"""

import hashlib
import math
import secrets
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.core.batch import Sampled, SampleRow
from engine.core.draw import Draws, draw, uniform
from engine.core.logit_rules import NO_NUMBER, LogitRules
from engine.core.logprobs import MAX_LOGPROBS, prompt_logprobs, token_logprobs
from engine.core.penalties import Penalties
from engine.wire.messages import SamplingParams

__all__ = ["GREEDY_BELOW", "MAX_LOGPROBS", "Sampler", "problem_of", "prompt_logprobs", "uniform"]

GREEDY_BELOW = 1e-5


class Sampler:
    """Samples whole batches.

    Args:
        secret: Makes the seeds of requests that bring none; random by default.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret or secrets.token_bytes(16)
        self._rules = LogitRules()
        self._penalties = Penalties()

    def sample(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[Sampled]:
        """Choose a token for each row; a row that has none is a fault of its own.

        Args:
            logits: `[rows, vocab]` float32; overwritten.
            rows: One for each row; a request may have several.
        """
        wanted = [at for at, row in enumerate(rows) if row.sampling.logprobs is not None]
        raw = torch.log_softmax(logits[wanted], dim=-1) if wanted else None
        faults = self._rules.apply(logits, rows)
        self._penalties.apply(logits, rows)
        sampled = self._choose(logits, rows, faults)
        if raw is not None:
            _add_logprobs(sampled, raw, rows, wanted)
        return sampled

    def _choose(
        self, logits: Tensor, rows: Sequence[SampleRow], faults: dict[int, str]
    ) -> list[Sampled]:
        best, ids = logits.max(dim=-1)
        self._replace_random(ids, logits, rows)
        finite: list[bool] = best.isfinite().tolist()
        chosen: list[int] = ids.tolist()
        sampled: list[Sampled] = []
        for at, row in enumerate(rows):
            fault = problem_of(row.sampling) or faults.get(at)
            if fault is None and not finite[at]:
                fault = NO_NUMBER
            sampled.append(Sampled(chosen[at] if fault is None else None, fault=fault))
        return sampled

    def _replace_random(self, ids: Tensor, logits: Tensor, rows: Sequence[SampleRow]) -> None:
        random = [at for at, row in enumerate(rows) if _is_random(row.sampling)]
        if not random:
            return
        draws = self._draws([rows[at] for at in random], logits.device)
        ids[random] = draw(logits if len(random) == len(rows) else logits[random], draws)

    def _draws(self, rows: Sequence[SampleRow], device: torch.device) -> Draws:
        def column(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device).unsqueeze(1)

        sampling = [row.sampling for row in rows]
        return Draws(
            temperature=column([s.temperature for s in sampling]),
            min_p=column([s.min_p for s in sampling]),
            top_k=column([s.top_k or 0 for s in sampling], torch.long),
            top_p=column([s.top_p for s in sampling], torch.float64),
            uniform=column([self._uniform(row) for row in rows], torch.float64),
        )

    def _uniform(self, row: SampleRow) -> float:
        seed = row.sampling.seed
        if seed is None:
            digest = hashlib.blake2b(row.request_id.encode(), key=self._secret, digest_size=8)
            seed = int.from_bytes(digest.digest(), "little")
        return uniform(seed, row.position)


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


def _is_random(sampling: SamplingParams) -> bool:
    return sampling.temperature >= GREEDY_BELOW and problem_of(sampling) is None


def _add_logprobs(
    sampled: list[Sampled], raw: Tensor, rows: Sequence[SampleRow], wanted: list[int]
) -> None:
    chosen = [sampled[at].token_id or 0 for at in wanted]
    counts = [rows[at].sampling.logprobs or 0 for at in wanted]
    for at, entry in zip(wanted, token_logprobs(raw, chosen, counts), strict=True):
        if sampled[at].fault is None:
            sampled[at].logprobs = entry
