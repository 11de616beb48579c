"""The answering side without a stream: keep every choice until all are complete."""

from dataclasses import dataclass, field

from appliance.gateway.generation import Delta
from engine.wire.messages import TokenLogprobs


@dataclass(slots=True)
class CollectedChoice:
    """All that one choice has said."""

    index: int
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.pieces)


class Collected:
    """A `Sink` that delivers nothing before the end."""

    has_delivered = False

    def __init__(self, num_choices: int) -> None:
        self.choices = [CollectedChoice(index) for index in range(num_choices)]

    async def emit(self, delta: Delta) -> None:
        """Keep a delta."""
        choice = self.choices[delta.index]
        choice.pieces.append(delta.text)
        choice.token_ids += delta.token_ids
        choice.logprobs += delta.logprobs
        choice.prompt_logprobs += delta.prompt_logprobs
        choice.finish_reason = delta.finish_reason

    def restart(self, index: int) -> None:
        """Forget a choice that begins again."""
        self.choices[index] = CollectedChoice(index)
