"""Adds up the accounts of all processes, dead ones included, so that no count ever falls.

Each process ships whole snapshots; the newest one of an epoch counts. When the process dies its
last snapshot is retired: its counts stay, its levels go, and what it still had open is closed so
that received = rejected + accepted and accepted = finished + aborted + failed + running hold, and
with them the sums by key and by model.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from appliance.control_link.messages import TYPE_BYTES as CONTROL_TYPES
from appliance.telemetry.names import (
    COMPLETION_TOKENS,
    E2E,
    KEY_REQUESTS,
    KEY_TOKENS,
    METRICS,
    MODEL_REQUESTS,
    PROMPT_TOKENS,
    REQUEST_COMPLETION_TOKENS,
    REQUEST_PROMPT_TOKENS,
    REQUESTS_ACCEPTED,
    REQUESTS_ENDED,
    REQUESTS_RECEIVED,
    REQUESTS_REJECTED,
    REQUESTS_RUNNING,
    SLO_EVENTS,
    TTFT,
    Metric,
)
from appliance.telemetry.records import AccountsSnapshot, CounterSample, HistogramSample
from engine.wire.messages import TYPE_BYTES as ENGINE_TYPES

OTHER = "other"
MAX_LABEL_VALUES = 200
"""Of one label; further ones are counted as `other`."""
MAX_KEYS = 100
"""Values of the label `key`."""
LISTS = frozenset({"running_lora_adapters", "waiting_lora_adapters"})
"""Labels of levels whose values are lists of names: one series per engine at any time."""
MAX_KNOWN = 50_000
"""Label tuples whose check is remembered."""
GATEWAY_DIED = "gateway_died"
"""Code of requests that were received and not yet decided on when their gateway died."""
MESSAGE_NAMES = frozenset(kind.__name__ for kind in (*ENGINE_TYPES, *CONTROL_TYPES))

Labels = tuple[str, ...]
NamedLabels = tuple[tuple[str, str], ...]


class LostRequest(NamedTuple):
    """A request that ran in a gateway when it died, as far as the hub had heard of it."""

    model: str
    base_model: str
    """What histograms count it under."""
    key: str
    ttft_s: float | None
    """None: it had no token yet."""
    duration_s: float
    prompt_tokens: int
    completion_tokens: int


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
        self._seen: dict[str, set[str]] = {}
        self._known: dict[tuple[str, NamedLabels], Labels] = {}

    def enter(self, snapshot: AccountsSnapshot) -> None:
        """Take a process's snapshot, unless it is older than the last one."""
        key = (snapshot.process, snapshot.epoch)
        before = self._current.get(key)
        if key in self._buried or (before is not None and before.taken_ns > snapshot.taken_ns):
            return
        self._current[key] = snapshot

    def died(self, process: str, epoch: int, lost: Sequence[LostRequest] = ()) -> None:
        """Retire a process; its later snapshots are ignored.

        Args:
            process: Its name.
            epoch: Its epoch.
            lost: What is known of the requests that it leaves behind; those that nobody knows of
                are closed as `other`.
        """
        self._buried.add((process, epoch))
        snapshot = self._current.pop((process, epoch), None)
        if snapshot is None:
            return
        own = Totals()
        self._add(own, snapshot.counters)
        self._close(own, snapshot, lost)
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
            self._add(totals, snapshot.counters)
            self._add(totals, snapshot.gauges)
            self._add_histograms(totals, snapshot)
        return totals

    def _add(self, totals: Totals, samples: Iterable[CounterSample]) -> None:
        for sample in samples:
            metric = METRICS.get(sample.name)
            labels = self._labels(sample.name, sample.labels)
            if metric is not None and labels is not None:
                totals.add(metric, labels, sample.value)

    def _add_histograms(self, totals: Totals, snapshot: AccountsSnapshot) -> None:
        for sample in snapshot.histograms:
            metric = METRICS.get(sample.name)
            labels = self._labels(sample.name, sample.labels)
            if metric is None or labels is None or len(sample.counts) != len(metric.buckets) + 1:
                continue
            totals.observe(metric, labels, sample)

    def _labels(self, name: str, labels: NamedLabels) -> Labels | None:
        """Return the values in the metric's order, each from a closed set; None: not its labels.

        What a series' labels became is remembered: thousands of series come ten times a second.
        """
        known = self._known.get((name, labels))
        if known is None:
            known = self._checked(name, labels)
            if known is not None and self._may_remember(name, known):
                self._known[name, labels] = known
        return known

    def _checked(self, name: str, labels: NamedLabels) -> Labels | None:
        metric, named = METRICS.get(name), dict(labels)
        if metric is None or sorted(named) != sorted(metric.labels):
            return None
        return tuple(self._closed(label, named[label]) for label in metric.labels)

    def _may_remember(self, name: str, labels: Labels) -> bool:
        is_final = OTHER not in labels and LISTS.isdisjoint(METRICS[name].labels)
        return is_final and len(self._known) < MAX_KNOWN

    def _closed(self, label: str, value: str) -> str:
        if label == "message":
            return value if value in MESSAGE_NAMES else OTHER
        if label in LISTS:
            return value
        seen = self._seen.setdefault(label, set())
        if value in seen:
            return value
        if len(seen) >= (MAX_KEYS if label == "key" else MAX_LABEL_VALUES):
            return OTHER
        seen.add(value)
        return value

    def _close(self, own: Totals, snapshot: AccountsSnapshot, lost: Sequence[LostRequest]) -> None:
        """End what a dead gateway still had open, by route."""
        levels = Totals()
        self._add(levels, snapshot.gauges)
        num_failed = 0
        for (route,), running in levels.values.get(REQUESTS_RUNNING.name, {}).items():
            own.add(REQUESTS_ENDED, (route, "failed"), running)
            num_failed += round(running)
        num_refused = self._refuse_undecided(own)
        self._attribute(own, "failed", [*lost[:num_failed]], num_failed)
        self._attribute(own, "rejected", [], num_refused)
        if num_failed or num_refused:
            own.add(SLO_EVENTS, ("availability", "bad"), num_failed + num_refused)

    def _refuse_undecided(self, own: Totals) -> int:
        """Reject what was received and not decided on; return how many."""
        accepted = own.values.get(REQUESTS_ACCEPTED.name, {})
        rejected = own.values.get(REQUESTS_REJECTED.name, {})
        num_refused = 0
        for (route,), received in own.values.get(REQUESTS_RECEIVED.name, {}).items():
            refused = sum(count for labels, count in rejected.items() if labels[0] == route)
            undecided = round(received - refused - accepted.get((route,), 0))
            if undecided > 0:
                own.add(REQUESTS_REJECTED, (route, GATEWAY_DIED), undecided)
                num_refused += undecided
        return num_refused

    def _attribute(
        self, own: Totals, outcome: str, known: Sequence[LostRequest], count: int
    ) -> None:
        """Book `count` requests by key and by model; those that are not known under `other`."""
        for request in known:
            model, key = self._closed("model", request.model), self._closed("key", request.key)
            own.add(MODEL_REQUESTS, (model, outcome), 1)
            own.add(KEY_REQUESTS, (key, outcome), 1)
            self._book_lost(own, request, key, outcome)
        if count > len(known):
            own.add(MODEL_REQUESTS, (OTHER, outcome), count - len(known))
            own.add(KEY_REQUESTS, (OTHER, outcome), count - len(known))

    def _book_lost(self, own: Totals, request: LostRequest, key: str, outcome: str) -> None:
        """Book the tokens and times of a lost request, as its gateway would have."""
        model = (self._closed("model", request.base_model),)
        for metric, kind, tokens in (
            (PROMPT_TOKENS, "prompt", request.prompt_tokens),
            (COMPLETION_TOKENS, "completion", request.completion_tokens),
        ):
            own.add(metric, model, tokens)
            own.add(KEY_TOKENS, (key, kind), tokens)
        for metric, labels, value in (
            (TTFT, model, request.ttft_s),
            (E2E, (*model, outcome), request.duration_s),
            (REQUEST_PROMPT_TOKENS, model, request.prompt_tokens),
            (REQUEST_COMPLETION_TOKENS, model, request.completion_tokens),
        ):
            if value is not None:
                counts = [0] * (len(metric.buckets) + 1)
                counts[bisect_left(metric.buckets, value)] = 1
                sample = HistogramSample(metric.name, (), tuple(counts), value)
                self._retired.observe(metric, labels, sample)
