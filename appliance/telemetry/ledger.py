"""Adds up the accounts of all processes, dead ones included, so that no count ever falls.

Each process ships whole snapshots; the newest one of an epoch counts. When the process dies its
last snapshot is retired: its counts stay, its levels go, and what it still had open is closed so
that received = rejected + accepted and accepted = finished + aborted + failed + running hold.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from appliance.control_link.messages import TYPE_BYTES as CONTROL_TYPES
from appliance.telemetry.names import (
    METRICS,
    REQUESTS_ACCEPTED,
    REQUESTS_ENDED,
    REQUESTS_RECEIVED,
    REQUESTS_REJECTED,
    REQUESTS_RUNNING,
    Metric,
)
from appliance.telemetry.records import AccountsSnapshot, CounterSample, HistogramSample
from engine.wire.messages import TYPE_BYTES as ENGINE_TYPES

OTHER = "other"
MAX_LABEL_VALUES = 200
"""Of one label of one metric; further ones are counted as `other`."""
GATEWAY_DIED = "gateway_died"
"""Code of requests that were received and not yet decided on when their gateway died."""
MESSAGE_NAMES = frozenset(kind.__name__ for kind in (*ENGINE_TYPES, *CONTROL_TYPES))

Labels = tuple[str, ...]


@dataclass(slots=True)
class Bins:
    """A histogram's cumulative counts by bucket, not yet summed up over the buckets."""

    counts: list[int]
    sum: float = 0.0


@dataclass(slots=True)
class Totals:
    """Sums by metric name and label values."""

    values: dict[str, dict[Labels, float]] = field(default_factory=dict)
    histograms: dict[str, dict[Labels, Bins]] = field(default_factory=dict)

    def add(self, metric: Metric, labels: Labels, value: float) -> None:
        """Add to a series."""
        series = self.values.setdefault(metric.name, {})
        series[labels] = series.get(labels, 0) + value

    def observe(self, metric: Metric, labels: Labels, sample: HistogramSample) -> None:
        """Add a histogram to a series."""
        series = self.histograms.setdefault(metric.name, {})
        bins = series.setdefault(labels, Bins([0] * len(sample.counts)))
        bins.counts = [mine + its for mine, its in zip(bins.counts, sample.counts, strict=True)]
        bins.sum += sample.sum

    def total(self, metric: Metric, last_label: str | None = None) -> int:
        """Return the sum over all series, or over those whose last label has this value."""
        series = self.values.get(metric.name, {})
        return round(
            sum(v for labels, v in series.items() if last_label in (None, labels and labels[-1]))
        )


class Ledger:
    """The accounts of the whole appliance."""

    def __init__(self) -> None:
        self._current: dict[tuple[str, int], AccountsSnapshot] = {}
        self._buried: set[tuple[str, int]] = set()
        self._retired = Totals()
        self._seen: dict[tuple[str, str], set[str]] = {}

    def enter(self, snapshot: AccountsSnapshot) -> None:
        """Take a process's snapshot, unless it is older than the last one."""
        key = (snapshot.process, snapshot.epoch)
        before = self._current.get(key)
        if key in self._buried or (before is not None and before.taken_ns > snapshot.taken_ns):
            return
        self._current[key] = snapshot

    def died(self, process: str, epoch: int) -> None:
        """Retire a process; its later snapshots are ignored."""
        self._buried.add((process, epoch))
        snapshot = self._current.pop((process, epoch), None)
        if snapshot is None:
            return
        own = Totals()
        self._add(own, snapshot, snapshot.counters)
        self._close(own, snapshot)
        for name, series in own.values.items():
            for labels, value in series.items():
                self._retired.add(METRICS[name], labels, value)
        self._add_histograms(self._retired, snapshot)

    def totals(self, *extra: AccountsSnapshot) -> Totals:
        """Return the sums over all processes and the snapshots given."""
        totals = Totals(
            {name: dict(series) for name, series in self._retired.values.items()},
            {
                name: {labels: Bins(list(b.counts), b.sum) for labels, b in series.items()}
                for name, series in self._retired.histograms.items()
            },
        )
        for snapshot in (*self._current.values(), *extra):
            self._add(totals, snapshot, snapshot.counters)
            self._add(totals, snapshot, snapshot.gauges)
            self._add_histograms(totals, snapshot)
        return totals

    def _add(
        self, totals: Totals, snapshot: AccountsSnapshot, samples: Iterable[CounterSample]
    ) -> None:
        for sample in samples:
            metric = METRICS.get(sample.name)
            labels = self._labels(metric, sample.labels)
            if metric is not None and labels is not None:
                totals.add(metric, labels, sample.value)

    def _add_histograms(self, totals: Totals, snapshot: AccountsSnapshot) -> None:
        for sample in snapshot.histograms:
            metric = METRICS.get(sample.name)
            labels = self._labels(metric, sample.labels)
            if metric is None or labels is None or len(sample.counts) != len(metric.buckets) + 1:
                continue
            totals.observe(metric, labels, sample)

    def _labels(self, metric: Metric | None, labels: Iterable[tuple[str, str]]) -> Labels | None:
        """Return the values in the metric's order, each from a closed set; None: not its labels."""
        if metric is None:
            return None
        named = dict(labels)
        if tuple(sorted(named)) != tuple(sorted(metric.labels)):
            return None
        return tuple(self._closed(metric.name, label, named[label]) for label in metric.labels)

    def _closed(self, name: str, label: str, value: str) -> str:
        if label == "message":
            return value if value in MESSAGE_NAMES else OTHER
        seen = self._seen.setdefault((name, label), set())
        if value in seen:
            return value
        if len(seen) >= MAX_LABEL_VALUES:
            return OTHER
        seen.add(value)
        return value

    def _close(self, own: Totals, snapshot: AccountsSnapshot) -> None:
        """End what a dead gateway still had open, by route."""
        levels = Totals()
        self._add(levels, snapshot, snapshot.gauges)
        for (route,), running in levels.values.get(REQUESTS_RUNNING.name, {}).items():
            own.add(REQUESTS_ENDED, (route, "failed"), running)
        accepted = own.values.get(REQUESTS_ACCEPTED.name, {})
        rejected = own.values.get(REQUESTS_REJECTED.name, {})
        for (route,), received in own.values.get(REQUESTS_RECEIVED.name, {}).items():
            refused = sum(count for labels, count in rejected.items() if labels[0] == route)
            undecided = received - refused - accepted.get((route,), 0)
            if undecided > 0:
                own.add(REQUESTS_REJECTED, (route, GATEWAY_DIED), undecided)
