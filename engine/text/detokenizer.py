"""Turns the tokens of one answer into text as they come: whole characters, up to a stop string."""

import codecs
from collections.abc import Sequence

import msgspec

from engine.text.stop_strings import StopMatcher
from engine.text.tokenizer import Tokenizer

_LONGEST_CHARACTER_BYTES = 4


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """Text that became certain.

    `tokens` says how many of the pushed tokens were taken: fewer than all when a stop string was
    completed among them. The one that completed it is counted, those behind it are not part of
    the answer.
    """

    text: str
    stop: str | None = None
    tokens: int = 0


class Detokenizer:
    """The text of one answer.

    Tokens are joined as bytes and decoded as UTF-8 step by step, so text does not depend on how the
    tokens were grouped: a stream adds up to the text of the whole. Bytes that no continuation can
    make valid become U+FFFD at once, and an incomplete character is withheld, for three bytes at
    most, until it is complete or the answer ends.

    Args:
        tokenizer: Of the model that answers.
        prompt_token_ids: The prompt; an answer may complete a character that it began.
        stop: Strings that end the answer.
        include_stop: Keep the stop string in the text.
        skip_special_tokens: Leave control tokens out of the text.
        min_tokens: Stop strings completed before this many tokens are ordinary text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.control_token_ids if skip_special_tokens else frozenset[int]()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._matcher = StopMatcher(stop, include_stop=include_stop)
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._stop: str | None = None
        for token_id in prompt_token_ids[-_LONGEST_CHARACTER_BYTES:]:
            self._utf8.decode(tokenizer.token_bytes(token_id))

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        """Take the next tokens; after a stop string nothing more is taken."""
        if self._stop is not None:
            return TextDelta("", self._stop)
        texts: list[str] = []
        for taken, token_id in enumerate(token_ids, start=1):
            text, self._stop = self._push_one(token_id)
            texts.append(text)
            if self._stop is not None:
                return TextDelta("".join(texts), self._stop, taken)
        return TextDelta("".join(texts), None, len(token_ids))

    def finish(self) -> TextDelta:
        """Return what was withheld: no more tokens come. It may still complete a stop string."""
        if self._stop is not None:
            return TextDelta("", self._stop)
        text, self._stop = self._matcher.push(self._utf8.decode(b"", final=True))
        return TextDelta(text + self._matcher.flush(), self._stop)

    def _push_one(self, token_id: int) -> tuple[str, str | None]:
        self._num_tokens += 1
        if token_id in self._skipped:
            return "", None
        text = self._utf8.decode(self._tokenizer.token_bytes(token_id))
        return self._matcher.push(text, may_stop=self._num_tokens >= self._min_tokens)
