"""promtool accepts the rules, they ask for what exists, alerts fire when they must, only then."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ops.alert_cases import SCENES, Case, Group
from tests.ops.texts import ALERTS, OPS, VLLM, alerts, reader, rules

WINDOWS = {"5m": 5, "30m": 30, "1h": 60, "2h": 120, "6h": 360, "1d": 1440, "3d": 4320}
BURNS = {"1h": ("14.4", "5m"), "6h": ("6", "30m"), "1d": ("3", "2h"), "3d": ("1", "6h")}


def promtool(*arguments: str, cwd: Path | None = None) -> str:
    run = subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, timeout=60, check=False, cwd=cwd
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


def of(alert: dict[str, Any]) -> str:
    window = alert["labels"].get("window", "")
    return f"{alert['alert']} {window}".strip()


def test_promtool_accepts_the_rules():
    said = promtool("check", "rules", str(ALERTS), str(VLLM))

    assert f"{len(rules(ALERTS))} rules found" in said
    assert f"{len(rules(VLLM))} rules found" in said


@pytest.mark.parametrize("alert", alerts(), ids=of)
def test_an_alert_says_how_bad_it_is_what_it_is_and_where_to_read_on(alert: dict[str, Any]):
    name, notes = alert["alert"], alert["annotations"]
    assert re.fullmatch(r"Quarterdeck[A-Z]\w+", name)
    assert alert["labels"]["severity"] in {"page", "ticket"}
    assert set(notes) == {"summary", "description", "runbook_url"}
    assert notes["runbook_url"] == f"ops/runbooks/{name}.md"
    result = reader().read(alert["expr"])
    used = set(re.findall(r"\$labels\.(\w+)", notes["summary"] + notes["description"]))
    assert used <= result.labels
    assert "{{" in notes["summary"] + notes["description"]


def test_every_alert_has_a_short_runbook_and_every_runbook_an_alert():
    pages = {path.stem: path.read_text() for path in (OPS / "runbooks").glob("*.md")}
    assert set(pages) == {alert["alert"] for alert in alerts()}
    for name, text in pages.items():
        assert text.startswith(f"# {name}\n")
        assert "\n## See it\n" in text
        assert "\n## Do\n" in text
        assert "quarterdeck " in text
        assert len(text.splitlines()) <= 45, f"{name} is longer than a page"
        for other in re.findall(r"(Quarterdeck\w+)\.md", text):
            assert other in pages


def test_the_burn_rates_are_those_of_the_workbook():
    found = [alert for alert in alerts() if "window" in alert["labels"]]
    assert len(found) == 12
    for alert in found:
        rate, short = BURNS[alert["labels"]["window"]]
        assert alert["expr"].count(f"> on (job, instance, slo) {rate} * (1 - ") == 2
        assert f"slo_bad_ratio:{short}" in alert["expr"]
        paged = alert["labels"]["window"] in ("1h", "6h")
        assert alert["labels"]["severity"] == ("page" if paged else "ticket")


def test_no_alert_lacks_a_positive_or_a_negative_case():
    cases = [case for scene in SCENES for group in scene for case in group]
    for alert in alerts():
        window = alert["labels"].get("window")
        own = [case for case in cases if f"Quarterdeck{case.name}" == alert["alert"]]
        assert [case for case in own if case.labels and case.window == window], of(alert)
        assert [case for case in own if not case.labels], of(alert)
    for case in cases:
        assert bool(case.says) == bool(case.labels) != bool(case.why)


def expected(case: Case) -> dict[str, Any]:
    """The alert of a case, as promtool wants it."""
    rule = next(
        alert
        for alert in alerts()
        if alert["alert"] == f"Quarterdeck{case.name}"
        and alert["labels"].get("window") == case.window
    )
    notes = rule["annotations"]
    summary = re.sub(
        r"\{\{ \$labels\.(\w+) \}\}", lambda label: case.labels[label[1]], notes["summary"]
    )
    return {
        "exp_labels": case.labels | rule["labels"],
        "exp_annotations": notes | {"summary": summary, "description": case.says},
    }


def check_of(group: Group) -> dict[str, Any]:
    return {
        "eval_time": group[0].at,
        "alertname": f"Quarterdeck{group[0].name}",
        "exp_alerts": [expected(case) for case in group if case.labels],
    }


def only_groups(tmp_path: Path, *, are_burns: bool) -> Path:
    """Those rules of the file that the tests are about: the others cost time only."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    kept = [group for group in groups if group["name"].startswith("quarterdeck-slo") == are_burns]
    assert kept
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": kept}))
    return path


@pytest.mark.parametrize("are_burns", [False, True])
def test_every_alert_fires_when_it_must_and_only_then(tmp_path: Path, are_burns: bool):
    tests = []
    for scene in SCENES:
        if ("BudgetBurn" in scene[0][0].name) != are_burns:
            continue
        series = {name: values for group in scene for name, values in group[0].series.items()}
        inputs = [{"series": name, "values": values} for name, values in series.items()]
        checks = [check_of(group) for group in scene]
        tests.append({"interval": "1m", "input_series": inputs, "alert_rule_test": checks})
    document = {
        "rule_files": [str(only_groups(tmp_path, are_burns=are_burns))],
        "evaluation_interval": "1m" if are_burns else "30s",
        "tests": tests,
    }
    path = tmp_path / "alerts.test.yml"
    path.write_text(yaml.safe_dump(document))

    assert "SUCCESS" in promtool("test", "rules", str(path))


@pytest.mark.parametrize(("names", "step_m"), [("5m 30m 1h 2h 6h", 5), ("1d 3d", 60)])
def test_a_ratio_looks_back_as_far_as_its_name_says(tmp_path: Path, names: str, step_m: int):
    family = 'quarterdeck_slo_events_total{job="quarterdeck",instance="a",slo="ttft",outcome='
    series = [
        {"series": f'{family}"good"}}', "values": "0+10x100"},
        {"series": f'{family}"bad"}}', "values": "0x1 5x100"},  # in the second step
    ]
    checks = [
        {
            "expr": f"sum(quarterdeck:slo_bad_ratio:{name}) > bool 0",
            "eval_time": f"{WINDOWS[name] + later * step_m}m",
            "exp_samples": [{"labels": "{}", "value": int(remembered)}],
        }
        for name in names.split()
        for later, remembered in ((1, True), (3, False))
    ]
    document = {
        "rule_files": [str(only_groups(tmp_path, are_burns=True))],
        "evaluation_interval": f"{step_m}m",
        "tests": [
            {"interval": f"{step_m}m", "input_series": series, "promql_expr_test": checks},
        ],
    }
    path = tmp_path / "windows.test.yml"
    path.write_text(yaml.safe_dump(document))

    assert "SUCCESS" in promtool("test", "rules", str(path))


def test_the_rules_give_vllms_names_with_the_label_that_its_dashboards_select_by():
    found = {rule["record"]: rule["expr"] for rule in rules(VLLM)}
    for record, expr in found.items():
        assert record.startswith("vllm:")
        labels = reader().read(expr).labels
        assert {"model_name", "job", "instance"} <= labels
        assert ("le" in labels) == record.endswith("_bucket")
    histograms = {record.removesuffix("_bucket") for record in found if record.endswith("_bucket")}
    assert len(histograms) == 9
    for name in histograms:
        assert {f"{name}_sum", f"{name}_count"} <= set(found)


def test_a_dashboard_made_for_vllm_finds_its_figures(tmp_path: Path):
    labels = 'job="q",instance="a",engine="e0"'
    series = {
        f'quarterdeck_engine_info{{{labels},model="m"}}': "1x5",
        f"quarterdeck_engine_running_requests{{{labels}}}": "3x5",
        f'quarterdeck_cache_config_info{{{labels},block_size="16",num_gpu_blocks="64"}}': "1x5",
        'quarterdeck_inter_token_seconds_bucket{job="q",instance="a",model="m",le="0.1"}': "7x5",
    }
    of_engine = 'engine="e0",instance="a",job="q",model_name="m"'
    cache = f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="64",{of_engine}}}'
    gap = "vllm:inter_token_latency_seconds_bucket"
    wanted = [
        ("vllm:num_requests_running", f"vllm:num_requests_running{{{of_engine}}}", 3),
        ("vllm:cache_config_info", cache, 1),
        (gap, f'{gap}{{instance="a",job="q",le="0.1",model_name="m"}}', 7),
    ]
    checks = [
        {"expr": expr, "eval_time": "2m", "exp_samples": [{"labels": labels, "value": value}]}
        for expr, labels, value in wanted
    ]
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    document = {
        "rule_files": [str(VLLM)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": inputs, "promql_expr_test": checks}],
    }
    path = tmp_path / "vllm.test.yml"
    path.write_text(yaml.safe_dump(document))

    assert "SUCCESS" in promtool("test", "rules", str(path))
