"""Log probabilities in the two shapes of the OpenAI endpoint, and in vLLM's for prompts."""

import codecs
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec

from engine.text.tokenizer import Tokenizer
from engine.wire.messages import TokenLogprob, TokenLogprobs

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


def echo_logprobs(
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    entries: Sequence[TokenLogprobs],
    *,
    num_candidates: int,
    echo: str,
) -> dict[str, Any]:
    """Return the `logprobs` of a prompt that is echoed in front of a completion.

    Nothing came before the first token: its logprob and its candidates are null.

    Args:
        tokenizer: Of the model that answered.
        prompt: The prompt's tokens.
        entries: Of all of them but the first.
        num_candidates: Most to list for each token, besides itself.
        echo: The prompt's text.
    """
    first = TokenLogprobs(token_id=prompt[0], logprob=0.0)
    few = [with_candidates(entry, num_candidates) for entry in entries]
    written = completion_logprobs(tokenizer, [first, *few], text_offset=0)
    written["token_logprobs"][0] = written["top_logprobs"][0] = None
    # A SentencePiece text begins without the space that its first token begins with.
    num_chars = sum(len(text) for text in _texts(tokenizer, prompt))
    excess = max(0, num_chars - len(echo))
    written["text_offset"] = [max(0, offset - excess) for offset in written["text_offset"]]
    return written


def prompt_logprobs(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprobs], num_candidates: int
) -> list[dict[str, Any] | None]:
    """Return vLLM's `prompt_logprobs`: by token id, null for the prompt's first token.

    The prompt's own token comes first. Its rank is null where it is not among the candidates.
    """
    few = (with_candidates(entry, num_candidates) for entry in entries)
    return [None, *(_by_token_id(tokenizer, entry) for entry in few)]


def with_candidates(entry: TokenLogprobs, count: int) -> TokenLogprobs:
    """Return an entry with at most `count` candidates."""
    return msgspec.structs.replace(entry, top=entry.top[:count])


def _by_token_id(tokenizer: Tokenizer, entry: TokenLogprobs) -> dict[str, Any]:
    own = TokenLogprob(token_id=entry.token_id, logprob=entry.logprob)
    ranks = {best.token_id: rank for rank, best in enumerate(entry.top, start=1)}
    return {
        str(best.token_id): {
            "logprob": _finite(best.logprob),
            "rank": ranks.get(best.token_id),
            "decoded_token": tokenizer.token_text(best.token_id),
        }
        for best in (own, *entry.top)
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
    texts = _texts(tokenizer, [entry.token_id for entry in entries])
    return [text_offset + chars for chars in accumulate(map(len, texts), initial=0)][:-1]


def _texts(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    """Return the characters that each token completes; control tokens are not in the text."""
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    return [
        ""
        if token_id in tokenizer.control_token_ids
        else utf8.decode(tokenizer.token_bytes(token_id))
        for token_id in token_ids
    ]


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST_LOGPROB) if math.isfinite(logprob) else _LOWEST_LOGPROB
