"""The exposition is what a Prometheus reads: both formats, the names, the sums, the exemplars."""

import asyncio
import shutil
import subprocess
import time

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_plain
from prometheus_client.utils import floatToGoString

from appliance.supervisor.admin.schemas import EngineRow, GatewayRow
from appliance.telemetry import names
from appliance.telemetry.accounts import Accounts
from appliance.telemetry.exposition import Exposition
from appliance.telemetry.hub import Hub
from appliance.telemetry.ledger import Totals
from appliance.telemetry.metric import TOKEN_BUCKETS
from appliance.telemetry.names import METRICS
from appliance.telemetry.prometheus_text import negotiate, render
from appliance.telemetry.records import HistogramSample
from engine.clock import now_ns
from engine.wire.messages import Heartbeat
from tests.appliance.telemetry.workload import (
    Wire,
    engine_stats,
    gateway_accounts,
    gateway_records,
    play_request,
    record,
)

pytestmark = pytest.mark.anyio

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
PLAIN = "text/plain;version=0.0.4"
ROUTE = "/v1/chat/completions"


def fill(hub: Hub) -> None:
    row = EngineRow(
        id="e0",
        state="ready",
        epoch=1,
        model="tiny",
        device="cpu",
        restarts=2,
        since=hub.parts.clock.at(0),
    )
    gateway = GatewayRow(name="gateway-0", epoch=1, pid=1, state="ready", restarts=1)
    hub.set_fleet(lambda: [row], lambda: [gateway], list)
    beat = Heartbeat(step=1, phase="idle", running=0, waiting=0, last_token_ns=None)
    hub.engine_message("e0", 1, beat)
    hub.engine_message("e0", 1, engine_stats())
    request = record(now_ns())
    play_request(hub, Wire(), request)
    accounts = Accounts("gateway-0", 1)
    accounts.inc(names.REQUESTS_RECEIVED, (ROUTE,))
    accounts.inc(names.REQUESTS_ACCEPTED, (ROUTE,))
    accounts.inc(names.REQUESTS_ENDED, (ROUTE, "finished"))
    accounts.set(names.REQUESTS_RUNNING, (ROUTE,), 0)
    accounts.observe(names.TTFT, 0.010, ("tiny",))
    hub.gateway_accounts(gateway_accounts(accounts.snapshot()))
    hub.count_supervisor({"UtilityCall": 3}, {"Heartbeat": 9}, fenced=1)


def samples(text: bytes) -> dict[tuple[str, frozenset], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_plain(text.decode())
        for sample in family.samples
    }


async def test_the_plain_format_holds_every_family_and_the_counts(hub: Hub):
    fill(hub)

    content, content_type = await hub.metrics(PLAIN)

    assert content_type.startswith("text/plain; version=0.0.4")
    found = samples(content)

    def value(name: str, **labels: str) -> float:
        return found[name, frozenset(labels.items())]

    assert value("quarterdeck_requests_received_total", route=ROUTE) == 1
    assert value("quarterdeck_requests_ended_total", route=ROUTE, outcome="finished") == 1
    info = {"engine": "e0", "model": "tiny", "device": "cpu", "dtype": "", "kernel_backend": ""}
    info |= dict.fromkeys(("kernel_path", "quantization", "kv_cache_dtype", "threads"), "")
    assert value("quarterdeck_engine_info", **info) == 1
    assert value("quarterdeck_engine_state", engine="e0", state="ready") == 1
    assert value("quarterdeck_engine_state", engine="e0", state="asleep") == 0
    assert value("quarterdeck_engine_restarts_total", engine="e0") == 2
    assert value("quarterdeck_gateway_restarts_total", gateway="gateway-0") == 1
    assert value("quarterdeck_kv_cache_used_ratio", engine="e0") == 0.25
    assert value("quarterdeck_engine_heartbeat_age_seconds", engine="e0") < 60
    sent = "quarterdeck_messages_sent_total"
    assert value(sent, process="e0", message="EngineOutputs") == 4
    assert value(sent, process="supervisor", message="UtilityCall") == 3
    assert value("quarterdeck_messages_fenced_total", process="supervisor") == 1
    assert value("quarterdeck_spans_exported_total") == 0
    assert value("quarterdeck_audit_entries_total", outcome="lost") == 0, "its alert needs a start"
    assert value("quarterdeck_records_dropped_total", process="supervisor", stage="log") == 0
    assert value("quarterdeck_hop_seconds_count", message="AddRequest") == 1
    bucket = "quarterdeck_time_to_first_token_seconds_bucket"
    assert value(bucket, model="tiny", le="0.005") == 0
    assert value(bucket, model="tiny", le="0.01") == 1
    assert value(bucket, model="tiny", le="+Inf") == 1
    families = {family.name for family in parse_plain(content.decode())}
    assert families == {name.removesuffix("_total") for name in METRICS}


def settle(hub: Hub) -> None:
    """Two seconds pass: what was recorded is stored."""
    for _ in range(2):
        hub.parts.recent.examples.settle(hub.parts.store.dropped)


async def test_openmetrics_is_negotiated_and_carries_the_trace_of_a_bucket(hub: Hub):
    fill(hub)
    settle(hub)

    content, content_type = await hub.metrics(OPENMETRICS)

    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in parse_openmetrics(content.decode())}
    assert set(families) == {name.removesuffix("_total") for name in METRICS}
    ttft = families["quarterdeck_time_to_first_token_seconds"]
    exemplars = [sample.exemplar for sample in ttft.samples if sample.exemplar is not None]
    (row,) = hub.requests("ended", 1)
    assert [exemplar.labels for exemplar in exemplars] == [{"trace_id": row.trace_id}]
    assert b":" not in b"".join(line.split(b"{")[0].split(b" ")[0] for line in content.split(b"\n"))


async def test_counts_of_a_dead_engine_stay_in_the_sum(hub: Hub):
    fill(hub)
    hub.engine_died("e0", 1, "killed")
    hub.engine_message("e0", 2, engine_stats(generation_tokens=7))

    content, _ = await hub.metrics(PLAIN)

    found = samples(content)
    tokens = "quarterdeck_engine_generation_tokens_total"
    assert found[tokens, frozenset({("engine", "e0")})] == 57


async def test_the_identity_holds_after_a_gateways_death(hub: Hub):
    fill(hub)
    accounts = Accounts("gateway-1", 1)
    accounts.inc(names.REQUESTS_RECEIVED, (ROUTE,), 4)
    accounts.inc(names.REQUESTS_ACCEPTED, (ROUTE,), 4)
    accounts.set(names.REQUESTS_RUNNING, (ROUTE,), 4)
    hub.gateway_accounts(gateway_accounts(accounts.snapshot()))
    running = record(now_ns(), gateway="gateway-1")
    hub.gateway_records(gateway_records(finished=(running,)))
    hub.gateway_died("gateway-1", 1)

    stats = hub.stats()

    assert stats.received == 5
    assert (stats.rejected, stats.finished, stats.aborted, stats.failed) == (0, 1, 0, 4)


async def test_the_trace_of_an_adapters_request_is_the_example_of_its_base(hub: Hub):
    fill(hub)
    request = record(now_ns(), model="sql-lora", base_model="tiny")
    play_request(hub, Wire(), request)
    settle(hub)

    content, _ = await hub.metrics(OPENMETRICS)

    assert f'trace_id="{request.trace_id}"' in content.decode()


def exemplar_ids(content: bytes, family: str) -> set[str]:
    """Trace ids of a family's exemplars."""
    found = next(f for f in parse_openmetrics(content.decode()) if f.name == family)
    return {sample.exemplar.labels["trace_id"] for sample in found.samples if sample.exemplar}


async def test_counts_have_examples_too(hub: Hub):
    fill(hub)
    late = record(now_ns(), slo_ttft_ok=False, slo_tpot_ok=True)
    play_request(hub, Wire(), late)
    accounts = Accounts("gateway-0", 1)
    accounts.inc(names.SLO_EVENTS, ("ttft", "bad"))
    accounts.inc(names.MODEL_REQUESTS, ("tiny", "finished"))
    hub.gateway_accounts(gateway_accounts(accounts.snapshot()))
    settle(hub)

    content, _ = await hub.metrics(OPENMETRICS)

    assert exemplar_ids(content, "quarterdeck_slo_events") == {late.trace_id}
    assert exemplar_ids(content, "quarterdeck_model_requests") == {late.trace_id}
    plain, _ = await hub.metrics(PLAIN)
    assert b"# {" not in plain, "the plain format has no exemplars"


async def test_a_trace_that_may_not_have_been_stored_is_no_example(hub: Hub):
    fill(hub)
    examples = hub.parts.recent.examples
    examples.settle(0)
    examples.settle(5)  # the store lost something meanwhile
    examples.settle(5)

    content, _ = await hub.metrics(OPENMETRICS)

    assert b"trace_id" not in content
    assert examples.current(now_ns()) == {}


async def test_an_old_example_goes_before_its_trace_does(hub: Hub):
    fill(hub)
    settle(hub)
    examples = hub.parts.recent.examples

    assert examples.current(now_ns())
    assert not examples.current(now_ns() + 601 * 10**9)


@pytest.mark.parametrize(
    ("accept", "is_open"),
    [
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.9", True),
        ("text/plain", False),
        ("*/*", False),
        ("", False),
    ],
)
def test_the_format_is_what_was_asked_for(accept: str, is_open: bool):
    assert negotiate(accept)[0] == is_open


def test_label_values_are_escaped_and_any_number_can_be_read_back():
    totals = Totals()
    nasty = 'a"b\\c\nd'
    totals.add(names.ENGINE_INFO, ("e0", nasty, "cpu", *[""] * 6), 1)
    for number, value in enumerate((float("inf"), float("-inf"), float("nan"), 1e300, 1e-9, 12)):
        totals.add(names.ENGINE_PEAK_FLOPS, (f"e{number}",), value)

    content, _ = render(totals, {}, OPENMETRICS)

    families = {family.name: family for family in parse_openmetrics(content.decode())}
    assert families["quarterdeck_engine_info"].samples[0].labels["model"] == nasty
    values = [sample.value for sample in families["quarterdeck_engine_peak_flops"].samples]
    assert [str(value) for value in values] == ["inf", "-inf", "nan", "1e+300", "1e-09", "12"]


def test_edges_are_written_as_every_prometheus_writes_them():
    totals = Totals()
    sample = HistogramSample("", (), (1,) * (len(TOKEN_BUCKETS) + 1), 9.0)
    totals.observe(names.REQUEST_PROMPT_TOKENS, ("tiny",), sample)

    content, _ = render(totals, {}, OPENMETRICS)

    for edge in (*TOKEN_BUCKETS, float("inf")):
        assert f'le="{floatToGoString(edge)}"' in content.decode()


def big_fleet(engines: int) -> Totals:
    """Every series that a fleet of engines has."""
    totals = Totals()
    per_engine = [m for m in METRICS.values() if {"engine", "process"} & set(m.labels)]
    for metric in per_engine:
        for number in range(engines):
            labels = tuple(
                f"e{number}" if label in {"engine", "process"} else "x" for label in metric.labels
            )
            if metric.kind == "histogram":
                counts = (1,) * (len(metric.buckets) + 1)
                totals.observe(metric, labels, HistogramSample(metric.name, (), counts, 1.5))
            else:
                totals.add(metric, labels, 1234.5)
    return totals


def test_64_engines_are_rendered_in_less_than_50_ms():
    totals = big_fleet(64)
    render(totals, {}, OPENMETRICS)
    took_s = []
    for _ in range(5):
        start_s = time.perf_counter()
        render(totals, {}, OPENMETRICS)
        took_s.append(time.perf_counter() - start_s)

    assert min(took_s) < 0.05


async def test_a_storm_of_scrapes_renders_once_and_holds_nobody_up(hub: Hub):
    """Complaint: a scrape starves the health checks. Fifty at once cost one rendering."""
    fill(hub)
    taken = 0
    totals = hub.parts.totals

    def counted() -> Totals:
        nonlocal taken
        taken += 1
        return totals()

    exposition = Exposition(counted, dict)
    answers = await asyncio.gather(*(exposition.get(PLAIN) for _ in range(50)))
    await exposition.get(PLAIN)
    assert len({content for content, _ in answers}) == 1
    assert taken == 1
    await exposition.get(OPENMETRICS)
    assert taken == 2, "each format for itself"


async def test_promtool_has_no_complaint(hub: Hub):
    promtool = shutil.which("promtool")
    fill(hub)
    content, _ = await hub.metrics(PLAIN)
    if promtool is None:
        return  # the parser above has read it; promtool adds its lint where it is installed

    checked = subprocess.run(  # noqa: ASYNC221
        [promtool, "check", "metrics"], input=content, capture_output=True, check=False, timeout=30
    )

    assert (checked.returncode, checked.stderr) == (0, b"")
