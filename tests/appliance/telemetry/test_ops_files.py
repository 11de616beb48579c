"""The shipped Prometheus configuration and Grafana dashboard ask for metrics that exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from appliance.telemetry.names import METRICS, Metric

OPS = Path(__file__).parents[3] / "ops"
DASHBOARD = OPS / "grafana" / "overview.json"
RULES = OPS / "prometheus" / "quarterdeck.rules.yml"
SELECTOR = re.compile(r"\b(quarterdeck_\w+)(?:\{([^}]*)\})?")
GROUPING = re.compile(r"by \(([^)]*)\)")
OF_PROMETHEUS = {"job", "instance", "le"}


def metric_of(series: str) -> Metric:
    """The metric that a series name belongs to; histograms have three."""
    if series in METRICS:
        return METRICS[series]
    base, _, suffix = series.rpartition("_")
    metric = METRICS[base]
    assert metric.kind == "histogram"
    assert suffix in ("bucket", "sum", "count")
    return metric


def assert_known(query: str) -> None:
    """Every metric exists and every label that is grouped or filtered by is one of its labels."""
    found = SELECTOR.findall(query)
    assert found, query
    labels: set[str] = set()
    for series, _ in found:
        labels.update(metric_of(series).labels)
    used = {name.strip() for group in GROUPING.findall(query) for name in group.split(",")}
    used |= {name for _, where in found for name in re.findall(r"(\w+)\s*=", where)}
    assert used <= labels | OF_PROMETHEUS, query


def rules() -> dict[str, str]:
    """Expressions by recorded name."""
    found = re.findall(r"record: (\S+)\n\s+expr: >-\n((?: {10}.*\n)+)", RULES.read_text())
    return {record: " ".join(query.split()) for record, query in found}


def panels() -> list[dict]:
    return json.loads(DASHBOARD.read_text())["panels"]


def test_the_dashboard_has_ten_panels_that_explain_themselves():
    dashboard = json.loads(DASHBOARD.read_text())

    assert len(panels()) == 10
    assert len({panel["id"] for panel in panels()}) == 10
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()}
    assert len(places) == 10
    for panel in panels():
        assert panel["title"]
        assert len(panel["description"]) > 40
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["targets"]
        assert panel["datasource"]["uid"] == "${datasource}"
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert variables == {"datasource", "job"}
    assert dashboard["schemaVersion"] >= 39


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_each_query_of_a_panel_names_metrics_and_labels_that_exist(panel: dict):
    for target in panel["targets"]:
        assert target["legendFormat"]
        assert_known(target["expr"])
        if "rate(" in target["expr"]:
            for series, _ in SELECTOR.findall(target["expr"]):
                assert metric_of(series).kind != "gauge", "rates are of counters"


def test_the_recording_rules_name_metrics_that_exist():
    for query in rules().values():
        assert_known(query.replace("model_name", "model"))


def test_the_rules_give_vllms_names_with_the_label_that_its_dashboards_select_by():
    for record, query in rules().items():
        assert record.startswith("vllm:")
        assert "model_name) (" in query or "model_name, le) (" in query
    histograms = {record.removesuffix("_bucket") for record in rules() if "_bucket" in record}
    assert len(histograms) == 6
    for name in histograms:
        assert {f"{name}_sum", f"{name}_count"} <= set(rules())


def test_promtool_accepts_the_configuration_and_the_rules(tmp_path: Path):
    promtool = shutil.which("promtool")
    for file in (OPS / "prometheus").glob("*.yml"):
        shutil.copy(file, tmp_path)
    (tmp_path / "quarterdeck.token").write_text("secret")
    if promtool is None:
        return  # the checks above need no Prometheus

    checked = subprocess.run(
        [promtool, "check", "config", str(tmp_path / "prometheus.yml")],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(rules())} rules found" in checked.stdout


def test_prometheus_scrapes_the_control_plane_with_a_token_beside_its_configuration():
    text = (OPS / "prometheus" / "prometheus.yml").read_text()

    assert "credentials_file: quarterdeck.token" in text
    assert '"127.0.0.1:8001"' in text
    assert "scrape_interval: 5s" in text
