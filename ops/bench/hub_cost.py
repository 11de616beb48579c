"""What the telemetry hub costs: CPU per engine step, bytes per output message, its loop's lag.

    python ops/bench/hub_cost.py [--seconds 10]

Feeds a real hub on a file of its own, as engines and gateways would: a step record and both halves
of one `EngineOutputs` per step, in batches every 100 ms, to the loop that the hub runs on.
"""

import argparse
import asyncio
import gc
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.control_link.messages import GatewayRecords
from appliance.telemetry.hub import Hub, HubConfig
from engine.clock import now_ns
from engine.wire.header import TraceContext, new_context, new_span_id
from engine.wire.hops import HopLink, HopReceived, HopRecord, HopSent, StepRecord
from engine.wire.messages import EngineRecords

BATCH_S = 0.1
SPANS_PER_STEP = 3
MS = 1_000_000
FLUSH_BATCHES = 5
"""Half a second at 100 steps/s."""
MAX_CPU_US = 40.0
MAX_BYTES = 250.0
"""Bounds of a step with one stream."""
MAX_LAG_MS = 20.0
"""Bound of the 99th percentile at 1,000 spans/s."""


@dataclass
class Engine:
    """Makes what one engine and its gateway report of steps that serve some requests."""

    streams: int
    sequence: int = 0

    def __post_init__(self) -> None:
        self._links = tuple(
            HopLink(f"req-{number:024x}-0", TraceContext(new_context().trace_id, new_span_id(), 0))
            for number in range(self.streams)
        )

    def step(self) -> tuple[StepRecord, HopSent, HopReceived]:
        """Return what is reported of one step, as it would come off the wire."""
        self.sequence += 1
        context, at_ns = new_context(), now_ns()
        step = StepRecord(
            engine_id="e0",
            epoch=1,
            step=self.sequence,
            trace_id=context.trace_id,
            span_id=context.span_id,
            start_ns=at_ns - 9 * MS,
            scheduled_ns=at_ns - 9 * MS + 81_000 + self.sequence % 977,
            executed_ns=at_ns - MS,
            end_ns=at_ns,
            prefill_tokens=0,
            decode_tokens=self.streams,
            requests=self.streams,
            used_blocks=self.streams * 4,
            preempted=0,
            built_ns=at_ns - 8 * MS - self.sequence % 991,
            forwarded_ns=at_ns - 2 * MS - self.sequence % 983,
            updated_ns=at_ns - 50_000 - self.sequence % 971,
            rows=self.streams,
        )
        sent = HopSent(
            sender="e0",
            sender_epoch=1,
            sequence=self.sequence,
            message="EngineOutputs",
            destination="gateway-0",
            trace_id=context.trace_id,
            span_id=new_span_id(),
            parent_id=context.span_id,
            flags=0,
            start_ns=at_ns,
            sent_ns=at_ns + 40_000 + self.sequence % 967,
            size_bytes=60 * self.streams,
            links=self._links,
        )
        received = HopReceived(
            sender="e0",
            sender_epoch=1,
            sequence=self.sequence,
            message="EngineOutputs",
            receiver="gateway-0",
            received_ns=at_ns + 90_000 + self.sequence % 953,
            dequeued_ns=at_ns + 95_000,
            done_ns=at_ns + 120_000 + self.sequence % 947,
            sent_ns=sent.sent_ns,
        )
        return step, sent, received

    def batch(self, steps: int) -> tuple[EngineRecords, GatewayRecords]:
        """Return the reports of some steps."""
        made = [self.step() for _ in range(steps)]
        records = EngineRecords(
            hops=tuple(sent for _, sent, _ in made),
            steps=tuple(step for step, _, _ in made),
            dropped=0,
        )
        return records, gateway_batch([received for _, _, received in made])


def gateway_batch(hops: Sequence[HopRecord]) -> GatewayRecords:
    """Return a gateway's report of hops."""
    return GatewayRecords(accepted=(), first_tokens=(), finished=(), hops=tuple(hops), dropped=0)


def a_hub(directory: Path) -> Hub:
    """Return a hub that exports nothing."""
    return Hub(HubConfig(trace_db_path=directory / "traces.sqlite"))


async def cost(streams: int, steps: int) -> tuple[float, float]:
    """Return CPU microseconds (all threads) and stored bytes per step."""
    with tempfile.TemporaryDirectory() as directory:
        hub = a_hub(Path(directory))
        engine = Engine(streams)
        batches = [engine.batch(10) for _ in range(steps // 10)]
        empty = (await hub.parts.store.figures()).used_bytes
        gc.collect()
        start_s = time.process_time()
        for number, (records, hops) in enumerate(batches):
            hub.engine_message("e0", 1, records)
            hub.gateway_records(hops)
            if number % FLUSH_BATCHES == 0:
                hub.parts.assembly.expire(now_ns())
                hub.parts.store.flush()
        used = (await hub.parts.store.figures()).used_bytes
        took_s = time.process_time() - start_s
        await hub.close()
    return took_s / steps * 1e6, (used - empty) / steps


async def lag(spans_per_s: int, seconds: float) -> list[float]:
    """Return how late timers of the hub's loop fired, milliseconds, while it is fed."""
    with tempfile.TemporaryDirectory() as directory:
        hub = a_hub(Path(directory))
        engine = Engine(streams=8)
        late_ms: list[float] = []
        async with asyncio.TaskGroup() as tasks:
            lasting = [tasks.create_task(hub.run()), tasks.create_task(_watch(late_ms))]
            steps = round(spans_per_s / SPANS_PER_STEP * BATCH_S)
            for _ in range(round(seconds / BATCH_S)):
                records, hops = engine.batch(steps)
                hub.engine_message("e0", 1, records)
                hub.gateway_records(hops)
                await asyncio.sleep(BATCH_S)
            for task in lasting:
                task.cancel()
        await hub.close()
    return sorted(late_ms)


async def _watch(late_ms: list[float]) -> None:
    while True:
        due_ns = now_ns() + 5 * MS
        await asyncio.sleep(0.005)
        late_ms.append((now_ns() - due_ns) / MS)


async def main() -> int:
    """Measure and print; 1 when a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}")
    is_good = True
    for streams in (1, 8, 32):
        cpu_us, stored = min([await cost(streams, 10_000) for _ in range(3)])
        is_good = is_good and (streams > 1 or (cpu_us < MAX_CPU_US and stored < MAX_BYTES))
        print(f"{streams:3} streams: {cpu_us:6.1f} us CPU and {stored:5.0f} bytes per step")
    late_ms = await lag(1000, arguments.seconds)
    p50, p99 = (late_ms[round(q * (len(late_ms) - 1))] for q in (0.5, 0.99))
    print(f"1000 spans/s: loop lag p50 {p50:.2f} ms, p99 {p99:.2f} ms, most {late_ms[-1]:.2f} ms")
    return 0 if is_good and p99 <= MAX_LAG_MS else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
