"""Renders the accounts as Prometheus text. Runs in a thread: big fleets take milliseconds.

The format is negotiated: OpenMetrics (with exemplars) for scrapers that ask for it, else the plain
text format. `prometheus_client` negotiates and writes edges; the lines are written here, because
its collectors take ten times as long for them and hold the interpreter's lock meanwhile. Tests
read them back with that library and promtool.

Sources: https://prometheus.io/docs/instrumenting/exposition_formats/ and
https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md (1.0).
"""

from collections.abc import Iterator
from functools import lru_cache
from math import inf, isfinite
from typing import Final

from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from appliance.telemetry.ledger import Bins, Labels, Totals
from appliance.telemetry.names import METRICS, Metric
from appliance.telemetry.prometheus_examples import COUNTED, Examples, TraceExample

OPENMETRICS: Final = "application/openmetrics-text"
MAX_SERIES: Final = 20_000
"""Series whose text is remembered."""


def negotiate(accept: str) -> tuple[bool, str]:
    """Return whether an `Accept` header gets OpenMetrics, and the content type."""
    _, content_type = choose_encoder(accept)
    return content_type.startswith(OPENMETRICS), content_type


def render(totals: Totals, examples: Examples, accept: str) -> tuple[bytes, str]:
    """Return the exposition and its content type, for the given `Accept` header."""
    is_open, content_type = negotiate(accept)
    lines: list[str] = []
    for metric in METRICS.values():
        lines.extend(_head(metric, is_open))
        if metric.kind == "histogram":
            lines.extend(_histograms(metric, totals, examples if is_open else {}))
        else:
            lines.extend(_values(metric, totals, examples if is_open else {}))
    if is_open:
        lines.append("# EOF")
    lines.append("")
    return "\n".join(lines).encode(), content_type


def _head(metric: Metric, is_open: bool) -> Iterator[str]:
    name = metric.name.removesuffix("_total") if is_open else metric.name
    yield f"# HELP {name} {_escape(metric.help, quotes=is_open)}"
    yield f"# TYPE {name} {metric.kind}"


def _values(metric: Metric, totals: Totals, examples: Examples) -> Iterator[str]:
    name = metric.name
    series = totals.values.get(name, {})
    if not metric.labels and not series:
        series = {(): 0}  # a count that never moved is 0, not absent
    for labels, value in series.items():
        example = examples.get((name, labels, COUNTED))
        yield f"{_series(name, labels)}{_number(value)}{_exemplar(example)}"


def _histograms(metric: Metric, totals: Totals, examples: Examples) -> Iterator[str]:
    name = metric.name
    for labels, bins in totals.histograms.get(name, {}).items():
        yield from _buckets(name, labels, bins, examples)
        yield f"{_series(f'{name}_count', labels, name)}{sum(bins.counts)}"
        yield f"{_series(f'{name}_sum', labels, name)}{_number(bins.sum)}"


def _buckets(name: str, labels: Labels, bins: Bins, examples: Examples) -> Iterator[str]:
    total = 0
    for index, (prefix, count) in enumerate(zip(_edges(name, labels), bins.counts, strict=True)):
        total += count
        example = examples.get((name, labels, index)) if count and examples else None
        yield f"{prefix}{total}{_exemplar(example)}" if example else f"{prefix}{total}"


@lru_cache(MAX_SERIES)
def _series(name: str, labels: Labels, family: str | None = None) -> str:
    """Return a sample's text up to its value."""
    pairs = ",".join(_pairs(family or name, labels))
    return f"{name}{{{pairs}}} " if pairs else f"{name} "


@lru_cache(MAX_SERIES)
def _edges(name: str, labels: Labels) -> tuple[str, ...]:
    """Return the texts of a histogram's buckets up to their counts."""
    pairs = _pairs(name, labels)
    edges = (*METRICS[name].buckets, inf)
    texts = (f'le="{floatToGoString(edge)}"' for edge in edges)
    return tuple(f"{name}_bucket{{{','.join([*pairs, text])}}} " for text in texts)


def _pairs(family: str, labels: Labels) -> list[str]:
    named = zip(METRICS[family].labels, labels, strict=True)
    return [f'{label}="{_escape(value, quotes=True)}"' for label, value in named]


def _number(value: float) -> str:
    if isfinite(value):
        return repr(value)
    return "NaN" if value != value else f"{'+' if value > 0 else '-'}Inf"


def _exemplar(example: TraceExample | None) -> str:
    if example is None:
        return ""
    return f' # {{trace_id="{example.trace_id}"}} {_number(example.value)} {example.at_s:.3f}'


def _escape(text: str, *, quotes: bool) -> str:
    escaped = text.replace("\\", r"\\").replace("\n", r"\n")
    return escaped.replace('"', r"\"") if quotes else escaped
