"""The export keeps what matters, decided late; the steps of a kept request go with it."""

from pathlib import Path

import msgspec
import pytest

from appliance.telemetry.hop_join import Hop
from appliance.telemetry.hub import Hub, HubConfig
from appliance.telemetry.message_spans import message_spans
from appliance.telemetry.records import Outcome
from appliance.telemetry.sampling import Sampler
from appliance.telemetry.span_data import SpanData
from appliance.telemetry.step_gate import StepGate
from engine.clock import now_ns
from engine.wire.header import TraceContext, new_context, new_span_id, new_trace_id
from engine.wire.hops import HopLink
from tests.appliance.telemetry.workload import (
    MS,
    Wire,
    choice,
    gateway_records,
    record,
    timeline,
)


def test_the_ratio_keeps_its_share_by_trace_id():
    sampler = Sampler(0.25)
    trace_ids = [new_trace_id() for _ in range(4000)]

    kept = [trace_id for trace_id in trace_ids if sampler.by_trace_id(trace_id)]

    assert 800 < len(kept) < 1200
    assert [t for t in trace_ids if sampler.by_trace_id(t)] == kept
    assert all(Sampler(1.0).by_trace_id(trace_id) for trace_id in trace_ids)


def test_reasons_to_keep_a_trace_that_the_ratio_does_not():
    sampler = Sampler(0.0, slowest_per_minute=1)
    preempted = timeline(1004 * MS, preempted_ns=(1,))
    slow = record(ended_ns=9000 * MS)

    assert sampler.reason(slow) == "slow", "the first one of a minute is its slowest"
    assert sampler.reason(record()) is None
    assert sampler.reason(record(parent_span_id=new_span_id(), flags=1)) == "upstream"
    assert sampler.reason(record(flags=1)) is None
    assert sampler.reason(record(outcome=Outcome.FAILED)) == "failed"
    assert sampler.reason(record(outcome=Outcome.ABORTED)) == "aborted"
    assert sampler.reason(record(choices=(choice(0, preempted),))) == "preempted"
    assert sampler.reason(record(ended_ns=9001 * MS)) == "slow"
    assert Sampler(1.0).reason(record()) == "ratio"


def step_message(requests: list[TraceContext]) -> list[SpanData]:
    links = tuple(HopLink(f"r{number}", context) for number, context in enumerate(requests))
    sent, got = Wire().message(
        "EngineOutputs", "e0", "gateway-0", new_context(), now_ns(), links=links
    )
    return message_spans(Hop(sent, got))


def test_steps_go_out_when_one_of_their_requests_is_kept_then_or_later():
    exported: list[SpanData] = []
    gate = StepGate(Sampler(0.0), exported.extend)
    quiet, failing = new_context(), new_context()
    first, second = step_message([quiet, failing]), step_message([quiet])
    gate.add(first)
    gate.add(second)
    assert exported == []

    gate.keep(failing.trace_id)
    assert exported == first
    third = step_message([failing])
    gate.add(third)
    assert exported == first + third
    upstream = step_message([msgspec.structs.replace(quiet, flags=1)])
    gate.add(upstream)
    assert exported == first + third + upstream


def test_the_gate_forgets_old_steps():
    exported: list[SpanData] = []
    gate = StepGate(Sampler(0.0), exported.extend, max_steps=1)
    request = new_context()
    old, young = step_message([request]), step_message([request])
    gate.add(old)
    gate.add(young)

    gate.keep(request.trace_id)

    assert exported == young


@pytest.mark.anyio
async def test_the_local_store_keeps_what_the_export_does_not(tmp_path: Path):
    hub = Hub(HubConfig(trace_db_path=tmp_path / "traces.sqlite", trace_ratio=0.0))
    request = record(now_ns())
    hub.gateway_records(gateway_records(finished=(request,)))

    assert (await hub.trace(request.request_id)).complete
    await hub.close()
