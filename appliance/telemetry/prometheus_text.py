"""Renders the accounts as Prometheus text. Runs in a thread: rendering takes milliseconds.

Names and buckets are those of `appliance.telemetry.names`. The format is negotiated: OpenMetrics
(with exemplars) for scrapers that ask for it, else the plain text format.
"""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from appliance.telemetry.ledger import Bins, Labels, Totals
from appliance.telemetry.names import METRICS, Metric
from appliance.telemetry.prometheus_examples import Examples


def render(totals: Totals, examples: Examples, accept: str) -> tuple[bytes, str]:
    """Return the exposition and its content type, for the given `Accept` header."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Accounts(totals, examples))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Accounts(Collector):
    def __init__(self, totals: Totals, examples: Examples) -> None:
        self._totals = totals
        self._examples = examples

    def describe(self) -> Sequence[Family]:
        """Return nothing: the registry need not collect when this is registered."""
        return ()

    def collect(self) -> Iterator[Family]:
        """Yield all families in the order of the names."""
        for metric in METRICS.values():
            if metric.kind == "histogram":
                yield self._histogram(metric)
            else:
                yield self._plain(metric)

    def _plain(self, metric: Metric) -> Family:
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=metric.labels)
        series = self._totals.values.get(metric.name, {})
        if not metric.labels and not series:
            series = {(): 0.0}  # a count that never moved is 0, not absent
        for labels, value in series.items():
            family.add_metric(labels, value)
        return family

    def _histogram(self, metric: Metric) -> Family:
        family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, bins in self._totals.histograms.get(metric.name, {}).items():
            family.add_metric(labels, self._buckets(metric, labels, bins), bins.sum)
        return family

    def _buckets(
        self, metric: Metric, labels: Labels, bins: Bins
    ) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
        edges = (*metric.buckets, float("inf"))
        buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
        total = 0
        for index, (edge, count) in enumerate(zip(edges, bins.counts, strict=True)):
            total += count
            example = self._examples.get((metric.name, labels, index)) if count else None
            if example is None:
                buckets.append((floatToGoString(edge), total))
            else:
                exemplar = Exemplar({"trace_id": example.trace_id}, example.value, example.at_s)
                buckets.append((floatToGoString(edge), total, exemplar))
        return buckets
