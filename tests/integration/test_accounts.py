"""Sums that close at every scrape, whatever is killed; the known complaints about metrics."""

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse

from appliance.telemetry.names import METRICS
from tests.integration.appliance_process import ApplianceProcess, wait_until
from tests.integration.scrapes import Scraper, Series, assert_sums_close, by_label, read, total
from tests.integration.streams import Stream, run_all
from tests.integration.test_traces import abandon

pytestmark = pytest.mark.process

NO_SAMPLES = {
    # of things that this appliance has not: adapters, an audited change, evictions, a trace kept
    # for a collector
    "quarterdeck_lora_requests_info",
    "quarterdeck_traces_kept_total",
}


@pytest.fixture(scope="module")
def fleet(tiny_model_path: Path) -> Iterator[ApplianceProcess]:
    """Two gateways and two engines, with little room for requests that wait."""
    root = Path(tempfile.mkdtemp(prefix="qd-it-", dir="/tmp"))
    appliance = ApplianceProcess(
        root,
        str(tiny_model_path),
        "--dtype", "float32", "--drain-s", "5", "--engines", "2", "--gateways", "2",
        "--max-queued", "16",
    )  # fmt: skip
    try:
        yield appliance.start()
    finally:
        appliance.stop()
        shutil.rmtree(root, ignore_errors=True)


REPORT_S = 0.25
"""Within so much gateways report, and an exposition that was kept is made anew."""


def settled(appliance: ApplianceProcess, ended: float) -> Series:
    """Return the metrics once so many requests have ended, nothing runs and every gateway has
    reported since."""

    def scrape() -> Series | None:
        series = read(appliance.metrics())
        done = total(series, "quarterdeck_requests_ended_total") >= ended
        return series if done and not total(series, "quarterdeck_requests_running") else None

    wait_until(scrape, 20, f"{ended} ended requests")
    time.sleep(2 * REPORT_S)
    return wait_until(scrape, 20, f"{ended} ended requests")


def ended_row(appliance: ApplianceProcess, request_id: str) -> dict[str, Any]:
    """Return the row of a request once its record has come."""

    def row() -> dict[str, Any] | None:
        found = appliance.admin(f"/admin/v1/requests/{request_id}")
        ended = found.status_code == 200 and found.json()["ended_at"]
        return found.json() if ended else None

    return wait_until(row, 10, f"the row of {request_id}")


def give_up_early(appliance: ApplianceProcess) -> None:
    """A client whose own time-out is shorter than the answer takes."""
    body = {
        "model": appliance.model,
        "messages": [{"role": "user", "content": "long"}],
        "max_tokens": 300,
        "ignore_eos": True,
    }
    with pytest.raises(httpx.ReadTimeout):
        appliance.post("/v1/chat/completions", body, timeout_s=0.15)


def kill_engine_under_load(appliance: ApplianceProcess) -> list[Stream]:
    streams = [
        Stream(appliance, "tiny", f"story {k}", max_tokens=250, ignore_eos=True) for k in range(6)
    ]
    for stream in streams:
        stream.start()
    for stream in streams:
        assert stream.started.wait(20)
    os.kill(appliance.engine("e0")["pid"], signal.SIGKILL)
    for stream in streams:
        stream.join(60)
    return streams


def kill_gateway_under_load(appliance: ApplianceProcess) -> list[Stream]:
    """Kill one of two gateways while streams run through both; new connections go on."""
    streams = [
        Stream(appliance, "tiny", f"tale {k}", max_tokens=400, ignore_eos=True) for k in range(6)
    ]
    for stream in streams:
        stream.start()
    for stream in streams:
        assert stream.started.wait(20)
    time.sleep(0.3)  # what was reported by now is not lost with it
    gateways = appliance.admin("/admin/v1/gateways").json()["items"]
    os.kill(gateways[0]["pid"], signal.SIGKILL)
    for stream in streams:
        stream.join(60)
    return streams


def test_the_accounts_close(fleet: ApplianceProcess):
    """Complaint: aborted requests are counted as none. 20 finish, 3 are aborted, 3 are invalid."""
    for k in range(20):
        assert fleet.chat(f"request {k}", max_tokens=4).status_code == 200
    for _ in range(3):
        abandon(fleet, fleet.model)
    for _ in range(3):
        assert fleet.chat("bad", temperature=9).status_code == 400

    series = settled(fleet, 23)

    assert total(series, "quarterdeck_requests_received_total") == 26
    assert total(series, "quarterdeck_requests_rejected_total", code="decimal_above_max_value") == 3
    ended = by_label(series, "quarterdeck_requests_ended_total", "outcome")
    assert ended == {"finished": 20, "aborted": 3, "failed": 0}
    assert_sums_close(series)


def test_sums_close_at_every_scrape_through_kills_aborts_timeouts_and_overload(
    fleet: ApplianceProcess,
):
    """Complaints: /metrics answers 500; several engines or gateways are counted wrong; what a dead
    process counted is gone; gauges stay up."""
    before = settled(fleet, 0)
    scraper = Scraper(fleet)
    scraper.start()
    try:
        for _ in range(3):
            give_up_early(fleet)
        crowd = [
            Stream(fleet, "tiny", f"crowd {k}", max_tokens=400, ignore_eos=True) for k in range(60)
        ]
        run_all(crowd)
        kill_engine_under_load(fleet)
        kill_gateway_under_load(fleet)
        wait_until(lambda: gateways_ready(fleet) == 2, 30, "the gateway is back")
        wait_until(lambda: fleet.engine("e0")["state"] == "ready", 30, "e0 is back")
        for k in range(6):
            assert fleet.chat(f"after {k}", max_tokens=4).status_code == 200
        after = settled(fleet, 0)
    finally:
        scraper.stop()
    assert scraper.problems == []
    assert scraper.scrapes > 15
    assert scraper.most_running >= 6
    overloaded = total(after, "quarterdeck_requests_rejected_total", code="server_overloaded")
    assert overloaded >= 1
    assert overloaded == sum(stream.status == 503 for stream in crowd)
    now = by_label(after, "quarterdeck_requests_ended_total", "outcome")
    was = by_label(before, "quarterdeck_requests_ended_total", "outcome")
    assert now["aborted"] - was["aborted"] == 3
    assert now["failed"] - was["failed"] >= 2, "streams of the dead engine and the dead gateway"
    assert total(after, "quarterdeck_slo_events_total", slo="availability", outcome="bad") == (
        now["failed"] + overloaded
    )
    assert total(after, "quarterdeck_request_duration_seconds_count") == now.total()
    assert total(after, "quarterdeck_request_completion_tokens_count") == now.total()
    assert total(after, "quarterdeck_engine_restarts_total", engine="e0") == 1
    assert total(after, "quarterdeck_gateway_restarts_total") == 1


def gateways_ready(appliance: ApplianceProcess) -> int:
    rows = appliance.admin("/admin/v1/gateways").json()["items"]
    return sum(row["state"] == "ready" for row in rows)


def test_ttft_was_observed_for_each_request_that_produced_a_token(fleet: ApplianceProcess):
    """Complaint: the count of TTFT is not the number of requests."""
    settled(fleet, 1)

    def counts() -> tuple[float, int]:
        series = settled(fleet, 1)
        rows = fleet.admin("/admin/v1/requests?state=ended&limit=1000").json()["items"]
        produced = [row for row in rows if row["completion_tokens"] > 0]
        return total(series, "quarterdeck_time_to_first_token_seconds_count"), len(produced)

    def agree() -> bool:  # a scrape may be 200 ms old
        observed, produced = counts()
        return observed == produced

    wait_until(agree, 5, "each was observed")
    assert counts()[1] > 30


def test_gauges_return_to_zero_when_nothing_runs(fleet: ApplianceProcess):
    """Complaint: gauges stay up after aborts and crashes."""
    abandon(fleet, fleet.model)
    settled(fleet, 1)

    def levels() -> dict[str, float]:
        series = read(fleet.metrics())
        gauges = {
            name: total(series, f"quarterdeck_{name}")
            for name in (
                "requests_running",
                "engine_running_requests",
                "engine_waiting_requests",
                "kv_cache_used_ratio",
            )
        }
        for queue in ("inbox", "outbox", "join", "assembly", "trace_store"):
            gauges[queue] = total(series, "quarterdeck_queue_depth", queue=queue)
        return gauges

    wait_until(lambda: not any(levels().values()), 10, f"zero: {levels()}")


def test_the_use_of_the_kv_cache_is_that_of_the_tokens_in_it(fleet: ApplianceProcess):
    """Complaint: a wrong KV cache usage."""
    stream = Stream(fleet, "tiny", "count the blocks", max_tokens=460, ignore_eos=True)
    stream.start()
    assert stream.started.wait(20)

    def used_blocks() -> float:
        series = read(fleet.metrics())
        blocks = total(series, "quarterdeck_engine_kv_blocks", engine="e0")
        return round(total(series, "quarterdeck_kv_cache_used_ratio") * blocks, 3)

    seen = [wait_until(used_blocks, 10, "blocks in use")]
    while stream.is_alive():
        seen.append(used_blocks())
        time.sleep(0.05)
    assert stream.request_id
    row = ended_row(fleet, stream.request_id)
    num_tokens = row["prompt_tokens"] + row["completion_tokens"]
    most = -(-num_tokens // 16)
    assert 2 < max(seen) <= most + 1
    assert all(blocks == int(blocks) for blocks in seen)


def test_every_process_is_in_every_scrape(fleet: ApplianceProcess):
    """Complaint: with several workers a scrape shows one of them."""
    for _ in range(5):
        series = read(fleet.metrics())
        processes = by_label(series, "quarterdeck_process_resident_bytes", "process")
        assert set(processes) == {"supervisor", "gateway-0", "gateway-1", "e0", "e1"}
        time.sleep(0.21)


def test_every_metric_is_there_under_load(fleet: ApplianceProcess):
    """Complaint: metrics are missing, or have no help."""
    for verb, state in (("sleep", "asleep"), ("wake", "ready")):
        assert fleet.admin(f"/admin/v1/engines/e1/{verb}", "POST", json={}).status_code == 202
        wait_until(lambda: fleet.engine("e1")["state"] == state, 20, state)  # noqa: B023
    families = {family.name: family for family in parse(fleet.metrics())}
    assert set(families) == {name.removesuffix("_total") for name in METRICS}
    assert all(family.documentation for family in families.values())

    def empty() -> set[str]:
        found = {family.name: family for family in parse(fleet.metrics())}
        return {name for name in METRICS if not found[name.removesuffix("_total")].samples}

    wait_until(lambda: empty() <= NO_SAMPLES, 10, f"samples of {empty() - NO_SAMPLES}")


def test_the_timings_of_each_request_can_be_asked_for(fleet: ApplianceProcess):
    """Complaint: there are histograms, but no timings of one request."""
    answer = fleet.chat("time me", max_tokens=8, ignore_eos=True)

    timings = ended_row(fleet, answer.headers["x-request-id"])

    assert 0 < timings["queue_ms"] < timings["ttft_ms"] < timings["age_s"] * 1e3
    assert timings["tokens_per_s"] > 0
    assert int(answer.headers["openai-processing-ms"]) <= timings["age_s"] * 1e3 + 1


def test_scrapes_do_not_starve_the_health_checks(fleet: ApplianceProcess):
    """Complaint: a scrape starves the health checks."""
    stop = threading.Event()
    scrapes: list[int] = []

    def hammer() -> None:
        with httpx.Client(headers=fleet.admin_headers) as client:
            while not stop.is_set():
                scrapes.append(client.get(f"{fleet.admin_url}/metrics").status_code)

    threads = [threading.Thread(target=hammer) for _ in range(3)]
    for thread in threads:
        thread.start()
    took_s: list[float] = []
    try:
        with httpx.Client() as client:
            for _ in range(25):
                start_s = time.perf_counter()
                assert client.get(f"{fleet.admin_url}/livez").status_code == 200
                took_s.append(time.perf_counter() - start_s)
                time.sleep(0.02)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert set(scrapes) == {200}
    assert sorted(took_s)[-3] < 0.25


def test_promtool_finds_nothing_wrong_with_the_exposition(fleet: ApplianceProcess):
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=fleet.metrics(),
        text=True,
        capture_output=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_examples_of_buckets_and_counts_lead_to_stored_traces(fleet: ApplianceProcess):
    """Through a Prometheus this is shown in test_dashboards."""
    for k in range(4):
        assert fleet.chat(f"example {k}", max_tokens=4).status_code == 200
    accept = {"accept": "application/openmetrics-text;version=1.0.0"}

    def examples() -> dict[str, str]:
        answer = fleet.http.get(f"{fleet.admin_url}/metrics", headers=fleet.admin_headers | accept)
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        return {
            sample.name: sample.exemplar.labels["trace_id"]
            for family in parse_openmetrics(answer.text)
            for sample in family.samples
            if sample.exemplar is not None
        }

    wanted = {
        "quarterdeck_time_to_first_token_seconds_bucket",
        "quarterdeck_request_duration_seconds_bucket",
        "quarterdeck_slo_events_total",
        "quarterdeck_requests_ended_total",
    }
    found = wait_until(lambda: examples() if wanted <= set(examples()) else None, 10, "examples")
    for trace_id in set(found.values()):
        stored = fleet.admin(f"/admin/v1/traces?trace_id={trace_id}").json()["items"]
        assert [row["trace_id"] for row in stored] == [trace_id]
