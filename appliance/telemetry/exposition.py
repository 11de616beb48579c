"""What `/metrics` answers: rendered in a thread, once for all who ask within a moment."""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from appliance.telemetry.ledger import Totals
from appliance.telemetry.prometheus_examples import Examples
from engine.clock import now_ns

FRESH_NS: Final = 200_000_000
"""An exposition this young is given to whoever asks: a storm of scrapes renders five a second."""


class _Rendered(NamedTuple):
    content: bytes
    at_ns: int


class Exposition:
    """Renders the metrics and keeps the last text of each format for a moment.

    Args:
        totals: Takes the accounts as they are now; runs in the loop.
        examples: Likewise the exemplars.
    """

    def __init__(self, totals: Callable[[], Totals], examples: Callable[[], Examples]) -> None:
        self._totals = totals
        self._examples = examples
        self._kept: dict[bool, _Rendered] = {}
        self._lock = asyncio.Lock()

    async def get(self, accept: str) -> tuple[bytes, str]:
        """Return the exposition and its content type, for the given `Accept` header."""
        # imported with the first scrape, so that the start does not wait for it
        from appliance.telemetry.prometheus_text import negotiate, render  # noqa: PLC0415

        is_open, content_type = negotiate(accept)
        async with self._lock:
            kept = self._kept.get(is_open)
            if kept is None or now_ns() - kept.at_ns > FRESH_NS:
                at_ns = now_ns()
                totals, examples = self._totals(), self._examples()
                content, _ = await asyncio.to_thread(render, totals, examples, accept)
                kept = self._kept[is_open] = _Rendered(content, at_ns)
        return kept.content, content_type
