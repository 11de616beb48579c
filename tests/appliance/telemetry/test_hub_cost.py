"""The hub keeps up: its loop stays quick at 1,000 spans a second, and a step costs little."""

import asyncio
import time
from pathlib import Path

import pytest

from appliance.telemetry.hub import Hub, HubConfig
from engine.clock import now_ns
from engine.wire.header import TraceContext, new_context, new_span_id
from engine.wire.hops import HopLink
from tests.appliance.telemetry.workload import (
    MS,
    Wire,
    engine_records,
    gateway_records,
    step_record,
)

pytestmark = pytest.mark.anyio

SPANS_PER_STEP = 3
BATCH_S = 0.1


def batch(wire: Wire, steps: int) -> tuple:
    """What an engine and a gateway report of some steps that serve eight requests."""
    links = tuple(
        HopLink(f"req-{number:024x}-0", TraceContext(new_context().trace_id, new_span_id(), 0))
        for number in range(8)
    )
    sent, received, records = [], [], []
    for step in range(steps):
        context, at_ns = new_context(), now_ns()
        records.append(step_record(context, step, at_ns))
        left, right = wire.message("EngineOutputs", "e0", "gateway-0", context, at_ns, links=links)
        sent.append(left)
        received.append(right)
    return (
        engine_records(hops=tuple(sent), steps=tuple(records)),
        gateway_records(hops=tuple(received)),
    )


async def lag_ms(hub: Hub, spans_per_s: int, seconds: float) -> list[float]:
    """Feed the running hub; return how late timers of its loop fired."""
    late: list[float] = []

    async def watch() -> None:
        while True:
            due_ns = now_ns() + 5 * MS
            await asyncio.sleep(0.005)
            late.append((now_ns() - due_ns) / MS)

    wire = Wire()
    async with asyncio.TaskGroup() as tasks:
        lasting = [tasks.create_task(hub.run()), tasks.create_task(watch())]
        for _ in range(round(seconds / BATCH_S)):
            records, hops = batch(wire, round(spans_per_s / SPANS_PER_STEP * BATCH_S))
            hub.engine_message("e0", 1, records)
            hub.gateway_records(hops)
            await asyncio.sleep(BATCH_S)
        for task in lasting:
            task.cancel()
    return sorted(late)


@pytest.mark.prove
async def test_the_loop_is_never_late_by_more_than_20_ms_at_1000_spans_a_second(hub: Hub):
    p99s = []
    for _ in range(3):  # other work on the machine delays timers too
        late = await lag_ms(hub, 1000, 6.0)
        p99s.append(late[round(0.99 * (len(late) - 1))])
        if p99s[-1] <= 20:
            break

    assert min(p99s) <= 20
    assert hub.parts.store.dropped == 0


async def test_a_step_costs_the_hub_less_than_40_us_of_cpu(tmp_path: Path):
    hub = Hub(HubConfig(trace_db_path=tmp_path / "traces.sqlite"))
    wire, costs_us = Wire(), []
    for _ in range(3):
        batches = [batch(wire, 10) for _ in range(100)]
        start_s = time.process_time()
        for number, (records, hops) in enumerate(batches):
            hub.engine_message("e0", 1, records)
            hub.gateway_records(hops)
            if number % 5 == 4:
                hub.parts.store.flush()
        await hub.parts.store.figures()
        costs_us.append((time.process_time() - start_s) * 1e6 / 1000)

    assert min(costs_us) < 40
    await hub.close()
