"""Under a load with faults all panels have data, an alert arrives, exemplars lead to traces."""

import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from tests.integration.appliance_process import ApplianceProcess, wait_until
from tests.integration.prometheus_process import OPS, Receiver, Watch, free_port
from tests.integration.streams import Stream, run_all
from tests.integration.test_traces import abandon
from tests.lora import make_adapter
from tests.ops.texts import dashboards, panels
from tests.tiny_model import make_tiny_model

pytestmark = pytest.mark.process


class FlakyCollector:
    """Takes spans over OTLP/HTTP, or refuses them."""

    def __init__(self) -> None:
        self.refuses = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self.send_response(400 if outer.refuses else 200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass
class Watched:
    """An appliance that has seen a load with faults, and who watched it."""

    appliance: ApplianceProcess
    watch: Watch
    receiver: Receiver


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    root = Path(tempfile.mkdtemp(prefix="qd-it-", dir="/tmp"))
    collector, receiver = FlakyCollector(), Receiver()
    model = make_tiny_model(root / "tiny", max_len=2048)
    make_adapter(root / "adapters" / "sql", rank=4, seed=1, model_dir=model)
    port = free_port()  # known before the appliance runs: Prometheus takes 5 s to its first scrape
    appliance = ApplianceProcess(
        root, str(model), "--admin-port", str(port), "--dtype", "float32", "--drain-s", "1",
        "--engines", "2", "--gateways", "2", "--adapter-root", str(root / "adapters"),
        "--kv-cache-bytes", "1MiB", "--speculative-tokens", "2", "--otlp-endpoint", collector.url,
    )  # fmt: skip
    try:
        watch = Watch(root / "watch", f"127.0.0.1:{port}", appliance.admin_key, receiver)
        try:
            appliance.start()
            wait_until(lambda: watch.scrapes() > 0, 20, "the first scrape")
            load(appliance, watch, collector, root)
            yield Watched(appliance, watch, receiver)
        finally:
            watch.close()
    finally:
        appliance.stop()
        receiver.close()
        collector.close()
        shutil.rmtree(root, ignore_errors=True)


def load(appliance: ApplianceProcess, watch: Watch, collector: FlakyCollector, root: Path) -> None:
    """Requests of all kinds, then faults: refused spans, sleep, a killed engine with streams."""
    both_ready(appliance)
    operate(appliance, "/admin/v1/adapters/sql", "PUT", json={"path": str(root / "adapters/sql")})
    ask_all_kinds(appliance, watch)
    collector.refuses = True
    operate(appliance, "/admin/v1/engines/e1/sleep", "POST")
    ask_all_kinds(appliance, watch)
    operate(appliance, "/admin/v1/engines/e1/wake", "POST")
    kill_with_streams(appliance)
    collector.refuses = False
    both_ready(appliance)
    ask_all_kinds(appliance, watch)


def both_ready(appliance: ApplianceProcess) -> None:
    def ready() -> bool:
        rows = appliance.admin("/admin/v1/engines").json()["items"]
        return [row["state"] for row in rows] == ["ready", "ready"]

    wait_until(ready, 40, "both engines are ready")


def operate(appliance: ApplianceProcess, path: str, method: str, **options: object) -> None:
    done = appliance.admin(f"{path}?wait=20", method, **options)
    assert done.json()["state"] == "done", done.text


def ask_all_kinds(appliance: ApplianceProcess, watch: Watch) -> None:
    """Go on until the figures were scraped twice."""
    enough = watch.scrapes() + 2
    while watch.scrapes() < enough:
        ask_each_kind_once(appliance)


def ask_each_kind_once(appliance: ApplianceProcess) -> None:
    model, long = appliance.model, "the same long beginning of every prompt, again and again. " * 8
    streams = [
        Stream(appliance, model, f"{long} {k}", max_tokens=40, ignore_eos=True) for k in range(6)
    ]
    run_all(streams)
    assert all(stream.done for stream in streams)
    for k in range(8):
        unlike = f"{k} " + " ".join(str(k * n * 7919) for n in range(60))
        assert appliance.chat(unlike, max_tokens=12, ignore_eos=True).status_code == 200
    assert appliance.chat("to the adapter", model="sql").status_code == 200
    assert appliance.chat("unknown field", what_is_this=1).status_code == 200
    choice = {"choice": ["yes", "no"]}
    assert appliance.chat("a choice", structured_outputs=choice).status_code == 200
    assert appliance.chat("bad", temperature=9).status_code == 400
    abandon(appliance, model)


def kill_with_streams(appliance: ApplianceProcess) -> None:
    """Fill both engines beyond their KV memory and kill one while its streams run."""
    model = appliance.model
    streams = [
        Stream(appliance, model, f"s{k}", max_tokens=1900, ignore_eos=True) for k in range(20)
    ]
    for stream in streams:
        stream.start()
    for stream in streams:
        assert stream.started.wait(30)
    wait_until(
        lambda: appliance.metric("quarterdeck_engine_preemptions_total") > 0, 20, "preemptions"
    )
    os.kill(appliance.engine("e0")["pid"], signal.SIGKILL)
    wait_until(
        lambda: appliance.metric("quarterdeck_requests_ended_total", outcome="failed") >= 5, 10
    )
    for row in appliance.admin("/admin/v1/requests", params={"state": "live"}).json()["items"]:
        appliance.admin(f"/admin/v1/requests/{row['id']}", "DELETE")
    for stream in streams:
        stream.join(30)


def test_every_query_of_every_panel_has_a_finite_sample(watched: Watched):
    empty = [
        (name, panel["title"], target["expr"])
        for name, board in dashboards().items()
        for panel in panels(board)
        for target in panel["targets"]
        if not watched.watch.finite_samples(watched.watch.filled_in(target["expr"]))
    ]
    assert empty == []
    assert not watched.watch.finite_samples("quarterdeck_no_such_metric")


def test_a_restart_is_marked_on_every_dashboard(watched: Watched):
    notes = dashboards()["overview.json"]["annotations"]["list"]
    marked = {
        note["name"]: watched.watch.finite_samples(watched.watch.filled_in(note["expr"]))
        for note in notes
    }
    assert marked["Engine restarts"] > 0
    assert marked["Alerts"] > 0
    assert marked["Engine gave up"] == 0


def test_dashboards_made_for_vllm_have_data_too(watched: Watched):
    document = yaml.safe_load((OPS / "prometheus" / "vllm-compat.rules.yml").read_text())
    recorded = [rule["record"] for group in document["groups"] for rule in group["rules"]]
    assert len(recorded) == 40
    assert [name for name in recorded if not watched.watch.finite_samples(name)] == []


def test_the_killed_engine_alerts_somebody(watched: Watched):
    def page() -> dict | None:
        name = "QuarterdeckAvailabilityBudgetBurn"
        found = [a for a in watched.receiver.alerts if a["labels"]["alertname"] == name]
        return next((a for a in found if a["labels"]["severity"] == "page"), None)

    alert = wait_until(page, 20, "the page")

    assert alert["status"] == "firing"
    assert alert["labels"]["instance"] == watched.watch.target
    assert alert["labels"]["slo"] == "availability"
    assert "of the requests of the last" in alert["annotations"]["description"]
    runbook = OPS.parent / alert["annotations"]["runbook_url"]
    assert runbook.exists()
    for any_alert in watched.receiver.alerts:
        assert "error" not in any_alert["annotations"]["description"].lower().replace(
            "error budget", ""
        )


def test_rules_are_evaluated_without_errors(watched: Watched):
    groups = watched.watch.get("rules")["groups"]
    assert len(groups) >= 5
    for group in groups:
        for rule in group["rules"]:
            assert rule["health"] == "ok", rule


def test_exemplars_lead_to_stored_traces(watched: Watched):
    asked = {
        re.findall(r"quarterdeck_\w+", target["expr"])[0]
        for board in dashboards().values()
        for panel in panels(board)
        for target in panel["targets"]
        if target.get("exemplar")
    }
    assert len(asked) == 7
    for family in sorted(asked):
        found = wait_until(lambda name=family: watched.watch.exemplars(name), 10, family)
        trace_id = found[-1]["labels"]["trace_id"]
        rows = watched.appliance.admin("/admin/v1/traces", params={"trace_id": trace_id}).json()
        assert [row["trace_id"] for row in rows["items"]] == [trace_id], family
