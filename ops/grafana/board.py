"""What a dashboard is, and how it becomes Grafana's: variables, links, annotations, panels."""

import json
import re
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from ops.grafana.panels import DATASOURCE, Row, draw

TAG = "quarterdeck"
TRACES_URL = "http://127.0.0.1:16686"
"""Where the compose file puts Jaeger."""
STEP = "10s"
"""Of the annotations' queries."""

CHOICES = {
    "engine": ("Engine", "label_values(quarterdeck_engine_state{instance=\"$instance\"}, engine)"),
    "model": (
        "Model",
        "label_values(quarterdeck_prompt_tokens_total{instance=\"$instance\"}, model)",
    ),
    "gateway": (
        "Gateway",
        "label_values(quarterdeck_gateway_restarts_total{instance=\"$instance\"}, gateway)",
    ),
    "process": (
        "Process",
        "label_values(quarterdeck_process_resident_bytes{instance=\"$instance\"}, process)",
    ),
}  # fmt: skip
"""Variables of which a dashboard has those that its queries use: label, values."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """Marks on the time axis wherever the expression is above 0."""

    name: str
    expr: str
    title: str
    """With `{{label}}`."""
    colour: str


ANNOTATIONS = (
    Annotation(
        "Engine restarts",
        'changes(quarterdeck_engine_restarts_total{instance="$instance"}[30s]) > 0',
        "{{engine}} restarted",
        "orange",
    ),
    Annotation(
        "Engine gave up",
        'quarterdeck_engine_state{instance="$instance",state=~"crash_loop|failed"} > 0',
        "{{engine}}: {{state}}",
        "red",
    ),
    Annotation(
        "Gateway restarts",
        'changes(quarterdeck_gateway_restarts_total{instance="$instance"}[30s]) > 0',
        "{{gateway}} restarted",
        "orange",
    ),
    Annotation(
        "Appliance starts",
        'changes(quarterdeck_start_time_seconds{instance="$instance"}[30s]) > 0',
        "the appliance started",
        "blue",
    ),
    Annotation(
        "Alerts",
        'ALERTS{instance="$instance",alertname=~"Quarterdeck.*",alertstate="firing"} > 0',
        "{{alertname}}",
        "red",
    ),
)


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard; `uid` names its file and its address."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]


def render(board: Board) -> str:
    """Return the dashboard as the JSON that Grafana imports, always the same for the same board."""
    built = (
        dashboard.Dashboard(f"Quarterdeck: {board.title}")
        .uid(f"quarterdeck-{board.uid}")
        .description(board.description)
        .tags([TAG])
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("10s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .variables(_variables(board))
        .links(_links())
        .annotations([_annotation(annotation) for annotation in ANNOTATIONS])
    )
    number = 0
    for row in board.rows:
        built = built.with_row(dashboard.Row(row.title).id(1000 + number))
        for panel in row.panels:
            number += 1
            built = built.with_panel(draw(panel, number, _trace_links()))
    document: dict[str, Any] = json.loads(json.dumps(built.build(), cls=JSONEncoder))
    _name_annotations(document)
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _variables(board: Board) -> list[Any]:
    queries = [q.expr for row in board.rows for panel in row.panels for q in panel.queries]
    used = {name for query in queries for name in re.findall(r"\$(\w+)", query)}
    chosen = [name for name in CHOICES if name in used]
    return [
        dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"),
        _choice("instance", "Appliance", "label_values(quarterdeck_build_info, instance)"),
        *(_choice(name, *CHOICES[name], several=True) for name in chosen),
        _text("traces", "Trace UI", "Base URL of Jaeger.", TRACES_URL),
        _text("trace", "Trace id", "From an exemplar or an answer; see the link above.", ""),
    ]


def _text(name: str, label: str, description: str, value: str) -> dashboard.TextBoxVariable:
    box = dashboard.TextBoxVariable(name).label(label).description(description)
    return box.default_value(value).current(models.VariableOption(text=value, value=value))


def _choice(
    name: str, label: str, values: str, *, several: bool = False
) -> dashboard.QueryVariable:
    variable = (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query(values)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )
    if not several:
        return variable
    everything = models.VariableOption(selected=True, text=["All"], value=["$__all"])
    return variable.multi(True).include_all(True).all_value(".*").current(everything)


def _links() -> list[Any]:
    boards = (
        dashboard.DashboardLink("Dashboards")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(True)
        .include_vars(True)
        .keep_time(True)
    )
    trace = (
        dashboard.DashboardLink("Open the trace")
        .type(models.DashboardLinkType.LINK)
        .icon("external link")
        .tooltip("The trace whose id stands in the field: also `quarterdeck trace ID`")
        .url("${traces}/trace/${trace}")
        .target_blank(True)
    )
    return [boards, trace]


def _trace_links() -> list[dashboard.DashboardLink]:
    """Links of a point of a latency: Grafana's times are milliseconds, Jaeger's microseconds."""
    around = "start=${__from}000&end=${__to}000&limit=50&lookback=custom"
    return [
        dashboard.DashboardLink("Traces of the time shown")
        .type(models.DashboardLinkType.LINK)
        .url(f"${{traces}}/search?service=quarterdeck&{around}")
        .target_blank(True),
    ]


def _annotation(annotation: Annotation) -> dashboard.AnnotationQuery:
    return (
        dashboard.AnnotationQuery()
        .name(annotation.name)
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color(annotation.colour)
        .expr(annotation.expr)
    )


def _name_annotations(document: dict[str, Any]) -> None:
    """Add what the SDK has no field for: how often to ask, and what the marks say."""
    found = document["annotations"]["list"]
    for entry, annotation in zip(found, ANNOTATIONS, strict=True):
        entry |= {"titleFormat": annotation.title, "step": STEP, "useValueForTime": False}
