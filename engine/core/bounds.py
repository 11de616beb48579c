"""What the engine accepts: the last check of values that a front should have refused already.

A bad value that reaches a kernel can end the process, so the engine trusts no client.
"""

import math
from collections.abc import Iterator

from engine.wire.messages import AddRequest, SamplingParams

MAX_TEMPERATURE = 100.0
MAX_LOGPROBS = 20
MAX_STOP_TOKEN_IDS = 256
MAX_INT64 = 2**63 - 1
MAX_ID_BYTES = 256


def complaint(message: AddRequest, vocab_size: int) -> str | None:
    """Return the first thing that is wrong with a request, or None."""
    return next(_complaints(message, vocab_size), None)


def _complaints(message: AddRequest, vocab_size: int) -> Iterator[str]:
    if not 1 <= len(message.request_id.encode("utf-8", "replace")) <= MAX_ID_BYTES:
        yield f"request_id must have 1 to {MAX_ID_BYTES} bytes"
    if not message.prompt_token_ids:
        yield "the prompt is empty"
    for name, ids in (
        ("prompt", message.prompt_token_ids),
        ("stop_token_ids", message.sampling.stop_token_ids),
    ):
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            yield f"{name} has token ids outside of 0 to {vocab_size - 1}"
    yield from _sampling_complaints(message.sampling)


def _sampling_complaints(sampling: SamplingParams) -> Iterator[str]:
    for name, value, low, high in (
        ("max_tokens", sampling.max_tokens, 1, MAX_INT64),
        ("min_tokens", sampling.min_tokens, 0, sampling.max_tokens),
        ("temperature", sampling.temperature, 0.0, MAX_TEMPERATURE),
        ("top_k", sampling.top_k, 1, MAX_INT64),
        ("min_p", sampling.min_p, 0.0, 1.0),
        ("seed", sampling.seed, -MAX_INT64 - 1, MAX_INT64),
        ("logprobs", sampling.logprobs, 0, MAX_LOGPROBS),
        ("stop_token_ids", len(sampling.stop_token_ids), 0, MAX_STOP_TOKEN_IDS),
    ):
        if value is not None and not (math.isfinite(value) and low <= value <= high):
            yield f"{name} must be within {low} and {high}"
    if not 0.0 < sampling.top_p <= 1.0:
        yield "top_p must be above 0 and at most 1"
