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

from torch import Tensor

from engine.core.batch import Sampled, SampleRow
from engine.core.draw import uniform
from engine.core.logit_rules import NO_NUMBER, LogitRules
from engine.core.logprobs import MAX_LOGPROBS, prompt_logprobs, token_logprobs
from engine.core.penalties import Penalties
from engine.core.sampling_batch import GREEDY_BELOW, SamplingBatch, SamplingBatches, problem_of
from engine.kernels.sampling import SamplingKernels
from engine.kernels.torch_sampling import TorchSampling

__all__ = ["GREEDY_BELOW", "MAX_LOGPROBS", "Sampler", "problem_of", "prompt_logprobs", "uniform"]

_KEPT_SEEDS = 4096


class Sampler:
    """Samples whole batches.

    Args:
        secret: Makes the seeds of requests that bring none; random by default.
        kernels: Compute over whole rows; plain torch by default.
    """

    def __init__(self, secret: bytes | None = None, kernels: SamplingKernels | None = None) -> None:
        self._secret = secret or secrets.token_bytes(16)
        self._kernels = kernels or TorchSampling()
        self._batches = SamplingBatches()
        self._rules = LogitRules(self._kernels)
        self._penalties = Penalties(self._kernels)
        self._seeds: dict[str, int] = {}

    def sample(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[Sampled]:
        """Choose a token for each row; a row that has none is a fault of its own.

        Args:
            logits: `[rows, vocab]` float32; overwritten.
            rows: One for each row; a request may have several.
        """
        batch = self._batches.of([row.sampling for row in rows])
        raw = self._kernels.log_softmax(logits, batch.scored) if batch.scored else None
        faults = self._rules.apply(logits, rows) | batch.problems
        self._penalties.apply(logits, rows)
        sampled = self._choose(logits, rows, batch, faults)
        if raw is not None:
            self._add_logprobs(sampled, raw, batch)
        return sampled

    def _choose(
        self,
        logits: Tensor,
        rows: Sequence[SampleRow],
        batch: SamplingBatch,
        faults: dict[int, str],
    ) -> list[Sampled]:
        if batch.random:
            numbers = [0.0] * len(rows)
            for at in batch.random:
                numbers[at] = self._uniform(rows[at])
            best, ids = self._kernels.draw(logits, batch.draws(numbers, logits.device))
        else:
            best, ids = self._kernels.greatest(logits)
        sampled = [Sampled(token_id) for token_id in ids]
        for at, value in enumerate(best):
            if not math.isfinite(value) or at in faults:
                sampled[at] = Sampled(None, fault=faults.get(at, NO_NUMBER))
        return sampled

    def _uniform(self, row: SampleRow) -> float:
        seed = row.sampling.seed
        return uniform(self._own_seed(row.request_id) if seed is None else seed, row.position)

    def _own_seed(self, request_id: str) -> int:
        """Return the seed of a request that brings none: of its name and the secret alone."""
        seed = self._seeds.get(request_id)
        if seed is None:
            digest = hashlib.blake2b(request_id.encode(), key=self._secret, digest_size=8)
            seed = int.from_bytes(digest.digest(), "little")
            if len(self._seeds) >= _KEPT_SEEDS:
                self._seeds.clear()
            self._seeds[request_id] = seed
        return seed

    def _add_logprobs(self, sampled: list[Sampled], raw: Tensor, batch: SamplingBatch) -> None:
        chosen = [sampled[at].token_id or 0 for at in batch.scored]
        counts = [batch.sampling[at].logprobs or 0 for at in batch.scored]
        entries = token_logprobs(raw, chosen, counts, self._kernels)
        for at, entry in zip(batch.scored, entries, strict=True):
            if sampled[at].fault is None:
                sampled[at].logprobs = entry
