"""Decides which traces are exported, once all is known about them. Pure.

The local trace store keeps everything within its bounds; only the export is sampled.
"""

import heapq

from appliance.telemetry.records import Outcome, RequestRecord
from appliance.telemetry.request_facts import duration_ns, preemptions
from engine.wire.header import SAMPLED

SLOWEST_PER_MINUTE = 5
MINUTE_NS = 60_000_000_000
_LOW_64_BITS = (1 << 64) - 1


class Sampler:
    """The late decision.

    Args:
        ratio: Share of traces that are kept without a reason, by trace id, so that every process
            that samples by the same rule keeps the same ones.
        slowest_per_minute: That many of the slowest requests are kept in each minute.
    """

    def __init__(self, ratio: float, slowest_per_minute: int = SLOWEST_PER_MINUTE) -> None:
        self._bound = round(ratio * (1 << 64))
        self._slowest_per_minute = slowest_per_minute
        self._minute = -1
        self._slowest: list[int] = []
        self.keeps_all = ratio >= 1

    def by_trace_id(self, trace_id: str) -> bool:
        """Whether the ratio keeps this trace."""
        return int(trace_id, 16) & _LOW_64_BITS < self._bound

    def reason(self, record: RequestRecord) -> str | None:
        """Return why a request's trace is kept, None when it is not."""
        slow = self._is_slow(record)
        if record.parent_span_id is not None and record.flags & SAMPLED:
            return "upstream"
        if record.outcome in (Outcome.FAILED, Outcome.ABORTED):
            return record.outcome.value
        if preemptions(record):
            return "preempted"
        if self.by_trace_id(record.trace_id):
            return "ratio"
        return "slow" if slow else None

    def _is_slow(self, record: RequestRecord) -> bool:
        """Whether it is among the slowest of its minute so far."""
        minute, took_ns = record.ended_ns // MINUTE_NS, duration_ns(record)
        if minute != self._minute:
            self._minute, self._slowest = minute, []
        if len(self._slowest) < self._slowest_per_minute:
            heapq.heappush(self._slowest, took_ns)
            return True
        return took_ns > heapq.heappushpop(self._slowest, took_ns)
