"""Random rows to sample, masks, and a sampler in plain Python to compare with."""

import math
import random
from collections import Counter
from collections.abc import Sequence

import msgspec
import torch

from engine.core.batch import SampleRow
from engine.core.sampler import uniform
from engine.wire.messages import SamplingParams

INF = float("inf")


class Bits:
    """A grammar that allows these tokens."""

    def __init__(self, allowed: Sequence[int], num_words: int) -> None:
        self.allowed = frozenset(allowed)
        words = [0] * num_words
        for token_id in allowed:
            words[token_id // 32] |= 1 << token_id % 32
        signed = [word - (1 << 32) if word >> 31 else word for word in words]
        self._mask = torch.tensor(signed, dtype=torch.int32)

    def begin_mask(self) -> None:
        pass

    def mask(self) -> torch.Tensor:
        return self._mask


def a_row(sampling: SamplingParams | None = None, **fields: object) -> SampleRow:
    """A row with a prompt of one token; `history` is prompt and output."""
    given = {"history": [0], "num_prompt_tokens": 1, "position": 0, "request_id": "r", **fields}
    names = {f.name for f in msgspec.structs.fields(SamplingParams)}
    wanted = {name: given.pop(name) for name in list(given) if name in names}
    base = sampling or SamplingParams(max_tokens=1, temperature=0.0)
    return SampleRow(sampling=msgspec.structs.replace(base, **wanted), **given)


def random_row(rng: random.Random, vocab: int, name: str, *, num_history: int = 40) -> SampleRow:
    """A row with some of everything."""

    def maybe(value: object, default: object) -> object:
        return value if rng.random() < 0.4 else default

    def some(most: int) -> tuple[int, ...]:
        return tuple(rng.sample(range(vocab), rng.randint(1, most)))

    history = [rng.randrange(vocab) for _ in range(rng.randint(2, num_history))]
    num_prompt = rng.randint(1, len(history))
    bad_words = (some(2), some(2), some(1), (*history[-2:], rng.randrange(vocab)))
    sampling = SamplingParams(
        max_tokens=100,
        temperature=maybe(0.0, rng.uniform(0.2, 2.0)),
        top_k=maybe(rng.randint(1, vocab // 2), None),
        top_p=maybe(rng.uniform(0.05, 0.99), 1.0),
        min_p=maybe(rng.uniform(0.0, 0.3), 0.0),
        seed=maybe(None, rng.getrandbits(62)),
        logprobs=maybe(rng.randint(0, 20), None),
        repetition_penalty=maybe(rng.uniform(0.5, 1.9), 1.0),
        frequency_penalty=maybe(rng.uniform(-2, 2), 0.0),
        presence_penalty=maybe(rng.uniform(-2, 2), 0.0),
        logit_bias=maybe(tuple((t, rng.uniform(-9, 9)) for t in some(9)), ()),
        allowed_token_ids=maybe(some(vocab - 1), ()),
        bad_words=maybe(bad_words, ()),
    )
    return SampleRow(
        request_id=name,
        sampling=sampling,
        position=len(history) - num_prompt,
        num_prompt_tokens=num_prompt,
        history=history,
        banned_token_ids=maybe(some(3), ()),
        grammar=maybe(Bits(some(vocab - 1), -(-vocab // 32)), None),
    )


# ---------------------------------------------------------------- the sampler in plain Python


def adjusted(logits: Sequence[float], row: SampleRow) -> list[float]:
    """Logits after rules and penalties."""
    out, sampling = list(logits), row.sampling
    for token_id in range(len(out)):
        if sampling.allowed_token_ids and token_id not in sampling.allowed_token_ids:
            out[token_id] = -INF
        if row.grammar is not None and token_id not in row.grammar.allowed:
            out[token_id] = -INF
    output = list(row.history[row.num_prompt_tokens :])
    for word in sampling.bad_words:
        before = list(word[:-1])
        if len(output) >= len(before) and output[len(output) - len(before) :] == before:
            out[word[-1]] = -INF
    without = [-INF if t in row.banned_token_ids else v for t, v in enumerate(out)]
    out = without if max(without) > -INF else out
    for token_id, bias in sampling.logit_bias:
        out[token_id] += bias
    counts = Counter(output)
    for token_id in set(row.history):
        factor = sampling.repetition_penalty
        value = out[token_id]
        value = value / factor if value > 0 else value * factor
        value -= sampling.frequency_penalty * counts[token_id]
        out[token_id] = value - sampling.presence_penalty * (counts[token_id] > 0)
    return out


def choose(logits: Sequence[float], row: SampleRow) -> int | None:
    """The token of a row with a seed; None: there is none."""
    values, sampling = adjusted(logits, row), row.sampling
    best = max(values)
    if best == -INF:
        return None
    if sampling.temperature < 1e-5:
        return values.index(best)
    weights = {t: math.exp((v - best) / sampling.temperature) for t, v in enumerate(values)}
    weights = {t: w for t, w in weights.items() if w >= sampling.min_p and w > 0}
    if sampling.top_k is not None or sampling.top_p < 1.0:
        ordered = sorted(weights, key=lambda t: (-weights[t], t))[: sampling.top_k]
        weights = _nucleus({t: weights[t] for t in ordered}, sampling.top_p)
    return _pick(weights, uniform(sampling.seed, row.position))


def _nucleus(weights: dict[int, float], top_p: float) -> dict[int, float]:
    total, before, kept = sum(weights.values()), 0.0, {}
    for token_id, weight in weights.items():
        if before >= top_p * total:
            break
        kept[token_id] = weight
        before += weight
    return kept


def _pick(weights: dict[int, float], at: float) -> int:
    passed, wanted = 0.0, at * sum(weights.values())
    for token_id, weight in weights.items():
        passed += weight
        if passed > wanted:
            return token_id
    return token_id
