"""What differs between the generating routes: reading the prompt and writing the answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from appliance.gateway.journey import Journey
from appliance.gateway.openai.collected import CollectedChoice
from appliance.gateway.openai.parameters import Parameters
from appliance.gateway.openai.sse import Frames

if TYPE_CHECKING:
    from appliance.gateway.model_texts import ModelText

Encode = Callable[["ModelText", int | None], list[tuple[int, ...]]]
"""Renders and tokenizes; blocking; returns one list of ids for each prompt. Raises ApiError.

The number is the context's length, if it is known and matters.
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What every part of an answer says of itself."""

    id: str
    created: int
    """Unix seconds."""
    model: str
    """As the client asked for it."""
    parameters: Parameters
    journey: Journey
    text: "ModelText"
    prompts: Sequence[tuple[int, ...]]
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that no choice may have."""

    @property
    def num_choices(self) -> int:
        """Choices over all prompts."""
        return len(self.prompts) * self.parameters.n

    def usage(self) -> dict[str, Any]:
        """The `usage` object, as far as it is known."""
        journey = self.journey
        return {
            "prompt_tokens": journey.prompt_tokens,
            "completion_tokens": journey.completion_tokens,
            "total_tokens": journey.prompt_tokens + journey.completion_tokens,
            "prompt_tokens_details": {
                "cached_tokens": min(journey.cached_tokens, journey.prompt_tokens)
            },
            "completion_tokens_details": {"reasoning_tokens": 0},
        }


def written_prompt_logprobs(answer: Answer, choice: CollectedChoice) -> dict[str, Any]:
    """The field `prompt_logprobs` as vLLM has it, in a dict; empty when it was not asked for."""
    from appliance.gateway.logprobs import prompt_logprobs  # noqa: PLC0415 - start-up time

    count = answer.parameters.fields.get("prompt_logprobs")
    if count is None:
        return {}
    entries = choice.prompt_logprobs
    return {"prompt_logprobs": prompt_logprobs(answer.text.tokenizer, entries, count)}


class Dialect(Protocol):
    """One generating route."""

    id_prefix: str
    prompt_param: str
    """Parameter that holds the prompt."""

    def parse(self, body: Mapping[str, Any], *, strict: bool) -> tuple[Parameters, Encode]:
        """Check a request's body. Raises ApiError."""
        ...

    def default_max_tokens(self, room: int) -> int:
        """Tokens to generate when the client does not say."""
        ...

    def frames(self, answer: Answer) -> Frames:
        """Write a stream."""
        ...

    def complete(self, answer: Answer, choices: Sequence[CollectedChoice]) -> dict[str, Any]:
        """Write the whole answer."""
        ...


def unix_now() -> int:
    """Wall-clock seconds, for `created`."""
    return int(datetime.now(UTC).timestamp())
