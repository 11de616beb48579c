"""Knows when records went missing, so that a trace of that time does not pass for complete."""

from collections.abc import Callable
from dataclasses import dataclass

from appliance.telemetry.trace_facts import Loss


@dataclass(slots=True)
class _Source:
    dropped: int
    heard_ns: int


class Losses:
    """Watches the counts of dropped records that processes and stages report.

    Args:
        note: Takes each loss.
        since_ns: When the hub began.
    """

    def __init__(self, note: Callable[[Loss], None], since_ns: int) -> None:
        self._note = note
        self._since_ns = since_ns
        self._sources: dict[tuple[str, str], _Source] = {}

    def heard(self, process: str, stage: str, dropped: int, at_ns: int) -> None:
        """A process or a stage says how many records it has dropped in all.

        What was lost since the last word, was lost between the two.
        """
        source = self._sources.get((process, stage))
        if source is None:
            source = self._sources[process, stage] = _Source(0, self._since_ns)
        lost = dropped - source.dropped if dropped >= source.dropped else dropped
        if lost:
            self._note(Loss(process, stage, source.heard_ns, at_ns, lost))
        source.dropped, source.heard_ns = dropped, at_ns

    def died(self, process: str, stage: str, at_ns: int) -> None:
        """A process is gone, and with it what it had not sent since its last word."""
        source = self._sources.pop((process, stage), None)
        since_ns = self._since_ns if source is None else source.heard_ns
        self._note(Loss(process, stage, since_ns, at_ns, 0))
