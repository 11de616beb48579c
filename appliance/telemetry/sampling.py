"""Decides which traces are exported, once all is known about them. Pure.

The local trace store keeps everything within its bounds; only the export is sampled. The rules may
change at any time: the next request is decided by the new ones.
"""

import heapq

from appliance.telemetry.live_settings import LiveTelemetry
from appliance.telemetry.records import Outcome, RequestRecord
from appliance.telemetry.request_facts import duration_ns, has_failed, preemptions
from engine.wire.header import SAMPLED
from engine.wire.hops import HopLink

MINUTE_NS = 60_000_000_000
REASONS = ("upstream", "failed", "aborted", "preempted", "slo", "slow", "ratio")
_LOW_64_BITS = (1 << 64) - 1


class Sampler:
    """The late decision.

    Args:
        settings: What is kept. The ratio is by trace id, so that every process that samples by the
            same rule keeps the same ones.
    """

    def __init__(self, settings: LiveTelemetry) -> None:
        self._minute = -1
        self._slowest: list[int] = []
        self.apply(settings)

    def apply(self, settings: LiveTelemetry) -> None:
        """Decide by these settings from now on."""
        self._settings = settings
        self._bound = round(settings.trace_ratio * (1 << 64))
        self.keeps_all = settings.trace_ratio >= 1

    def by_trace_id(self, trace_id: str) -> bool:
        """Whether the ratio keeps this trace."""
        return self.keeps_all or int(trace_id, 16) & _LOW_64_BITS < self._bound

    def wants(self, link: HopLink) -> bool:
        """Whether a request that is linked is certain to be kept, whatever becomes of it."""
        return bool(link.context.flags & SAMPLED) or self.by_trace_id(link.context.trace_id)

    def reason(self, record: RequestRecord) -> str | None:
        """Return why a request's trace is kept, one of `REASONS`; None when it is not."""
        slow = self._is_slow(record)
        special = self._special(record)
        if special is not None:
            return special
        if self.by_trace_id(record.trace_id):
            return "ratio"
        return "slow" if slow else None

    def _special(self, record: RequestRecord) -> str | None:
        settings = self._settings
        is_kept = {
            "upstream": record.parent_span_id is not None and bool(record.flags & SAMPLED),
            "failed": settings.keep_errors and has_failed(record),
            "aborted": settings.keep_aborts and record.outcome is Outcome.ABORTED,
            "preempted": settings.keep_preempted and preemptions(record) > 0,
            "slo": settings.keep_slo_breaches and False in (record.slo_ttft_ok, record.slo_tpot_ok),
        }
        return next((reason for reason, kept in is_kept.items() if kept), None)

    def _is_slow(self, record: RequestRecord) -> bool:
        """Whether it is among the slowest of its minute so far."""
        wanted = self._settings.slowest_per_minute
        minute, took_ns = record.ended_ns // MINUTE_NS, duration_ns(record)
        if minute > self._minute:  # a record of the minute before may be late
            self._minute, self._slowest = minute, []
        while len(self._slowest) > wanted:
            heapq.heappop(self._slowest)
        if len(self._slowest) < wanted:
            heapq.heappush(self._slowest, took_ns)
            return True
        return bool(wanted) and took_ns > heapq.heappushpop(self._slowest, took_ns)
