"""What a panel of a dashboard is, and how it becomes Grafana's."""

from dataclasses import dataclass
from typing import Literal

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as dashboard_models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models import prometheus as prometheus_models

Kind = Literal["lines", "stack", "stat", "heatmap", "states", "table"]
Drawn = (
    timeseries.Panel | stat.Panel | heatmap.Panel | statetimeline.Panel | table.Panel
)  # fmt: skip

DATASOURCE = dashboard_models.DataSourceRef(type_val="prometheus", uid="${datasource}")

# What queries select by. An appliance is one Prometheus target, so `instance` names it.
HERE = '{instance="$instance"}'
ENGINE = '{instance="$instance",engine=~"$engine"}'
MODEL = '{instance="$instance",model=~"$model"}'
GATEWAY = '{instance="$instance",gateway=~"$gateway"}'
PROCESS = '{instance="$instance",process=~"$process"}'
RANGE = "[$__rate_interval]"

GREEN, AMBER, RED = "green", "orange", "red"
SHORT = 5
"""Grid rows of a single figure."""
TALL = 8


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression and what its series are called."""

    expr: str
    legend: str
    exemplars: bool = False
    """The expression is of a metric whose samples carry trace ids."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel; its description is `shows` and `when_bad`.

    Args:
        title: Unique in its dashboard.
        shows: What the figures are.
        when_bad: What bad looks like, and what to do then.
        queries: At least one.
        unit: Grafana's name of the unit.
        kind: How it is drawn.
        width: Of 24 grid columns.
        thresholds: (value, colour) from the lowest; the base is green unless it says otherwise.
        maximum: Upper end of the axis where it is known.
    """

    title: str
    shows: str
    when_bad: str
    queries: tuple[Query, ...]
    unit: str
    kind: Kind = "lines"
    width: int = 8
    thresholds: tuple[tuple[float, str], ...] = ()
    maximum: float | None = None
    decimals: int | None = None

    @property
    def description(self) -> str:
        """The text behind the panel's (i)."""
        return f"{self.shows}\n\n**When it looks bad:** {self.when_bad}"


@dataclass(frozen=True, slots=True)
class Row:
    """A titled group of panels."""

    title: str
    panels: tuple[Panel, ...]


def quantiles(
    histogram: str, by: str, where: str, *, exemplars: bool = False
) -> tuple[Query, Query]:
    """Return the median and the 95th percentile of a histogram, per value of one label."""
    rates = f"sum by ({by}, le) (rate({histogram}_bucket{where}{RANGE}))"
    return (
        Query(f"histogram_quantile(0.5, {rates})", f"{{{{{by}}}}} p50"),
        Query(f"histogram_quantile(0.95, {rates})", f"{{{{{by}}}}} p95", exemplars=exemplars),
    )


def draw(panel: Panel, number: int, trace_links: list[dashboard.DashboardLink]) -> Drawn:
    """Build the panel; `number` is its id, unique in the dashboard."""
    drawn = _draw_kind(panel)
    drawn = (
        drawn.id(number)
        .title(panel.title)
        .description(panel.description)
        .datasource(DATASOURCE)
        .span(panel.width)
        .height(SHORT if panel.kind == "stat" else TALL)
        .unit(panel.unit)
        .thresholds(_thresholds(panel.thresholds))
    )
    for index, query in enumerate(panel.queries):
        drawn = drawn.with_target(_target(panel, query, chr(ord("A") + index)))
    if panel.decimals is not None:
        drawn = drawn.decimals(panel.decimals)
    if panel.maximum is not None and not isinstance(drawn, heatmap.Panel):
        drawn = drawn.min(0).max(panel.maximum)
    if any(query.exemplars for query in panel.queries) and isinstance(drawn, timeseries.Panel):
        drawn = drawn.data_links([*trace_links])
    return drawn


def _target(panel: Panel, query: Query, name: str) -> Builder[prometheus_models.Dataquery]:
    target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(name)
    target = target.editor_mode(prometheus_models.QueryEditorMode.CODE)
    if panel.kind == "table":
        return target.instant().format(prometheus_models.PromQueryFormat.TABLE)
    if panel.kind == "heatmap":
        target = target.format(prometheus_models.PromQueryFormat.HEATMAP)
    return target.range().exemplar(query.exemplars)


def _draw_kind(panel: Panel) -> Drawn:
    match panel.kind:
        case "lines" | "stack":
            return _lines(stacked=panel.kind == "stack")
        case "stat":
            return _figure()
        case "heatmap":
            return _heatmap(panel.unit)
        case "states":
            return statetimeline.Panel().merge_values(True).legend(_legend(()))
        case "table":
            return _table()


def _lines(*, stacked: bool) -> timeseries.Panel:
    lines = (
        timeseries.Panel()
        .min(0)
        .line_width(1)
        .fill_opacity(30 if stacked else 0)
        .show_points(common_models.VisibilityMode.NEVER)
        .legend(_legend(("mean", "max", "lastNotNull")))
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_models.TooltipDisplayMode.MULTI)
            .sort(common_models.SortOrder.DESCENDING)
        )
    )
    if stacked:
        return lines.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    return lines


def _figure() -> stat.Panel:
    return (
        stat.Panel()
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(common_models.BigValueGraphMode.AREA)
        .color_mode(common_models.BigValueColorMode.VALUE)
    )


def _heatmap(unit: str) -> heatmap.Panel:
    colours = (
        heatmap.HeatmapColorOptions()
        .mode(heatmap_models.HeatmapColorMode.SCHEME)
        .scheme("Oranges")
        .steps(64)
    )
    return (
        heatmap.Panel()
        .color(colours)
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .cell_gap(1)
        .hide_legend()
    )


def _table() -> table.Panel:
    hidden = {"Time": True, "__name__": True, "job": True, "instance": True}
    organize = dashboard_models.DataTransformerConfig(
        id_val="organize", options={"excludeByName": hidden}
    )
    return table.Panel().show_header(True).with_transformation(organize)


def _legend(figures: tuple[str, ...]) -> common.VizLegendOptions:
    mode = common_models.LegendDisplayMode
    return (
        common.VizLegendOptions()
        .display_mode(mode.TABLE if figures else mode.LIST)
        .placement(common_models.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(list(figures))
    )


def _thresholds(steps: tuple[tuple[float, str], ...]) -> dashboard.ThresholdsConfig:
    found = [dashboard_models.Threshold(value=value, color=colour) for value, colour in steps]
    if not found or found[0].value != 0:
        found.insert(0, dashboard_models.Threshold(value=0, color=GREEN))
    first = dashboard_models.Threshold(value=None, color=found[0].color)
    return (
        dashboard.ThresholdsConfig()
        .mode(dashboard_models.ThresholdsMode.ABSOLUTE)
        .steps([first, *found[1:]])
    )
