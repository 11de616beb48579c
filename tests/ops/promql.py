"""Reads PromQL against the registry of metrics: which labels and which unit a result has.

An expression that groups, matches or filters by a label that is not there, or that can never match,
raises `WrongQueryError`: such a panel would stay empty without a word.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import promql_parser as promql

from appliance.telemetry.names import METRICS, Metric

TARGET = frozenset({"job", "instance"})
FOREIGN = {
    "up": TARGET,
    "ALERTS": TARGET | {"alertname", "alertstate", "severity", "window"},
}
"""What Prometheus makes itself."""

Unit = tuple[int, str]
"""Power of seconds, and what is counted: nothing special, bytes, floating point operations."""
PLAIN: Unit = (0, "")


class WrongQueryError(AssertionError):
    """The expression asks for something that does not exist."""


@dataclass(frozen=True)
class Result:
    """What an expression gives."""

    labels: frozenset[str]
    unit: Unit = PLAIN
    edge: Unit = PLAIN
    """Of buckets: the unit of their edges."""
    is_scalar: bool = False
    kind: str = "gauge"
    metrics: frozenset[str] = frozenset()


SCALAR = Result(frozenset(), is_scalar=True)


@dataclass
class Reader:
    """Reads expressions; `recorded` are the results of recording rules by name."""

    recorded: dict[str, Result] = field(default_factory=dict)

    def read(self, query: str) -> Result:
        """Parse and check an expression; Grafana's intervals are filled in."""
        text = re.sub(r"\$__(rate_interval|interval|range)", "1m", query)
        return self._visit(promql.parse(text))

    def _visit(self, node: object) -> Result:
        visits: dict[type, Callable[..., Result]] = {
            promql.VectorSelector: self._selector,
            promql.MatrixSelector: lambda n: self._selector(n.vector_selector),
            promql.SubqueryExpr: lambda n: self._visit(n.expr),
            promql.ParenExpr: lambda n: self._visit(n.expr),
            promql.UnaryExpr: lambda n: self._visit(n.expr),
            promql.NumberLiteral: lambda _: SCALAR,
            promql.StringLiteral: lambda _: SCALAR,
            promql.AggregateExpr: self._aggregate,
            promql.BinaryExpr: self._binary,
            promql.Call: self._call,
        }
        return visits[type(node)](node)

    def _selector(self, node: promql.VectorSelector) -> Result:
        name = node.name or ""
        result = self._series(name)
        for matcher in node.matchers.matchers:
            if matcher.name not in result.labels:
                raise WrongQueryError(f"{name} has no label {matcher.name}")
        return result

    def _series(self, name: str) -> Result:
        if name in FOREIGN:
            return Result(FOREIGN[name])
        if name in self.recorded:
            return self.recorded[name]
        metric, suffix = metric_of(name)
        labels = TARGET | set(metric.labels) | ({"le"} if suffix == "bucket" else set())
        unit = unit_of(metric.name) if suffix in ("", "sum") else PLAIN
        kind = "counter" if suffix else metric.kind
        return Result(
            frozenset(labels),
            unit,
            edge=unit_of(metric.name),
            kind=kind,
            metrics=frozenset({metric.name}),
        )

    def _aggregate(self, node: promql.AggregateExpr) -> Result:
        inner = self._visit(node.expr)
        modifier = node.modifier
        wanted = frozenset(modifier.labels) if modifier is not None else frozenset()
        if not wanted <= inner.labels:
            raise WrongQueryError(f"no label {sorted(wanted - inner.labels)} in {node.prettify()}")
        without = modifier is not None and modifier.type == promql.AggModifierType.Without
        unit = PLAIN if str(node.op) == "count" else inner.unit
        return replace(inner, labels=inner.labels - wanted if without else wanted, unit=unit)

    def _binary(self, node: promql.BinaryExpr) -> Result:
        left, right = self._visit(node.lhs), self._visit(node.rhs)
        metrics = left.metrics | right.metrics
        unit = _unit(str(node.op), left, right)
        if left.is_scalar or right.is_scalar:
            vector = right if left.is_scalar else left
            return replace(vector, unit=unit, metrics=metrics)
        matching = node.modifier.matching if node.modifier is not None else None
        if matching is None:
            if str(node.op) != "or" and left.labels != right.labels:
                raise WrongQueryError(f"never matches: {node.prettify()}")
            return replace(left, unit=unit, metrics=metrics)
        return replace(left, labels=_matched(node, left, right), unit=unit, metrics=metrics)

    def _call(self, node: promql.Call) -> Result:
        name = node.func.name
        args = [self._visit(argument) for argument in node.args]
        if name in ("time", "vector"):
            return Result(
                frozenset(), (1, "") if name == "time" else PLAIN, is_scalar=name == "time"
            )
        if name == "histogram_quantile":
            if "le" not in args[1].labels:
                raise WrongQueryError(f"no le in {node.prettify()}")
            return replace(args[1], labels=args[1].labels - {"le"}, unit=args[1].edge)
        if name == "label_replace":
            source = node.args[3].val
            if source not in args[0].labels:
                raise WrongQueryError(f"no label {source} in {node.prettify()}")
            return replace(args[0], labels=args[0].labels | {node.args[1].val})
        if name in ("rate", "increase"):
            if args[0].kind != "counter":
                raise WrongQueryError(f"a rate of a gauge: {node.prettify()}")
            power, what = args[0].unit
            return replace(args[0], unit=(power - (name == "rate"), what), kind="gauge")
        return args[0]


def metric_of(series: str) -> tuple[Metric, str]:
    """Return the metric that a series belongs to, and `bucket`, `sum` or `count` of a histogram."""
    if series in METRICS and METRICS[series].kind != "histogram":
        return METRICS[series], ""
    base, _, suffix = series.rpartition("_")
    metric = METRICS.get(base)
    if metric is None or metric.kind != "histogram" or suffix not in ("bucket", "sum", "count"):
        raise WrongQueryError(f"no metric gives {series}")
    return metric, suffix


def unit_of(name: str) -> Unit:
    """Return the unit that a metric's name carries."""
    for part, unit in (
        ("_bytes_per_second", (-1, "bytes")),
        ("_peak_flops", (-1, "flop")),
        ("_flops", (0, "flop")),
        ("_seconds", (1, "")),
        ("_bytes", (0, "bytes")),
    ):
        if part in name:
            return unit
    return PLAIN


def _matched(node: promql.BinaryExpr, left: Result, right: Result) -> frozenset[str]:
    matching = node.modifier.matching
    if matching.type != promql.LabelModifierType.Include:
        raise WrongQueryError(f"use on(), not ignoring(): {node.prettify()}")
    on = frozenset(matching.labels)
    if not on <= left.labels & right.labels:
        raise WrongQueryError(f"{sorted(on)} is not on both sides of {node.prettify()}")
    taken = frozenset(node.modifier.group_labels or ())
    if not taken <= right.labels:
        raise WrongQueryError(f"no label {sorted(taken)} on the right of {node.prettify()}")
    keeps_left = str(node.op) in ("and", "or", "unless")
    if keeps_left or node.modifier.card == promql.VectorMatchCardinality.ManyToOne:
        return left.labels | taken
    return on


def _unit(operator: str, left: Result, right: Result) -> Unit:
    if operator == "/":
        power = left.unit[0] - right.unit[0]
        return power, "" if left.unit[1] == right.unit[1] else left.unit[1]
    if operator == "*":
        return left.unit[0] + right.unit[0], left.unit[1] or right.unit[1]
    if operator in ("+", "-") and left.unit != right.unit:
        raise WrongQueryError(f"{left.unit} {operator} {right.unit}")
    return right.unit if left.is_scalar else left.unit
