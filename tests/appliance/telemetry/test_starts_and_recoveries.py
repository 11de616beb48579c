"""The traces of engines' starts and of what the supervisor did after a death."""

from pathlib import Path

import pytest

from appliance.telemetry import names
from appliance.telemetry.hub import Hub
from appliance.telemetry.recoveries import Recoveries
from appliance.telemetry.span_data import SpanData
from appliance.telemetry.start_spans import Starts
from engine.wire.header import new_context
from engine.wire.messages import EngineProgress, EngineReady, StartPhase
from tests.appliance.telemetry.every_span import every_span


def ready(*phases: StartPhase) -> EngineReady:
    return EngineReady(
        model="tiny",
        architecture="llama",
        max_model_len=64,
        num_blocks=4,
        block_size=16,
        vocab_size=10,
        dtype="float32",
        device="cpu",
        kernel_backend="cpu",
        kernel_path="avx2",
        quantization="w4",
        kv_cache_dtype="int8",
        weight_cache="hit",
        num_threads=2,
        weights_bytes=1,
        kv_cache_bytes=1,
        resident_bytes=1,
        phases=phases,
    )


def test_a_start_is_one_trace_from_the_spawn_on():
    spans: list[SpanData] = []
    starts, context = Starts(spans.extend), new_context()
    starts.spawned("e0", 3, 100, context)
    starts.progress("e0", 3, "import", 130)
    phases = (
        StartPhase(name="import", start_ns=120, end_ns=200),
        StartPhase(name="weights", start_ns=200, end_ns=900),
    )
    starts.ready("e0", 3, ready(*phases))
    starts.ready("e0", 3, ready(*phases))  # every client gets the message

    assert [(span.name, span.start_ns, span.end_ns) for span in spans] == [
        ("engine.start", 100, 900),
        ("start spawn", 100, 120),
        ("start import", 120, 200),
        ("start weights", 200, 900),
    ]
    root, *children = spans
    assert (root.trace_id, root.span_id) == (context.trace_id, context.span_id)
    assert {child.parent_id for child in children} == {root.span_id}
    assert root.attributes[names.ENGINE_EPOCH] == 3
    assert root.attributes[names.ENGINE_KERNELS] == "avx2"
    assert root.attributes[names.ENGINE_QUANTIZATION] == "w4"
    assert root.attributes[names.ENGINE_KV_DTYPE] == "int8"
    assert root.attributes[names.ENGINE_WEIGHT_CACHE] == "hit"
    assert root.attributes[names.ENGINE_THREADS] == 2


def test_a_start_that_fails_shows_how_far_it_came():
    spans: list[SpanData] = []
    starts = Starts(spans.extend)
    starts.spawned("e0", 1, 100, new_context())
    starts.progress("e0", 1, "import", 120)
    starts.progress("e0", 1, "weights", 200)
    starts.progress("e0", 1, "weights", 300)
    starts.died("e0", 1, 400, "killed by signal 9")
    starts.died("e0", 1, 500, "again")

    assert [(span.name, span.start_ns, span.end_ns, span.error) for span in spans] == [
        ("engine.start", 100, 400, "engine_died"),
        ("start spawn", 100, 120, None),
        ("start import", 120, 120, None),
        ("start weights", 200, 400, None),
    ]


def test_a_recovery_is_one_trace_of_its_states():
    spans: list[SpanData] = []
    recoveries = Recoveries(spans.extend)
    for at_ns, state in enumerate(("ready", "died", "backoff", "starting", "ready", "asleep")):
        recoveries.event(f"engine.{state}", "e0", state, at_ns * 10)
    recoveries.event("key.created", "k1", "-", 70)

    assert [(span.name, span.start_ns, span.end_ns) for span in spans] == [
        ("recover engine", 10, 40),
        ("engine died", 10, 20),
        ("engine backoff", 20, 30),
        ("engine starting", 30, 40),
        ("engine ready", 40, 40),
    ]
    assert {span.parent_id for span in spans[1:]} == {spans[0].span_id}


def test_a_recovery_that_is_given_up_is_an_error():
    spans: list[SpanData] = []
    recoveries = Recoveries(spans.extend)
    recoveries.event("engine.died", "e0", "died", 0)
    recoveries.event("engine.crash_loop", "e0", "5 deaths", 10)

    assert spans[0].error == "crash_loop"
    assert spans[0].attributes[names.EVENT_TEXT] == "5 deaths"


@pytest.mark.anyio
async def test_the_hub_follows_starts_and_deaths(hub: Hub, tmp_path: Path):
    hub.engine_spawned("e0", 1, 10, new_context())
    hub.engine_message("e0", 1, EngineProgress(phase="import", done=1, total=2))
    hub.engine_message("e0", 1, ready(StartPhase(name="import", start_ns=20, end_ns=30)))
    hub.journal("engine.died", "warning", "e0", "killed")
    hub.journal("engine.ready", "info", "e0", "again")
    await hub.close()

    found = [span.name for span in every_span(tmp_path / "traces.sqlite")]
    assert found == [
        "engine.start",
        "start spawn",
        "start import",
        "recover engine",
        "engine died",
        "engine ready",
    ]
