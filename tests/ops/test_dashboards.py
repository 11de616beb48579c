"""The committed dashboards are what the code makes, explain themselves, and ask for what exists."""

import copy
import json
import re
from typing import Any

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from appliance.telemetry import metrics_of_engines, metrics_of_processes, metrics_of_requests
from appliance.telemetry.names import METRICS, Metric
from ops.grafana import build
from tests.ops.promql import PLAIN, WrongQueryError
from tests.ops.texts import alerts, dashboards, panels, reader

BOARDS = dashboards()
NAMES = {
    "overview.json", "request-path.json", "engine-step.json", "kv-cache.json", "lora.json",
    "slo.json", "processes.json",
}  # fmt: skip
GRAFANA_UNITS = {
    (0, ""): {"none", "percentunit"},
    (1, ""): {"s"},
    (-1, ""): {"reqps", "ops", "cps"},
    (0, "bytes"): {"bytes"},
    (-1, "bytes"): {"binBps"},
    (-1, "flop"): {"flops"},
}
WITH_EXEMPLARS = {
    "quarterdeck_time_to_first_token_seconds",
    "quarterdeck_time_per_output_token_seconds",
    "quarterdeck_request_duration_seconds",
    "quarterdeck_queue_seconds",
    "quarterdeck_requests_rejected_total",
    "quarterdeck_requests_ended_total",
    "quarterdeck_slo_events_total",
}
ALL_PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}")
    for name, board in BOARDS.items()
    for panel in panels(board)
]


def test_the_committed_files_are_what_the_code_makes():
    assert set(BOARDS) == NAMES
    assert build.stale() == [], "run `python -m ops.grafana.build`"


@pytest.mark.parametrize("name", sorted(NAMES))
def test_grafanas_schema_reads_a_dashboard_back(name: str):
    plugins.register_default_plugins()
    board = copy.deepcopy(BOARDS[name])
    back = json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))
    for note in board["annotations"]["list"]:  # what the schema leaves open
        assert {note.pop("step"), note.pop("useValueForTime")} == {"10s", False}
        assert note.pop("titleFormat")
    for panel, read in zip(board["panels"], back["panels"], strict=True):
        read.get("fieldConfig", {}).get("defaults", {}).pop("custom", None)
        panel.get("fieldConfig", {}).get("defaults", {}).pop("custom", None)
    assert back == board


def test_what_is_stale_is_named(tmp_path):
    for name, text in build.documents().items():
        (tmp_path / name).write_text(text)
    (tmp_path / "slo.json").write_text("{}")
    (tmp_path / "lora.json").unlink()
    (tmp_path / "old.json").write_text("{}")

    assert build.stale(tmp_path) == ["lora.json", "old.json", "slo.json"]


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_dashboard_is_whole(name: str):
    board = BOARDS[name]
    assert board["uid"] == "quarterdeck-" + name.removesuffix(".json")
    assert board["title"].startswith("Quarterdeck: ")
    assert board["description"]
    assert board["tags"] == ["quarterdeck"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in panels(board)]
    assert len(set(titles)) == len(titles)
    links = {link["type"]: link for link in board["links"]}
    assert links["dashboards"]["tags"] == ["quarterdeck"]
    assert links["dashboards"]["includeVars"]
    assert links["link"]["url"] == "${traces}/trace/${trace}"


@pytest.mark.parametrize("name", sorted(NAMES))
def test_panels_fill_the_grid_without_overlap(name: str):
    taken: set[tuple[int, int]] = set()
    for panel in BOARDS[name]["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_dashboard_has_the_variables_that_it_uses_and_no_others(name: str):
    board = BOARDS[name]
    asked = " ".join(t["expr"] for panel in panels(board) for t in panel["targets"])
    asked += " ".join(note["expr"] for note in board["annotations"]["list"])
    used = set(re.findall(r"\$(\w+)", asked)) - {"__rate_interval"}

    variables = {variable["name"] for variable in board["templating"]["list"]}
    assert variables == used | {"datasource", "traces", "trace"}
    assert "instance" in used


def test_the_variables_are_filled_from_series_that_exist():
    for board in BOARDS.values():
        for variable in board["templating"]["list"]:
            if variable["type"] != "query":
                continue
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
            assert found is not None, variable["query"]
            assert found[2] in reader().read(found[1]).labels
            assert variable["refresh"] == 2


@pytest.mark.parametrize("panel", ALL_PANELS)
def test_a_panel_says_what_it_shows_and_what_to_do(panel: dict[str, Any]):
    shows, _, when_bad = panel["description"].partition("\n\n**When it looks bad:** ")
    assert len(shows) > 15
    assert len(when_bad) > 8
    assert panel["datasource"]["uid"] == "${datasource}"
    assert panel["targets"]


@pytest.mark.parametrize("panel", ALL_PANELS)
def test_the_queries_of_a_panel_can_have_an_answer(panel: dict[str, Any]):
    for target in panel["targets"]:
        result = reader().read(target["expr"])
        assert '"$instance"' in target["expr"]
        assert target["legendFormat"]
        legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert legend <= result.labels
        fixed = set(re.findall(r'(\w+)="', target["expr"]))
        lost = result.labels - legend - fixed - {"job", "instance"}
        if panel["type"] != "table":
            assert not lost, f"series that the legend does not tell apart: {lost}"


@pytest.mark.parametrize("panel", ALL_PANELS)
def test_the_unit_of_a_panel_is_that_of_its_queries(panel: dict[str, Any]):
    unit = panel["fieldConfig"]["defaults"]["unit"]
    if panel["type"] == "table":
        return
    for target in panel["targets"]:
        result = reader().read(target["expr"])
        asked = result.edge if panel["type"] == "heatmap" else result.unit
        assert unit in GRAFANA_UNITS[asked], target["expr"]
        if re.fullmatch(r"(sum|min|max)?\(?quarterdeck_\w+_ratio\{[^}]*\}\)?", target["expr"]):
            assert unit == "percentunit"


def test_annotations_mark_deaths_and_restarts():
    for board in BOARDS.values():
        notes = board["annotations"]["list"]
        assert {note["name"] for note in notes} >= {"Engine restarts", "Engine gave up", "Alerts"}
        for note in notes:
            labels = reader().read(note["expr"]).labels
            assert set(re.findall(r"\{\{(\w+)\}\}", note["titleFormat"])) <= labels


def test_latencies_show_exemplars_and_lead_to_traces():
    with_exemplars = [
        (panel, target)
        for board in BOARDS.values()
        for panel in panels(board)
        for target in panel["targets"]
        if target.get("exemplar")
    ]
    assert len(with_exemplars) >= 10
    for panel, target in with_exemplars:
        assert reader().read(target["expr"]).metrics <= WITH_EXEMPLARS
        assert panel["fieldConfig"]["defaults"]["links"][0]["url"].startswith("${traces}/")


def test_every_metric_is_on_a_panel_or_in_an_alert():
    shown: set[str] = set()
    for board in BOARDS.values():
        for panel in panels(board):
            for target in panel["targets"]:
                shown |= reader().read(target["expr"]).metrics
    for alert in alerts():
        shown |= reader().read(alert["expr"]).metrics

    assert set(METRICS) - shown == set()


@pytest.mark.parametrize(
    ("query", "what"),
    [
        ("quarterdeck_no_such_thing", "no metric gives"),
        ("sum by (model) (quarterdeck_engine_steps_total)", "no label"),
        ('quarterdeck_engine_steps_total{gateway="x"}', "has no label"),
        ("rate(quarterdeck_engine_running_requests[1m])", "a rate of a gauge"),
        ("histogram_quantile(0.5, sum(rate(quarterdeck_hop_seconds_bucket[1m])))", "no le in"),
        ("quarterdeck_hop_seconds", "no metric gives"),
        ("quarterdeck_kv_cache_used_ratio / quarterdeck_requests_running", "never matches"),
        ("time() - quarterdeck_engine_resident_bytes", " - "),
    ],
)
def test_a_query_that_would_stay_empty_is_found(query: str, what: str):
    with pytest.raises(WrongQueryError, match=re.escape(what)):
        reader().read(query)


def test_units_follow_the_operations():
    read = reader().read
    assert read("rate(quarterdeck_engine_step_seconds_total[1m])").unit == PLAIN
    assert read("quarterdeck_engine_resident_bytes").unit == (0, "bytes")
    assert read("rate(quarterdeck_engine_flops_total[1m])").unit == (-1, "flop")
    assert read("time() - quarterdeck_start_time_seconds").unit == (1, "")


def test_no_other_name_hides_a_metric():
    for module in (metrics_of_engines, metrics_of_processes, metrics_of_requests):
        for name, value in vars(module).items():
            if isinstance(value, Metric):
                assert METRICS.get(value.name) is value, name
