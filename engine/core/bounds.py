"""What the engine accepts: the last check of values that a front should have refused already.

A bad value that reaches a kernel can end the process, so the engine trusts no client.
"""

import math
from collections.abc import Iterator, Sequence

from engine.wire.grammar_bounds import size_complaint
from engine.wire.messages import AddRequest, Grammar, GrammarKind, SamplingParams

MAX_TEMPERATURE = 100.0
MAX_LOGPROBS = 20
MAX_STOP_TOKEN_IDS = 256
MAX_ALLOWED_TOKEN_IDS = 1 << 16
MAX_LOGIT_BIASES = 4096
MAX_BIAS = 1e6
MAX_BAD_WORDS = 256
MAX_BAD_WORD_TOKENS = 1024
MAX_PENALTY = 1e3
MIN_REPETITION_PENALTY = 1e-3
MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1
MAX_ID_BYTES = 256
MAX_ADAPTER_NAME_BYTES = 256
MAX_CACHE_SALT_BYTES = 256


def complaint(message: AddRequest, vocab_size: int) -> str | None:
    """Return the first thing that is wrong with a request, or None."""
    return next(_complaints(message, vocab_size), None)


def _complaints(message: AddRequest, vocab_size: int) -> Iterator[str]:
    yield from _name_complaint("request_id", message.request_id, MAX_ID_BYTES)
    yield from _name_complaint("adapter", message.adapter, MAX_ADAPTER_NAME_BYTES)
    yield from _name_complaint("cache_salt", message.cache_salt, MAX_CACHE_SALT_BYTES)
    if not message.prompt_token_ids:
        yield "the prompt is empty"
    if not -MAX_INT32 - 1 <= message.priority <= MAX_INT32:
        yield f"priority must be within {-MAX_INT32 - 1} and {MAX_INT32}"
    sampling = message.sampling
    yield from _id_complaints(message.prompt_token_ids, sampling, vocab_size)
    yield from _number_complaints(sampling)
    yield from _list_complaints(sampling)
    yield from _grammar_complaints(message.grammar)


def _name_complaint(name: str, text: str | None, max_bytes: int) -> Iterator[str]:
    if text is not None and not 1 <= len(text.encode("utf-8", "replace")) <= max_bytes:
        yield f"{name} must have 1 to {max_bytes} bytes"


def _id_complaints(
    prompt: Sequence[int], sampling: SamplingParams, vocab_size: int
) -> Iterator[str]:
    for name, ids in (
        ("prompt", prompt),
        ("stop_token_ids", sampling.stop_token_ids),
        ("allowed_token_ids", sampling.allowed_token_ids),
        ("logit_bias", [token_id for token_id, _ in sampling.logit_bias]),
        ("bad_words", [token_id for word in sampling.bad_words for token_id in word]),
    ):
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            yield f"{name} has token ids outside of 0 to {vocab_size - 1}"


def _number_complaints(sampling: SamplingParams) -> Iterator[str]:
    for name, value, low, high in (
        ("max_tokens", sampling.max_tokens, 1, MAX_INT64),
        ("min_tokens", sampling.min_tokens, 0, sampling.max_tokens),
        ("temperature", sampling.temperature, 0.0, MAX_TEMPERATURE),
        ("top_k", sampling.top_k, 1, MAX_INT64),
        ("min_p", sampling.min_p, 0.0, 1.0),
        ("seed", sampling.seed, -MAX_INT64 - 1, MAX_INT64),
        ("logprobs", sampling.logprobs, 0, MAX_LOGPROBS),
        ("prompt_logprobs", sampling.prompt_logprobs, 0, MAX_LOGPROBS),
        (
            "repetition_penalty",
            sampling.repetition_penalty,
            MIN_REPETITION_PENALTY,
            MAX_PENALTY,
        ),
        ("frequency_penalty", sampling.frequency_penalty, -MAX_PENALTY, MAX_PENALTY),
        ("presence_penalty", sampling.presence_penalty, -MAX_PENALTY, MAX_PENALTY),
    ):
        if value is not None and not (math.isfinite(value) and low <= value <= high):
            yield f"{name} must be within {low} and {high}"
    if not 0.0 < sampling.top_p <= 1.0:
        yield "top_p must be above 0 and at most 1"


def _list_complaints(sampling: SamplingParams) -> Iterator[str]:
    for name, entries, most in (
        ("stop_token_ids", sampling.stop_token_ids, MAX_STOP_TOKEN_IDS),
        ("allowed_token_ids", sampling.allowed_token_ids, MAX_ALLOWED_TOKEN_IDS),
        ("logit_bias", sampling.logit_bias, MAX_LOGIT_BIASES),
        ("bad_words", sampling.bad_words, MAX_BAD_WORDS),
    ):
        if len(entries) > most:
            yield f"{name} must have at most {most} entries"
    biased = [token_id for token_id, _ in sampling.logit_bias]
    if len(set(biased)) < len(biased):
        yield "logit_bias has a token id twice"
    if not all(-MAX_BIAS <= bias <= MAX_BIAS for _, bias in sampling.logit_bias):
        yield f"biases must be within {-MAX_BIAS} and {MAX_BIAS}"
    if not all(1 <= len(word) <= MAX_BAD_WORD_TOKENS for word in sampling.bad_words):
        yield f"bad_words must have 1 to {MAX_BAD_WORD_TOKENS} tokens each"


def _grammar_complaints(grammar: Grammar | None) -> Iterator[str]:
    if grammar is None:
        return
    too_large = size_complaint(grammar.source)
    if too_large:
        yield f"the grammar cannot be used: {too_large}"
    if not grammar.source and grammar.kind is not GrammarKind.JSON_OBJECT:
        yield "the grammar is empty"
