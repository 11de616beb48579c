"""The export keeps what matters, decided late; the steps of a kept request go with it."""

from pathlib import Path

import msgspec
import pytest

from appliance.telemetry import names
from appliance.telemetry.hop_join import Hop
from appliance.telemetry.hub import Hub, HubConfig
from appliance.telemetry.live_settings import LiveTelemetry
from appliance.telemetry.records import Outcome, RequestRecord
from appliance.telemetry.sampling import Sampler
from appliance.telemetry.span_data import SpanData
from appliance.telemetry.step_gate import LOST_NS, RIPE_NS, StepGate
from engine.clock import now_ns
from engine.wire.header import TraceContext, new_context, new_span_id, new_trace_id
from engine.wire.hops import HopLink
from tests.appliance.telemetry.workload import (
    MS,
    Wire,
    choice,
    gateway_records,
    record,
    rejected,
    step_record,
    timeline,
)


def sampler(ratio: float, **changes: object) -> Sampler:
    return Sampler(LiveTelemetry(trace_ratio=ratio, **changes))


def test_the_ratio_keeps_its_share_by_trace_id():
    quarter = sampler(0.25)
    trace_ids = [new_trace_id() for _ in range(4000)]

    kept = [trace_id for trace_id in trace_ids if quarter.by_trace_id(trace_id)]

    assert 800 < len(kept) < 1200
    assert [t for t in trace_ids if quarter.by_trace_id(t)] == kept
    assert all(sampler(1.0).by_trace_id(trace_id) for trace_id in trace_ids)


def test_reasons_to_keep_a_trace_that_the_ratio_does_not():
    none = sampler(0.0, slowest_per_minute=1)
    slow = record(ended_ns=9000 * MS)

    assert none.reason(slow) == "slow", "the first one of a minute is its slowest"
    assert none.reason(record()) is None
    assert none.reason(record(parent_span_id=new_span_id(), flags=1)) == "upstream"
    assert none.reason(record(flags=1)) is None
    assert none.reason(failed()) == "failed"
    assert none.reason(aborted()) == "aborted"
    assert none.reason(preempted()) == "preempted"
    assert none.reason(record(slo_ttft_ok=False)) == "slo"
    assert none.reason(record(slo_ttft_ok=True, slo_tpot_ok=False)) == "slo"
    assert none.reason(record(slo_ttft_ok=True)) is None
    assert none.reason(record(ended_ns=9001 * MS)) == "slow"
    assert sampler(1.0).reason(record()) == "ratio"
    assert none.reason(rejected(status=503, error_code="no_engine")) == "failed"
    assert none.reason(rejected(ended_ns=1001 * MS)) is None


def test_a_late_record_of_the_minute_before_does_not_begin_the_minute_again():
    slowest = sampler(0.0, slowest_per_minute=1)
    assert slowest.reason(record(60_000 * MS, ended_ns=69_000 * MS)) == "slow"
    slowest.reason(record(59_000 * MS, ended_ns=59_500 * MS))

    assert slowest.reason(record(61_000 * MS, ended_ns=62_000 * MS)) is None


def failed() -> RequestRecord:
    return record(outcome=Outcome.FAILED)


def aborted() -> RequestRecord:
    return record(outcome=Outcome.ABORTED)


def preempted() -> RequestRecord:
    return record(choices=(choice(0, timeline(1004 * MS, preempted_ns=(1,))),))


def test_each_reason_can_be_switched_off_while_it_runs():
    changing = sampler(0.0, slowest_per_minute=0)
    off = {
        "keep_errors": failed(),
        "keep_aborts": aborted(),
        "keep_preempted": preempted(),
        "keep_slo_breaches": record(slo_ttft_ok=False),
    }

    for switch, kept in off.items():
        assert changing.reason(kept) is not None
        changing.apply(LiveTelemetry(trace_ratio=0.0, slowest_per_minute=0, **{switch: False}))
        assert changing.reason(kept) is None
        changing.apply(LiveTelemetry(trace_ratio=0.0, slowest_per_minute=0))
    assert changing.reason(record()) is None
    changing.apply(LiveTelemetry(trace_ratio=1.0))
    assert changing.reason(record()) == "ratio"


class Gate:
    """A gate, and what it lets through."""

    def __init__(self, ratio: float, max_steps: int = 4096) -> None:
        self.spans: list[SpanData] = []
        self.gate = StepGate(sampler(ratio), self.spans.extend, max_steps)
        self.wire = Wire()

    def step(self, requests: list[TraceContext], at_ns: int = 0) -> str:
        """Play a step with one message; returns its trace id."""
        context = new_context()
        links = tuple(HopLink(f"r{number}", one) for number, one in enumerate(requests))
        sent, got = self.wire.message("EngineOutputs", "e0", "gateway-0", context, 1, links=links)
        self.gate.step(step_record(context, 1, 1), at_ns)
        self.gate.sent(sent, at_ns)
        self.gate.output(Hop(sent, got))
        return context.trace_id

    def exported(self, trace_id: str) -> list[str]:
        return [span.name for span in self.spans if span.trace_id == trace_id]


MESSAGES = ["send EngineOutputs", "process EngineOutputs"]
WHOLE = [*MESSAGES, "engine.step"]


def test_steps_go_out_when_one_of_their_requests_is_kept_then_or_later():
    gate = Gate(0.0)
    quiet, failing = new_context(), new_context()
    first, second = gate.step([quiet, failing]), gate.step([quiet])
    gate.gate.expire(2 * RIPE_NS)
    assert gate.spans == []

    gate.gate.keep(failing.trace_id)
    assert gate.exported(first) == WHOLE
    third = gate.step([failing], at_ns=2 * RIPE_NS)
    assert gate.exported(third) == MESSAGES, "the step waits for further messages"
    gate.gate.expire(3 * RIPE_NS)
    assert gate.exported(third) == WHOLE
    upstream = gate.step([msgspec.structs.replace(quiet, flags=1)])
    gate.gate.forget(quiet.trace_id)
    gate.gate.finish()
    assert gate.exported(upstream) == WHOLE
    assert gate.exported(second) == []
    assert (len(gate.gate), gate.gate.dropped) == (0, 0)


def test_a_step_waits_for_a_request_whose_gateway_reports_late():
    gate = Gate(0.0)
    request, context = new_context(), new_context()
    links = (HopLink("r", request),)
    sent, got = gate.wire.message("EngineOutputs", "e0", "gateway-0", context, 1, links=links)
    gate.gate.step(step_record(context, 1, 1), 0)
    gate.gate.sent(sent, 0)
    gate.gate.expire(5 * RIPE_NS)

    gate.gate.keep(request.trace_id)
    assert gate.exported(context.trace_id) == ["engine.step"]
    gate.gate.output(Hop(sent, got))
    assert gate.exported(context.trace_id) == ["engine.step", *MESSAGES]


def test_a_message_that_is_told_of_after_its_step_went_out_follows_it():
    gate = Gate(1.0)
    context = new_context()
    gate.gate.step(step_record(context, 1, 1), 0)
    gate.gate.expire(2 * RIPE_NS)
    sent, got = gate.wire.message("EngineOutputs", "e0", "gateway-0", context, 1)
    gate.gate.sent(sent, 2 * RIPE_NS)
    gate.gate.output(Hop(sent, got))

    assert gate.exported(context.trace_id) == ["engine.step", *MESSAGES]
    assert gate.spans[1].parent_id == context.span_id


def test_messages_whose_step_was_lost_with_its_engine_have_no_absent_parent():
    gate = Gate(1.0)
    context = new_context()
    sent, got = gate.wire.message("EngineOutputs", "e0", "gateway-0", context, 1)
    gate.gate.sent(sent, 0)
    gate.gate.output(Hop(sent, got))
    gate.gate.expire(LOST_NS - 1)
    assert gate.spans == [], "the step's record may still come"

    gate.gate.expire(LOST_NS)
    assert gate.exported(context.trace_id) == MESSAGES
    assert [span.parent_id for span in gate.spans] == [None, sent.span_id]
    assert len(gate.gate) == 0


def test_a_steps_span_is_linked_to_its_requests_and_to_no_more_than_128():
    gate = Gate(1.0)
    few, many = gate.step([new_context()]), gate.step([new_context() for _ in range(200)])
    gate.gate.finish()

    steps = {span.trace_id: span for span in gate.spans if span.name == "engine.step"}
    assert len(steps[few].links) == 1
    assert names.LINKS_DROPPED not in steps[few].attributes
    assert len(steps[many].links) == 128
    assert steps[many].attributes[names.LINKS_DROPPED] == 72


def test_links_that_are_cut_are_those_to_requests_that_nobody_keeps():
    gate = Gate(0.0)
    wanted = new_context(1)
    step = gate.step([*(new_context() for _ in range(150)), wanted])
    gate.gate.finish()

    span = next(span for span in gate.spans if span.name == "engine.step")
    assert span.trace_id == step
    assert span.links[0].context == wanted


def test_the_gate_forgets_old_steps_and_counts_them():
    gate = Gate(0.0, max_steps=1)
    request = new_context()
    old, young = gate.step([request]), gate.step([request])

    gate.gate.keep(request.trace_id)
    gate.gate.finish()

    assert gate.exported(old) == []
    assert gate.exported(young) == WHOLE
    assert gate.gate.dropped == 1


def test_steps_of_requests_that_ended_unwanted_make_room_without_being_counted():
    gate = Gate(0.0, max_steps=8)
    for _ in range(100):
        request = new_context()
        gate.step([request])
        gate.gate.forget(request.trace_id)
        gate.gate.expire(2 * RIPE_NS)

    assert gate.gate.dropped == 0
    assert len(gate.gate) == 0


@pytest.mark.anyio
async def test_the_local_store_keeps_what_the_export_does_not(tmp_path: Path):
    hub = Hub(HubConfig(trace_db_path=tmp_path / "traces.sqlite", trace_ratio=0.0))
    request = record(now_ns())
    hub.gateway_records(gateway_records(finished=(request,)))

    assert (await hub.trace(request.request_id)).complete
    await hub.close()
