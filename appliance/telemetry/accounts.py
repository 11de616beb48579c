"""The accounts of one process: cumulative counts, levels and histograms, shipped as a whole.

A snapshot replaces the one before it, so a lost message loses nothing. Not thread-safe: one loop
owns it. Label values are positional, in the order of `Metric.labels`.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from appliance.telemetry.names import METRICS, Metric
from appliance.telemetry.records import AccountsSnapshot, CounterSample, HistogramSample
from engine.clock import now_ns

MAX_SERIES: Final = 20_000
"""Series whose named labels are remembered."""

Labels = tuple[str, ...]
Level = tuple[Metric, Labels, float]


class Histogram:
    """Counts per bucket, the last one for all that is above the highest edge."""

    __slots__ = ("_edges", "counts", "sum")

    def __init__(self, edges: Sequence[float]) -> None:
        self._edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, or the same value several times; takes less than a microsecond."""
        self.counts[bisect_left(self._edges, value)] += times
        self.sum += value * times


class Accounts:
    """Counts what one process does.

    Args:
        process: `gateway-0`, `supervisor`, ...
        epoch: Epoch of this process.
    """

    def __init__(self, process: str, epoch: int) -> None:
        self._process = process
        self._epoch = epoch
        self._values: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, Histogram]] = {}

    def inc(self, metric: Metric, labels: Labels = (), by: float = 1) -> None:
        """Add to a counter or a gauge.

        Raises:
            ValueError: unknown metric, a histogram, wrong number of labels, or a counter that
                would fall.
        """
        _check(metric, labels, histogram=False)
        if by < 0 and metric.kind == "counter":
            raise ValueError(f"{metric.name} cannot fall by {-by}")
        series = self._values.setdefault(metric.name, {})
        series[labels] = series.get(labels, 0) + by

    def set(self, metric: Metric, labels: Labels, value: float) -> None:
        """Set a gauge, or a counter whose cumulative count is kept elsewhere.

        Raises:
            ValueError: as `inc`.
        """
        _check(metric, labels, histogram=False)
        self._values.setdefault(metric.name, {})[labels] = value

    def histogram(self, metric: Metric, labels: Labels = ()) -> Histogram:
        """Return the histogram itself, for who observes often.

        Raises:
            ValueError: unknown metric, no histogram, or wrong number of labels.
        """
        _check(metric, labels, histogram=True)
        series = self._histograms.setdefault(metric.name, {})
        kept = series.get(labels)
        if kept is None:
            kept = series[labels] = Histogram(metric.buckets)
        return kept

    def observe(self, metric: Metric, value: float, labels: Labels = ()) -> None:
        """Count one observation of a histogram, in its base unit (seconds).

        Raises:
            ValueError: as `histogram`.
        """
        self.histogram(metric, labels).observe(value)

    def set_histogram(
        self, metric: Metric, labels: Labels, counts: Sequence[int], total: float
    ) -> None:
        """Set a histogram that is kept elsewhere; counts of other edges than ours are left out.

        Raises:
            ValueError: as `histogram`.
        """
        if len(counts) == len(metric.buckets) + 1:
            kept = self.histogram(metric, labels)
            kept.counts, kept.sum = list(counts), total

    def value(self, metric: Metric, labels: Labels = ()) -> float:
        """Return a counter's or gauge's current value, 0 when it never moved."""
        return self._values.get(metric.name, {}).get(labels, 0)

    def snapshot(self, *levels: Level) -> AccountsSnapshot:
        """Return everything, and `levels`: (metric, labels, value) as read just now.

        Levels are in this snapshot alone: what is not read again is gone.
        """
        return AccountsSnapshot(
            process=self._process,
            epoch=self._epoch,
            taken_ns=now_ns(),
            counters=self._samples("counter", levels),
            gauges=self._samples("gauge", levels),
            histograms=tuple(
                HistogramSample(name, _named(name, labels), tuple(kept.counts), kept.sum)
                for name, series in self._histograms.items()
                for labels, kept in series.items()
            ),
        )

    def _samples(self, kind: str, levels: Iterable[Level]) -> tuple[CounterSample, ...]:
        kept = [
            CounterSample(name, _named(name, labels), value)
            for name, series in self._values.items()
            if METRICS[name].kind == kind
            for labels, value in series.items()
        ]
        read = [
            CounterSample(metric.name, _named(metric.name, labels), value)
            for metric, labels, value in levels
            if metric.kind == kind
        ]
        return (*kept, *read)


@lru_cache(MAX_SERIES)
def _named(name: str, labels: Labels) -> tuple[tuple[str, str], ...]:
    return tuple(zip(METRICS[name].labels, labels, strict=True))


def _check(metric: Metric, labels: Labels, *, histogram: bool) -> None:
    if METRICS.get(metric.name) is not metric:
        raise ValueError(f"{metric.name} is not in appliance.telemetry.names")
    if (metric.kind == "histogram") != histogram:
        raise ValueError(f"{metric.name} is a {metric.kind}")
    if len(labels) != len(metric.labels):
        raise ValueError(f"{metric.name} takes labels {metric.labels}, got {labels}")
