"""What engines, calls and gateways tell becomes metrics, and goes with them when it should."""

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from appliance.supervisor.admin.schemas import Operation
from appliance.telemetry import names
from appliance.telemetry.accounts import Accounts
from appliance.telemetry.engine_gauges import row_levels
from appliance.telemetry.exposition import Exposition
from appliance.telemetry.hub import Hub
from appliance.telemetry.records import RequestFirstToken
from engine.clock import now_ns
from engine.wire.header import new_context
from engine.wire.messages import EngineReady, StartPhase
from engine.wire.stats import ProcessFigures
from tests.appliance.telemetry.test_prometheus_text import PLAIN, ROUTE, fill, samples
from tests.appliance.telemetry.workload import (
    Wire,
    accepted,
    engine_stats,
    gateway_accounts,
    gateway_records,
    play_call,
    record,
)
from tests.dashboard.samples import an_engine

pytestmark = pytest.mark.anyio


async def test_what_an_engine_measures_becomes_histograms_and_its_sum_is_right(hub: Hub):
    fill(hub)
    stats = engine_stats(
        step_counts=(5,) + (0,) * 12 + (1,),
        step_seconds=7.5,
        batch_counts=(2, 4) + (0,) * 8,
        batch_requests=10,
        kv_residence_counts=(),
        forward_seconds=6.0,
        rows=100,
        padding_rows=7,
        max_num_seqs=64,
        inbox=3,
        process=figures(),
    )
    hub.engine_message("e0", 1, stats)

    found = samples((await hub.metrics(PLAIN))[0])

    def value(name: str, **labels: str) -> float:
        return found[f"quarterdeck_{name}", frozenset(({"engine": "e0"} | labels).items())]

    assert value("engine_step_duration_seconds_bucket", le="0.001") == 5
    assert value("engine_step_duration_seconds_count") == 6
    assert value("engine_step_duration_seconds_sum") == 7.5
    assert value("engine_batch_requests_sum") == 10
    assert value("engine_step_part_seconds_total", part="forward") == 6
    assert value("engine_padding_rows_total") == 7
    assert value("engine_batch_limit") == 64
    assert ("quarterdeck_engine_kv_residence_seconds_count", frozenset({("engine", "e0")})) not in (
        found
    ), "an engine that does not tell has no histogram, rather than an empty one"
    process = frozenset({("process", "e0")})
    assert found["quarterdeck_process_resident_bytes", process] == 1 << 20
    assert found["quarterdeck_queue_depth", process | {("queue", "inbox")}] == 3
    own = frozenset({("process", "supervisor")})
    assert found["quarterdeck_process_resident_bytes", own] > 1 << 20


def figures() -> ProcessFigures:
    return ProcessFigures(
        cpu_user_seconds=1.0,
        cpu_system_seconds=0.5,
        resident_bytes=1 << 20,
        open_fds=9,
        max_fds=1024,
        threads=4,
        gc_pauses=2,
        gc_seconds=0.01,
        gc_max_seconds=0.008,
    )


def engine_ready() -> EngineReady:
    return EngineReady(
        model="tiny",
        architecture="llama",
        max_model_len=512,
        num_blocks=100,
        block_size=16,
        vocab_size=512,
        dtype="float32",
        device="cpu",
        kernel_backend="torch",
        weights_bytes=1,
        kv_cache_bytes=1,
        resident_bytes=1,
        max_loras=4,
        peak_flops=1e12,
        phases=(StartPhase(name="weights", start_ns=0, end_ns=2_000_000_000),),
    )


def test_the_info_of_an_engine_says_what_computes_and_how_weights_and_keys_are_kept():
    row = an_engine(
        dtype="bfloat16",
        kernel_backend="cpu",
        kernel_path="avx512-bf16",
        quantization="w4",
        kv_cache_dtype="int8",
        num_threads=2,
    )

    (labels,) = (labels for metric, labels, _ in row_levels(row) if metric is names.ENGINE_INFO)

    assert dict(zip(names.ENGINE_INFO.labels, labels, strict=True)) == {
        "engine": "e0",
        "model": "smollm2",
        "device": "cpu",
        "dtype": "bfloat16",
        "kernel_backend": "cpu",
        "kernel_path": "avx512-bf16",
        "quantization": "w4",
        "kv_cache_dtype": "int8",
        "threads": "2",
    }


def gateway_api_series(content: bytes, name: str) -> list[tuple[dict[str, str], float]]:
    return [
        (sample.labels, sample.value)
        for family in parse_plain(content.decode())
        for sample in family.samples
        if sample.name == name
    ]


async def test_the_kubernetes_inference_gateway_finds_cache_and_adapters(hub: Hub):
    fill(hub)
    ready = engine_ready()
    hub.engine_message("e0", 1, ready)
    hub.engine_message(
        "e0",
        1,
        engine_stats(adapter_running=(("sql", 2), ("chat", 1)), adapter_waiting=(("sql", 1),)),
    )
    exposition = Exposition(hub.parts.totals, dict)
    content, _ = await exposition.get(PLAIN)

    sizes = {"engine": "e0", "block_size": "16", "num_gpu_blocks": "100"}
    assert gateway_api_series(content, "quarterdeck_cache_config_info") == [(sizes, 1)]
    ((labels, at_s),) = gateway_api_series(content, "quarterdeck_lora_requests_info")
    assert labels == {
        "engine": "e0",
        "max_lora": "4",
        "running_lora_adapters": "chat,sql",
        "waiting_lora_adapters": "sql",
    }
    assert abs(at_s - hub.parts.clock.now().timestamp()) < 60
    start = gateway_api_series(content, "quarterdeck_engine_start_seconds")
    assert start == [({"engine": "e0", "phase": "weights"}, 2)]

    hub.engine_message("e0", 1, engine_stats(adapter_running=(("chat", 1),)))
    content, _ = await Exposition(hub.parts.totals, dict).get(PLAIN)
    series = gateway_api_series(content, "quarterdeck_lora_requests_info")
    assert [labels["running_lora_adapters"] for labels, _ in series] == ["chat"], "no stale set"

    hub.engine_died("e0", 1, "killed")
    content, _ = await Exposition(hub.parts.totals, dict).get(PLAIN)
    assert gateway_api_series(content, "quarterdeck_lora_requests_info") == []
    assert gateway_api_series(content, "quarterdeck_engine_running_requests") == [
        ({"engine": "e0"}, 0)
    ]


async def test_a_dead_engines_late_words_count_nothing_twice(hub: Hub):
    """Complaint: gauges stay up after a crash."""
    fill(hub)
    hub.engine_died("e0", 1, "killed")
    hub.engine_message("e0", 1, engine_stats(running=3))  # was on its way
    totals = hub.parts.totals()

    assert totals.values[names.ENGINE_RUNNING.name]["e0",] == 0
    assert totals.values[names.ENGINE_GENERATION_TOKENS.name]["e0",] == 50

    hub.engine_message("e0", 2, engine_stats(running=3))
    totals = hub.parts.totals()
    assert totals.values[names.ENGINE_RUNNING.name]["e0",] == 3
    assert totals.values[names.ENGINE_GENERATION_TOKENS.name]["e0",] == 100


async def test_hundreds_of_sets_of_adapters_leave_one_series_and_all_names(hub: Hub):
    fill(hub)
    ready = engine_ready()
    hub.engine_message("e0", 1, ready)
    for number in range(300):
        stats = engine_stats(adapter_running=((f"adapter-{number}", 1),))
        hub.engine_message("e0", 1, stats)
        hub.parts.totals()

    series = hub.parts.totals().values[names.LORA_INFO.name]

    assert [labels[2] for labels in series] == ["adapter-299"]


async def test_calls_and_operations_are_timed_and_counted_once(hub: Hub):
    fill(hub)
    play_call(hub, Wire(), "Sleep", new_context(), now_ns())
    at = hub.parts.clock.now()
    operation = Operation(
        id="op-1",
        kind="sleep",
        target="e0",
        state="running",
        actor="local",
        trace_id="a" * 32,
        created_at=at,
    )
    for state in ("running", "done", "done"):
        hub.publish_operation(operation.model_copy(update={"state": state, "ended_at": at}))

    totals = hub.parts.totals()

    assert totals.values[names.OPERATIONS.name] == {("sleep", "done"): 1}
    assert sum(totals.histograms[names.RPC_DURATION.name]["Sleep",].counts) == 1


async def test_shares_stay_equal_to_the_totals_when_a_gateway_dies(hub: Hub):
    accounts = Accounts("gateway-1", 1)
    accounts.inc(names.REQUESTS_RECEIVED, (ROUTE,), 4)
    accounts.inc(names.REQUESTS_ACCEPTED, (ROUTE,), 3)
    accounts.set(names.REQUESTS_RUNNING, (ROUTE,), 3)
    hub.gateway_accounts(gateway_accounts(accounts.snapshot()))
    known = [record(now_ns(), gateway="gateway-1") for _ in range(2)]
    first = RequestFirstToken(
        request_id=known[0].request_id, at_ns=now_ns() + 10**9, engine_id="e0", engine_epoch=1
    )
    hub.gateway_records(
        gateway_records(accepted=tuple(map(accepted, known)), first_tokens=(first,))
    )

    hub.gateway_died("gateway-1", 1)

    totals = hub.parts.totals()
    assert totals.values[names.KEY_REQUESTS.name] == {
        ("k1", "failed"): 2, ("other", "failed"): 1, ("other", "rejected"): 1,
    }  # fmt: skip
    assert totals.values[names.MODEL_REQUESTS.name] == {
        ("tiny", "failed"): 2, ("other", "failed"): 1, ("other", "rejected"): 1,
    }  # fmt: skip
    assert totals.total(names.REQUESTS_ENDED) == 3
    assert totals.total(names.REQUESTS_REJECTED) == 1
    assert totals.values[names.SLO_EVENTS.name] == {("availability", "bad"): 4}
    assert sum(totals.histograms[names.TTFT.name]["tiny",].counts) == 1, "one had its first token"
    assert sum(totals.histograms[names.E2E.name]["tiny", "failed"].counts) == 2
    for kind, metric, sizes, tokens in (
        ("prompt", names.PROMPT_TOKENS, names.REQUEST_PROMPT_TOKENS, 2 * known[0].prompt_tokens),
        ("completion", names.COMPLETION_TOKENS, names.REQUEST_COMPLETION_TOKENS, 1),
    ):
        assert totals.values[metric.name]["tiny",] == tokens
        assert totals.values[names.KEY_TOKENS.name]["k1", kind] == tokens
        assert (sum(totals.histograms[sizes.name]["tiny",].counts)) == 2
        assert totals.histograms[sizes.name]["tiny",].sum == tokens


async def test_a_promise_in_danger_is_an_event(hub: Hub):
    accounts = Accounts("gateway-0", 1)
    accounts.inc(names.SLO_EVENTS, ("ttft", "bad"), 50)
    hub.gateway_accounts(gateway_accounts(accounts.snapshot()))

    hub.stats()
    for change in hub.parts.slo.take_changes():
        assert (change.name, change.state) == ("ttft", "paging")
    levels = hub.parts.totals().values
    assert levels[names.SLO_BURN.name]["ttft", "5m"] == pytest.approx(20)
    assert levels[names.SLO_BUDGET.name]["ttft",] < 0
