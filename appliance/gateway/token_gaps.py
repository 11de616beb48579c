"""Times between tokens as they leave the gateway; cheap enough to be noted with each output."""

from appliance.telemetry.accounts import Histogram
from engine.clock import now_ns

NS_PER_S = 1e9


class TokenGaps:
    """Notes the gaps of one choice.

    Several tokens that come at once share the time since the last output, so that the histogram is
    per token, whatever a step brings.

    Args:
        histogram: Of the model, in seconds.
    """

    __slots__ = ("_histogram", "_last_ns")

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._last_ns: int | None = None

    def note(self, num_tokens: int) -> None:
        """Tokens are here; the first ones have no gap before them."""
        if num_tokens == 0:
            return
        at_ns = now_ns()
        if self._last_ns is not None:
            self._histogram.observe((at_ns - self._last_ns) / NS_PER_S / num_tokens, num_tokens)
        self._last_ns = at_ns

    def restart(self) -> None:
        """The choice begins again on another engine: that wait is no gap between tokens."""
        self._last_ns = None
