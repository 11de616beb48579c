"""Measures the scheduler alone: planning a step and writing its results, at 256 running requests.

    python ops/bench/schedule.py [--running 256] [--steps 400]

No model runs: every request gets the same token. `decode` is a full batch of decodes; `prefix` is
the same while new requests, whose prompts are cached, replace ended ones all the time; `fair` adds
that policy, eight tenants and requests that wait, and so does `priority`. Times are of the thread's
CPU: other programs on the machine count only by the caches and cores that they share with it, which
can double them.
"""

import argparse
import gc
import random
import sys
import time
from dataclasses import dataclass, field

from engine.config import EngineConfig
from engine.core.batch import ModelFacts, StepResult
from engine.core.request import StepTimes, engine_request
from engine.core.scheduler import Scheduler, make_scheduler
from engine.wire.header import new_context
from engine.wire.messages import AddRequest, SamplingParams

TARGET_MS = 1.0
"""For the p99 of `schedule`."""
PROMPT_TOKENS = 256
TOKEN_ID = 7
WARM_UP_STEPS = 20


@dataclass
class Case:
    """One row of the table."""

    name: str
    policy: str = "fcfs"
    prefixes: int = 0
    """Different beginnings of prompts; 0: every prompt is different from its first token on."""
    output_tokens: int = 1_000_000
    waiting: int = 0
    tenants: int = 1
    schedule_ms: list[float] = field(default_factory=list)
    update_ms: list[float] = field(default_factory=list)


CASES = (
    Case("decode"),
    Case("prefix", prefixes=8, output_tokens=64),
    Case("fair", policy="fair", prefixes=8, output_tokens=64, waiting=128, tenants=8),
    Case("priority", policy="priority", prefixes=8, output_tokens=64, waiting=128),
)


class Load:
    """Keeps a scheduler full of requests."""

    def __init__(self, case: Case, running: int) -> None:
        self.case = case
        self.running = running
        self.scheduler = _scheduler(case, running)
        self._random = random.Random(0)
        self._added = 0

    def top_up(self) -> None:
        """Add requests until as many are live as the case wants."""
        missing = self.running + self.case.waiting - len(self.scheduler.requests)
        for _ in range(missing):
            self._add()

    def _add(self) -> None:
        self._added += 1
        case, rng = self.case, self._random
        lead = rng.randrange(case.prefixes) if case.prefixes else self._added
        spread = rng.randint(case.output_tokens // 2, case.output_tokens)
        message = AddRequest(
            request_id=f"r{self._added}",
            prompt_token_ids=(*([lead] * (PROMPT_TOKENS - 1)), self._added),
            sampling=SamplingParams(max_tokens=spread, temperature=0.0),
            arrival_ns=0,
            priority=rng.randrange(3),
            tenant=f"t{rng.randrange(case.tenants)}",
        )
        self.scheduler.add(engine_request(message, None, new_context(), (), 0))

    def step(self, number: int) -> tuple[float, float]:
        """Compute one step; return how long planning and writing took."""
        self.top_up()
        began = time.thread_time()
        plan = self.scheduler.schedule(number)
        planned = time.thread_time()
        result = StepResult(
            token_ids={share.request_id: (TOKEN_ID,) for share in plan.batch if share.samples}
        )
        computed = time.thread_time()
        self.scheduler.update(plan, result, StepTimes(number, number, number, len(plan.batch)))
        return (planned - began) * 1e3, (time.thread_time() - computed) * 1e3


def _scheduler(case: Case, running: int) -> Scheduler:
    config = EngineConfig(
        engine_id="bench",
        epoch=1,
        model="none",
        model_name="none",
        clients=(),
        max_num_seqs=running,
        max_num_batched_tokens=8192,
        policy=case.policy,
    )
    facts = ModelFacts(
        architecture="none",
        vocab_size=1 << 20,
        max_model_len=1 << 14,
        dtype="none",
        device="none",
        kernel_backend="none",
        weights_bytes=0,
        kv_cache_bytes=0,
        num_blocks=1 << 16,
        eos_token_ids=(),
    )
    return make_scheduler(config, facts)


def measure(case: Case, running: int, steps: int) -> None:
    """Fill the batch, then time steps."""
    load = Load(case, running)
    number = 0
    while load.scheduler.num_running < running or number < WARM_UP_STEPS:
        number += 1
        load.step(number)
    gc.collect()
    gc.freeze()  # the requests of the case before are not this one's garbage
    for offset in range(1, steps + 1):
        schedule_ms, update_ms = load.step(number + offset)
        case.schedule_ms.append(schedule_ms)
        case.update_ms.append(update_ms)


def percentile(values: list[float], part: float) -> float:
    """Return the value below which `part` of the values are."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def main() -> int:
    """Measure all cases; 1 when a p99 of `schedule` is above the target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--steps", type=int, default=400, help="in each case")
    asked = parser.parse_args()
    print(f"{asked.running} running requests, {asked.steps} steps; milliseconds")
    print(f"{'case':10} {'schedule p50':>13} {'p99':>7} {'update p50':>11} {'p99':>7}")
    worst = 0.0
    for case in CASES:
        measure(case, asked.running, asked.steps)
        figures = [
            percentile(values, part)
            for values in (case.schedule_ms, case.update_ms)
            for part in (0.5, 0.99)
        ]
        worst = max(worst, figures[1])
        print("{:10} {:13.3f} {:7.3f} {:11.3f} {:7.3f}".format(case.name, *figures))
    return int(worst > TARGET_MS)


if __name__ == "__main__":
    sys.exit(main())
