"""What `LLM` and `AsyncLLM` give back."""

from dataclasses import dataclass

from engine.wire.messages import TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer to a prompt."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    """With the stop token, if one ended it."""
    finish_reason: str
    """`stop`, `length`, `abort`, or `error`."""
    stop_reason: str | int | None = None
    """The stop string or stop token that ended it."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """An entry for each token, when asked for."""
    error: str | None = None
    """Why it failed; the text is what came before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A prompt and its answers; `text` and its like are those of the first."""

    request_id: str
    prompt: str | None
    """None when it came as token ids or as messages."""
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[Completion, ...]
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """Of the prompt's tokens but the first."""
    cached_tokens: int = 0
    """Prompt tokens that the prefix cache knew."""
    warnings: tuple[str, ...] = ()
    """Of the grammar: schema keywords that are not enforced."""

    @property
    def text(self) -> str:
        """Text of the first answer."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Tokens of the first answer."""
        return self.outputs[0].token_ids

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...] | None:
        """Log probabilities of the first answer."""
        return self.outputs[0].logprobs

    @property
    def finish_reason(self) -> str:
        """Why the first answer ended."""
        return self.outputs[0].finish_reason

    @property
    def error(self) -> str | None:
        """Why an answer failed, if one did."""
        return next((each.error for each in self.outputs if each.error is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What has come of one answer since the last delta."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: str | None = None
    """Set in the last delta of an answer."""
    stop_reason: str | int | None = None
    error: str | None = None
