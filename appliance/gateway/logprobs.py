"""Log probabilities in the two shapes of the OpenAI endpoint, and in vLLM's for prompts."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from engine.text.detokenizer import Detokenizer
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


class TextOffsets:
    """Where the tokens of one text begin, in characters, as its `Detokenizer` writes it.

    The parts of one character all begin where it does.

    Args:
        tokenizer: Of the model that answered.
        before: The tokens before the first one: it may complete a character that they began.
        offset: Characters before the first one.
        skip_special_tokens: Whether control tokens are left out of the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        before: Sequence[int] = (),
        offset: int = 0,
        *,
        skip_special_tokens: bool = True,
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, before, skip_special_tokens=skip_special_tokens)
        self.offset = offset

    def of(self, entries: Sequence[TokenLogprobs]) -> list[int]:
        """Return where the next tokens begin."""
        offsets: list[int] = []
        for entry in entries:
            offsets.append(self.offset)
            self.offset += len(self._detokenizer.push([entry.token_id]).text)
        return offsets


def completion_logprobs(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprobs], offsets: TextOffsets
) -> dict[str, Any]:
    r"""Return the `logprobs` of a text completion choice.

    The chosen token is always among its `top_logprobs`. This shape names tokens by text alone, so
    a token that is a part of a character is written `bytes:\xe2\x96`, as OpenAI does: two such
    tokens stay two.

    Args:
        tokenizer: Of the model that answered.
        entries: One for each token.
        offsets: Of the choice; advanced by these tokens.
    """
    return {
        "tokens": [_label(tokenizer, entry.token_id) for entry in entries],
        "token_logprobs": [_finite(entry.logprob) for entry in entries],
        "top_logprobs": [_labelled_top(tokenizer, entry) for entry in entries],
        "text_offset": offsets.of(entries),
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
    offsets = TextOffsets(tokenizer)
    written = completion_logprobs(tokenizer, [first, *few], offsets)
    written["token_logprobs"][0] = written["top_logprobs"][0] = None
    # A SentencePiece text begins without the space that its first token begins with.
    excess = max(0, offsets.offset - len(echo))
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


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST_LOGPROB) if math.isfinite(logprob) else _LOWEST_LOGPROB
