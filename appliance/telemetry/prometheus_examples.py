"""Exemplars: the trace that shows what a histogram's bucket, or a count, looks like.

An exemplar that leads nowhere is worse than none. So a trace becomes one only when it had time to
be stored and nothing was lost meanwhile, and it goes before the store forgets it.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from appliance.telemetry import names
from appliance.telemetry.ledger import OTHER, Labels
from appliance.telemetry.names import Metric
from appliance.telemetry.records import Outcome, RequestRecord
from appliance.telemetry.request_facts import NS_PER_S, duration_ns, queue_ns, tpot_ns, ttft_ns
from appliance.telemetry.wall_clock import WallClock

COUNTED = -1
"""In place of a bucket's index: the example of a counter's series."""
MAX_AGE_S = 600.0
MAX_EXAMPLES = 10_000


class TraceExample(NamedTuple):
    """A trace that fell in a bucket, or was counted."""

    trace_id: str
    value: float
    at_s: float
    """Unix seconds."""


Examples = dict[tuple[str, Labels, int], TraceExample]
"""By metric name, label values and index of the bucket (or `COUNTED`)."""


class ExampleBook:
    """Keeps the newest trace of each bucket and count.

    Args:
        clock: Of the hub.
    """

    def __init__(self, clock: WallClock) -> None:
        self._clock = clock
        self._fresh: Examples = {}
        self._waiting: Examples = {}
        """Given to the store, which has not said that it lost anything."""
        self._stored: Examples = {}
        self._lost = 0

    def record(self, record: RequestRecord) -> None:
        """Take an ended request whose trace goes to the store now."""
        at_s = self._clock.unix_ns(record.ended_ns) / NS_PER_S
        for metric, labels, value in _observations(record):
            bucket = bisect_left(metric.buckets, value)
            self._fresh[metric.name, labels, bucket] = TraceExample(record.trace_id, value, at_s)
        for metric, labels in _counts(record):
            self._fresh[metric.name, labels, COUNTED] = TraceExample(record.trace_id, 1.0, at_s)

    def settle(self, lost: int) -> None:
        """Take what was recorded between the last two calls for stored; called once a second.

        Args:
            lost: Facts that the store has lost so far; when it grew, nobody knows whose they were.
        """
        if lost == self._lost and len(self._stored) < MAX_EXAMPLES:
            self._stored.update(self._waiting)
        self._waiting = self._fresh if lost == self._lost else {}
        self._fresh, self._lost = {}, lost

    def current(self, now_ns: int) -> Examples:
        """Return the examples whose traces the store has; old ones are forgotten."""
        since_s = self._clock.unix_ns(now_ns) / NS_PER_S - MAX_AGE_S
        self._stored = {key: it for key, it in self._stored.items() if it.at_s >= since_s}
        return dict(self._stored)


def _observations(record: RequestRecord) -> Iterator[tuple[Metric, Labels, float]]:
    if record.outcome is Outcome.REJECTED:
        return
    model = record.base_model or record.model or OTHER
    yield names.E2E, (model, record.outcome.value), duration_ns(record) / NS_PER_S
    for metric, value_ns in (
        (names.TTFT, ttft_ns(record)),
        (names.TPOT, tpot_ns(record)),
        (names.QUEUE, queue_ns(record)),
    ):
        if value_ns is not None:
            yield metric, (model,), value_ns / NS_PER_S


def _counts(record: RequestRecord) -> Iterator[tuple[Metric, Labels]]:
    outcome = record.outcome.value
    yield names.MODEL_REQUESTS, (record.model or OTHER, outcome)
    if record.outcome is Outcome.REJECTED:
        yield names.REQUESTS_REJECTED, (record.route, record.error_code or "internal_error")
        return
    yield names.REQUESTS_ENDED, (record.route, outcome)
    served = record.outcome is not Outcome.FAILED
    for slo, kept in (
        ("availability", served),
        ("ttft", record.slo_ttft_ok),
        ("tpot", record.slo_tpot_ok),
    ):
        if kept is not None:
            yield names.SLO_EVENTS, (slo, "good" if kept else "bad")
