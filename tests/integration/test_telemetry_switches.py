"""The telemetry's switches on a running appliance, and a journal that outlives it."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.appliance.telemetry.every_span import every_span
from tests.integration.appliance_process import ApplianceProcess, wait_until

pytestmark = pytest.mark.process


def trace_ids(appliance: ApplianceProcess, **query: Any) -> list[str]:
    answer = appliance.admin("/admin/v1/traces", params=query)
    assert answer.status_code == 200, answer.text
    return [row["request_id"] for row in answer.json()["items"]]


def ask(appliance: ApplianceProcess, text: str) -> str:
    answer = appliance.chat(text, max_tokens=4, ignore_eos=True)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-request-id"]


def cli_json(appliance: ApplianceProcess, *args: str) -> Any:
    done = appliance.cli(*args, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def outputs(appliance: ApplianceProcess) -> float:
    return appliance.metric(
        "quarterdeck_messages_sent_total", process="e0", message="EngineOutputs"
    )


@pytest.fixture
def start(tiny_model_path: Path, tmp_path: Path) -> Iterator[Callable[[], ApplianceProcess]]:
    """Starts an appliance, again in the same directory; whatever happens, none stays."""
    started: list[ApplianceProcess] = []

    def begin() -> ApplianceProcess:
        started.append(ApplianceProcess(tmp_path, str(tiny_model_path), "--dtype", "float32"))
        return started[-1].start()

    yield begin
    for appliance in started:
        appliance.stop()


def test_recording_stops_and_goes_on_and_the_journal_survives_a_restart(
    start: Callable[[], ApplianceProcess], tmp_path: Path
):
    appliance = start()
    kept = ask(appliance, "kept")
    wait_until(lambda: kept in trace_ids(appliance), 10)

    settings = cli_json(appliance, "telemetry", "--no-record", "--ratio", "0.5")
    assert (settings["recording"], settings["trace_ratio"]) == (False, 0.5)
    assert settings["export"] is False
    wait_until(lambda: not has_fresh_trace(appliance), 10, "nothing is recorded")
    before = outputs(appliance)
    lost = ask(appliance, "not recorded")
    wait_until(lambda: outputs(appliance) > before, 10, "counts go on")
    wait_until(lambda: not appliance.admin("/admin/v1/requests?state=live").json()["items"], 10)

    cli_json(appliance, "telemetry", "--record")
    wait_until(lambda: has_fresh_trace(appliance), 15, "recorded again")
    found = trace_ids(appliance, limit=100)
    assert kept in found
    assert lost not in found
    assert trace_ids(appliance, engine="e1") == []
    assert kept in trace_ids(appliance, engine="e0", outcome="finished", order="slowest")
    assert appliance.metric("quarterdeck_records_dropped_total") == 0
    appliance.stop()

    spans = list(every_span(tmp_path / "state" / "traces.sqlite3"))
    failed = [span.name for span in spans if span.error is not None]
    assert set(failed) <= {"process EngineHello"}, "a gateway may not know the engine's epoch yet"
    names = Counter(span.name for span in spans)
    assert names["engine.start"] == 1
    assert {"start spawn", "start import", "start weights"} <= names.keys()
    assert names["send EngineOutputs"] == names["process EngineOutputs"] >= names["engine.step"] > 0

    again = start()
    kinds = [event["kind"] for event in cli_json(again, "events", "--limit", "100")]
    assert kinds.count("engine.ready") == 2
    assert kinds.count("telemetry.changed") == 2
    assert len(cli_json(again, "events", "--kind", "telemetry.")) == 2
    assert kept in trace_ids(again, limit=100)
    trace = cli_json(again, "trace", kept)
    assert trace[0]["name"] == "POST /v1/chat/completions"


def has_fresh_trace(appliance: ApplianceProcess) -> bool:
    """Whether a request that is sent now is recorded; what runs is shown in either case."""
    request_id = ask(appliance, "fresh")

    def settled() -> Any:
        answer = appliance.admin(f"/admin/v1/traces/{request_id}")
        runs = answer.status_code == 200 and answer.json()["request"]["ended_at"] is None
        return None if runs else answer

    return wait_until(settled, 10, "it has ended").status_code == 200
