"""A real Prometheus with the shipped configuration, the shipped dashboard, and sums that close."""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.appliance_process import ApplianceProcess, wait_until
from tests.integration.test_traces import abandon

pytestmark = pytest.mark.process

OPS = Path(__file__).parents[2] / "ops"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def prometheus(
    tiny_appliance: ApplianceProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    binary = shutil.which("prometheus")
    assert binary, "install Debian's prometheus (see .ci/run)"
    directory = tmp_path_factory.mktemp("prometheus")
    shutil.copytree(OPS / "prometheus", directory, dirs_exist_ok=True)
    config = directory / "prometheus.yml"
    shipped = config.read_text()
    assert "127.0.0.1:8001" in shipped
    target = f"127.0.0.1:{tiny_appliance.instance['admin_port']}"
    config.write_text(
        shipped.replace("127.0.0.1:8001", target).replace("5s", "1s").replace("4s", "1s")
    )
    made = tiny_appliance.cli(
        "keys", "create", "--scope", "viewer", "--out", str(directory / "quarterdeck.token")
    )
    assert made.returncode == 0, made.stderr
    subprocess.run(["promtool", "check", "config", str(config)], check=True, capture_output=True)
    port = free_port()
    process = subprocess.Popen(
        [
            binary,
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(20)


def query(prometheus: str, expression: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{prometheus}/api/v1/query", params={"query": expression})
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]["result"]


def is_up(prometheus: str) -> bool:
    try:
        return httpx.get(f"{prometheus}/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def load(appliance: ApplianceProcess) -> None:
    """50 requests: 42 that finish, 5 aborted, 3 invalid."""
    for k in range(42):
        assert appliance.chat(f"request {k}", max_tokens=4).status_code == 200
    for _ in range(5):
        abandon(appliance, appliance.model)
    for _ in range(3):
        assert appliance.chat("bad", temperature=9).status_code == 400


def test_the_accounts_close(tiny_appliance: ApplianceProcess):
    load(tiny_appliance)

    def ended(outcome: str) -> float:
        return tiny_appliance.metric("quarterdeck_requests_ended_total", outcome=outcome)

    wait_until(lambda: ended("aborted") == 5, 15, "five aborted")
    received = tiny_appliance.metric("quarterdeck_requests_received_total")
    rejected = tiny_appliance.metric("quarterdeck_requests_rejected_total")
    accepted = tiny_appliance.metric("quarterdeck_requests_accepted_total")
    running = tiny_appliance.metric("quarterdeck_requests_running")
    assert (received, rejected, accepted) == (50, 3, 47)
    assert (ended("finished"), ended("aborted"), ended("failed"), running) == (42, 5, 0, 0)


def test_the_sums_close_at_every_scrape_under_load(tiny_appliance: ApplianceProcess):
    import threading

    stop = threading.Event()

    def hammer() -> None:
        while not stop.is_set():
            tiny_appliance.chat("load", max_tokens=6, ignore_eos=True)

    threads = [threading.Thread(target=hammer) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            text = tiny_appliance.metrics()
            assert_sums_close(text)
            time.sleep(0.05)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def assert_sums_close(text: str) -> None:
    def total(name: str, label: str = "") -> float:
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.startswith((f"{name}{{", f"{name} ")) and label in line
        )

    accepted = total("quarterdeck_requests_accepted_total")
    assert total("quarterdeck_requests_received_total") == accepted + total(
        "quarterdeck_requests_rejected_total"
    )
    assert accepted == total("quarterdeck_requests_ended_total") + total(
        "quarterdeck_requests_running"
    )


def test_every_panel_of_the_dashboard_has_data(tiny_appliance: ApplianceProcess, prometheus: str):
    dashboard = json.loads((OPS / "grafana" / "overview.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel.get("targets")]
    assert len(panels) == 10
    tiny_appliance.chat("warm", max_tokens=4)
    wait_until(lambda: is_up(prometheus), 30, "prometheus answers")
    wait_until(lambda: query(prometheus, 'up{job="quarterdeck"} == 1'), 20, "the target is scraped")
    for _ in range(6):
        tiny_appliance.chat("more", max_tokens=4)
        time.sleep(0.7)

    empty = []
    for panel in panels:
        assert panel["description"]
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "30s")
            expression = expression.replace("$__range", "1m").replace("$job", "quarterdeck")
            rows = query(prometheus, expression)
            finite = [row for row in rows if row["value"][1] not in {"NaN", "+Inf", "-Inf"}]
            if not finite:
                empty.append((panel["title"], expression))
    assert empty == []


def test_promtool_finds_nothing_wrong_with_the_exposition(tiny_appliance: ApplianceProcess):
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=tiny_appliance.metrics(),
        text=True,
        capture_output=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
