"""The latencies of a request, defined once: for histograms, promises, rows and exemplars alike."""

from collections.abc import Sequence
from typing import Protocol

from engine.wire.messages import Timeline


class TimedChoice(Protocol):
    """What is read of an engine request, while it runs or of its record."""

    @property
    def timeline(self) -> Timeline | None:
        """What the engine told."""
        ...

    @property
    def completion_tokens(self) -> int:
        """Tokens that it made."""
        ...


def first_token_ns(
    choices: Sequence[TimedChoice], first_frame_ns: int | None, *, is_stream: bool
) -> int | None:
    """Return when the first token was there: as it left for a stream, else as it was made."""
    made_ns = min(
        (
            choice.timeline.first_token_ns
            for choice in choices
            if choice.timeline is not None and choice.timeline.first_token_ns is not None
        ),
        default=None,
    )
    return first_frame_ns if is_stream and first_frame_ns is not None else made_ns


def per_token_ns(choices: Sequence[TimedChoice], first_ns: int, last_ns: int) -> float | None:
    """Return the mean time per output token after the first; None with fewer than two tokens.

    Choices run side by side, so the longest one has the say. It is per token, not per step: a step
    that brings several (speculative decoding) makes each of them cheaper.
    """
    longest = max((choice.completion_tokens for choice in choices), default=0)
    return max(0, last_ns - first_ns) / (longest - 1) if longest > 1 else None
