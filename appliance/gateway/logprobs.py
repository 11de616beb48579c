"""Log probabilities of tokens in the two shapes of the OpenAI endpoint."""

import codecs
import math
from collections.abc import Sequence
from typing import Any

from appliance.gateway.tokenizer import Tokenizer
from engine.wire.messages import TokenLogprobs

_LOWEST_LOGPROB = -9999.0
"""What stands for minus infinity, which JSON cannot say."""


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprobs]) -> list[dict[str, Any]]:
    """Return the `logprobs.content` of a chat choice.

    `bytes` are the token's own, also where it is a part of a character and its text is U+FFFD.
    """
    return [
        {
            **_candidate(tokenizer, entry.token_id, entry.logprob),
            "top_logprobs": [_candidate(tokenizer, top.token_id, top.logprob) for top in entry.top],
        }
        for entry in entries
    ]


def completion_logprobs(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprobs], *, text_offset: int
) -> dict[str, Any]:
    r"""Return the `logprobs` of a text completion choice.

    The chosen token is always among its `top_logprobs`. This shape names tokens by text alone, so
    a token that is a part of a character is written `bytes:\xe2\x96`, as OpenAI does: two such
    tokens stay two.

    Args:
        tokenizer: Of the model that answered.
        entries: One for each token.
        text_offset: Characters of the full text before the first of these tokens.
    """
    return {
        "tokens": [_label(tokenizer, entry.token_id) for entry in entries],
        "token_logprobs": [_finite(entry.logprob) for entry in entries],
        "top_logprobs": [_labelled_top(tokenizer, entry) for entry in entries],
        "text_offset": _text_offsets(tokenizer, entries, text_offset),
    }


def _candidate(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": tokenizer.token_text(token_id),
        "logprob": _finite(logprob),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


def _labelled_top(tokenizer: Tokenizer, entry: TokenLogprobs) -> dict[str, float]:
    top = {_label(tokenizer, best.token_id): _finite(best.logprob) for best in entry.top}
    return top | {_label(tokenizer, entry.token_id): _finite(entry.logprob)}


def _label(tokenizer: Tokenizer, token_id: int) -> str:
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode() or tokenizer.token_text(token_id)
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _text_offsets(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprobs], text_offset: int
) -> list[int]:
    """Return where each token begins; the parts of one character all begin where it does."""
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    offsets: list[int] = []
    for entry in entries:
        offsets.append(text_offset)
        if entry.token_id not in tokenizer.control_token_ids:  # they are not in the text
            text_offset += len(utf8.decode(tokenizer.token_bytes(entry.token_id)))
    return offsets


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST_LOGPROB) if math.isfinite(logprob) else _LOWEST_LOGPROB
