"""The tokens of one answer as they come from an engine, as text, by the rules of the endpoint."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from engine.text.detokenizer import Detokenizer
from engine.text.tokenizer import Tokenizer
from engine.wire.messages import FinishReason, RequestOutput, TokenLogprobs


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """How tokens become text."""

    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    min_tokens: int = 0


class AnswerDelta(msgspec.Struct, frozen=True, gc=False):
    """What one output adds."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: str | None
    """`stop`, `length`, `abort`, `error`, `rejected`; None: more comes."""
    stop_reason: str | int | None
    """The stop string or the stop token that ended it."""
    is_cut: bool
    """A stop string ended it, and the engine does not know yet: it must be told."""


class Answer:
    """One answer.

    Args:
        tokenizer: Of the model that answers.
        prompt_token_ids: The prompt.
        rules: How tokens become text.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], rules: AnswerRules
    ) -> None:
        self._rules = rules
        self._detokenizer = Detokenizer(
            tokenizer,
            prompt_token_ids,
            stop=rules.stop,
            include_stop=rules.include_stop,
            skip_special_tokens=rules.skip_special_tokens,
            min_tokens=rules.min_tokens,
        )

    def push(self, output: RequestOutput) -> AnswerDelta:
        """Take an output; after one with a finish reason there is nothing more."""
        tokens = output.new_token_ids
        visible = tokens
        if output.stop_token_id is not None and not self._rules.include_stop:
            visible = tokens[:-1]
        pushed = self._detokenizer.push(visible)
        text, stop = pushed.text, pushed.stop
        used = len(tokens) if stop is None else pushed.tokens
        finish_reason = None if output.finish_reason is None else output.finish_reason.value
        is_cut = stop is not None and output.finish_reason is None
        if stop is not None:
            finish_reason = FinishReason.STOP.value
        if finish_reason is not None:
            text += self._detokenizer.finish().text
        return AnswerDelta(
            text=text,
            token_ids=tokens[:used],
            logprobs=(output.logprobs or ())[:used],
            finish_reason=finish_reason,
            stop_reason=stop if stop is not None else output.stop_token_id,
            is_cut=is_cut,
        )
