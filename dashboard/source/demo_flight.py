"""The flight recorder and the stacks of an invented engine."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Final

from appliance.supervisor.admin.schemas import (
    EngineRow,
    FlightEvent,
    FlightReport,
    FlightStep,
    JournalEvent,
    StackDump,
)

_STEP_S: Final = 0.075
_STACKS: Final = """\
Thread 48110 (active): "MainThread"
    linear (torch/nn/functional.py:2317)
    forward (engine/layers/linear.py:61)
    forward (engine/models/llama.py:148)
    run (engine/core/runner.py:92)
    step (engine/core/loop.py:137)
Thread 48131 (idle): "heartbeat"
    wait (threading.py:327)
    run (engine/core/heartbeat.py:41)
"""


def demo_flight(
    engine: EngineRow, at: datetime, events: Sequence[JournalEvent], steps: int
) -> FlightReport:
    """Steps that end with the engine's counter, newest first."""
    return FlightReport(
        engine=engine.id,
        epoch=engine.epoch,
        pid=engine.pid,
        alive=engine.state != "backoff",
        last_exit=engine.last_exit,
        steps=[
            _step(engine, engine.steps - back, at - timedelta(seconds=back * _STEP_S))
            for back in range(min(steps, engine.steps))
        ],
        events=[FlightEvent(at=event.at, kind=event.kind, text=event.text) for event in events],
    )


def _step(engine: EngineRow, number: int, at: datetime) -> FlightStep:
    random = Random(f"{engine.id}:{number}")  # noqa: S311 - the same step each time, no secret
    batch = random.randint(2, 6)
    prefill = random.choice((0, 0, 0, 0, 0, 38, 112, 512))
    return FlightStep(
        step=number,
        at=at,
        finished=True,
        stage="done",
        took_ms=round(52 + 4 * batch + 0.3 * prefill + random.uniform(-4, 6), 1),
        prefill_tokens=prefill,
        decode_tokens=batch - (1 if prefill else 0),
        requests=batch,
        used_blocks=batch * random.randint(8, 20),
        waiting=random.choice((0, 0, 0, 1)),
        request_ids=[f"req-{random.getrandbits(32):08x}" for _ in range(min(batch, 4))],
    )


def demo_stacks(engine: EngineRow) -> StackDump:
    """A dump as py-spy prints it."""
    return StackDump(engine=engine.id, pid=engine.pid or 0, tool="py-spy", text=_STACKS)
