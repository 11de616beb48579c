"""`slo` against a real control plane."""

import pytest

from appliance.supervisor.admin.schemas import BurnRate, SloRow
from tests.appliance.cli.conftest import Appliance, Run


def promise(name: str, state: str, **changes: object) -> SloRow:
    values = {
        "name": name,
        "objective": 0.99,
        "threshold_ms": None if name == "availability" else 500.0,
        "good": 990,
        "bad": 4,
        "ratio": 0.99598,
        "budget_left": 0.598,
        "burn": [BurnRate(window="1h", rate=0.42), BurnRate(window="5m", rate=None)],
        "state": state,
    }
    return SloRow.model_validate(values | changes)


def test_the_promises_are_a_table(run: Run, appliance: Appliance):
    appliance.hub.slo_rows = [promise("availability", "ok"), promise("ttft", "burning")]

    result = run("slo")

    assert result.code == 0
    header, first, second = result.out.splitlines()
    assert header.split()[:3] == ["PROMISE", "OBJECTIVE", "KEPT"]
    assert "availability" in first
    assert "99 %" in first
    assert "99.598 %" in first
    assert "59.8 %" in first
    assert "0.4x" in first
    assert "time to first token <= 500 ms" in second
    assert second.endswith("burning")
    assert result.err == ""


@pytest.mark.parametrize("state", ["paging", "broken"])
def test_an_alarm_is_exit_code_6_and_a_sentence(run: Run, appliance: Appliance, state: str):
    appliance.hub.slo_rows = [promise("tpot", state, budget_left=-0.5)]

    result = run("slo")

    assert result.code == 6
    assert "50.0 % over" in result.out
    assert "time per token: " in result.err


def test_json_is_the_list_of_rows(run: Run, appliance: Appliance):
    appliance.hub.slo_rows = [promise("ttft", "unknown", ratio=None, budget_left=None)]

    result = run("slo", "-o", "json")

    assert result.code == 0
    assert [(row["name"], row["state"], row["ratio"]) for row in result.json] == [
        ("ttft", "unknown", None)
    ]


def test_nothing_promised_is_said(run: Run, appliance: Appliance):
    appliance.hub.slo_rows = []

    result = run("slo")

    assert (result.code, result.out) == (0, "")
    assert "nothing is promised" in result.err
