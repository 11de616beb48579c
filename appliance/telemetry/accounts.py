"""The accounts of one process: cumulative counts, levels and histograms, shipped as a whole.

A snapshot replaces the one before it, so a lost message loses nothing. Not thread-safe: one loop
owns it. Label values are positional, in the order of `Metric.labels`.
"""

from bisect import bisect_left

from appliance.telemetry.names import METRICS, Metric
from appliance.telemetry.records import AccountsSnapshot, CounterSample, HistogramSample
from engine.clock import now_ns

Labels = tuple[str, ...]
Level = tuple[Metric, Labels, float]


class _Histogram:
    """Counts per bucket, the last one for all that is above the highest edge."""

    __slots__ = ("counts", "sum")

    def __init__(self, num_edges: int) -> None:
        self.counts = [0] * (num_edges + 1)
        self.sum = 0.0


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
        self._histograms: dict[str, dict[Labels, _Histogram]] = {}

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

    def observe(self, metric: Metric, value: float, labels: Labels = ()) -> None:
        """Count one observation of a histogram, in its base unit (seconds).

        Raises:
            ValueError: unknown metric, no histogram, or wrong number of labels.
        """
        _check(metric, labels, histogram=True)
        series = self._histograms.setdefault(metric.name, {})
        histogram = series.get(labels)
        if histogram is None:
            histogram = series[labels] = _Histogram(len(metric.buckets))
        histogram.counts[bisect_left(metric.buckets, value)] += 1
        histogram.sum += value

    def value(self, metric: Metric, labels: Labels = ()) -> float:
        """Return a counter's or gauge's current value, 0 when it never moved."""
        return self._values.get(metric.name, {}).get(labels, 0)

    def snapshot(self, *levels: Level) -> AccountsSnapshot:
        """Return everything; `levels` are gauges read just now: (metric, labels, value)."""
        for metric, labels, value in levels:
            self.set(metric, labels, value)
        return AccountsSnapshot(
            process=self._process,
            epoch=self._epoch,
            taken_ns=now_ns(),
            counters=self._samples("counter"),
            gauges=self._samples("gauge"),
            histograms=tuple(
                HistogramSample(name, _named(name, labels), tuple(kept.counts), kept.sum)
                for name, series in self._histograms.items()
                for labels, kept in series.items()
            ),
        )

    def _samples(self, kind: str) -> tuple[CounterSample, ...]:
        return tuple(
            CounterSample(name, _named(name, labels), value)
            for name, series in self._values.items()
            if METRICS[name].kind == kind
            for labels, value in series.items()
        )


def _named(name: str, labels: Labels) -> tuple[tuple[str, str], ...]:
    return tuple(zip(METRICS[name].labels, labels, strict=True))


def _check(metric: Metric, labels: Labels, *, histogram: bool) -> None:
    if METRICS.get(metric.name) is not metric:
        raise ValueError(f"{metric.name} is not in appliance.telemetry.names")
    if (metric.kind == "histogram") != histogram:
        raise ValueError(f"{metric.name} is a {metric.kind}")
    if len(labels) != len(metric.labels):
        raise ValueError(f"{metric.name} takes labels {metric.labels}, got {labels}")
