"""`quarterdeck bench`: loads /v1/completions and prints what it measured, a line for each run."""

import asyncio
import secrets
import sys
import time
from dataclasses import dataclass

import httpx

from appliance.cli.bench_client import BenchTarget
from appliance.cli.bench_figures import Sample, figures_of, print_figures
from appliance.cli.bench_load import Load, Run, complete, completion_body
from appliance.cli.data_plane import (
    TIMED_OUT,
    DataPlaneError,
    connection_error,
    printable,
    served_model,
)

_OK, _FAILED = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """What to send. `max_seconds` bounds the warm-up, and each run that is not staggered."""

    model: str | None = None
    """None takes the first served model."""
    concurrency: tuple[int, ...] = (1, 8, 32)
    rounds: int = 1
    """How often all concurrencies are measured, one after the other."""
    requests_per_slot: int = 2
    min_requests: int = 3
    stagger_s: float = 0.0
    """Above 0: see `Load.stagger_s`."""
    prompt_words: int = 100
    output_tokens: int = 128
    max_seconds: float = 120.0
    seed: str | None = None
    """Prompts are a function of it; None draws one, so that two runs share no prompt."""

    def load(self, concurrency: int) -> Load:
        """Return the load of one run."""
        return Load(
            slots=concurrency,
            requests=max(self.min_requests, concurrency * self.requests_per_slot),
            stagger_s=self.stagger_s,
            prompt_words=self.prompt_words,
            output_tokens=self.output_tokens,
            max_seconds=self.max_seconds,
        )


def run_bench(target: BenchTarget, plan: BenchPlan, output: str = "table") -> int:
    """Measure each concurrency in turn and print a line for each; `output`: `table` or `json`.

    Returns the exit code: 0, 1 when any request failed or none ended, 3 no connection, 4 timed out.
    """
    try:
        return asyncio.run(_run_all(target, plan, output))
    except DataPlaneError as error:
        print(f"quarterdeck: {printable(str(error))}", file=sys.stderr)
        return error.exit_code


async def _run_all(target: BenchTarget, plan: BenchPlan, output: str) -> int:
    is_clean = True
    model = await warm_up(target, plan)
    seed = plan.seed or secrets.token_hex(4)
    for index, concurrency in enumerate(plan.concurrency * plan.rounds):
        run = Run(target, model, plan.load(concurrency), f"{seed}-{index}")
        figures = figures_of(concurrency, await run.measure(), plan.stagger_s)
        print_figures(figures, output, is_first=index == 0)
        for reason in sorted(run.reasons):
            print(f"quarterdeck: {printable(reason)}", file=sys.stderr)
        is_clean = is_clean and figures.failed == 0 and figures.requests > 0
    return _OK if is_clean else _FAILED


async def warm_up(target: BenchTarget, plan: BenchPlan) -> str:
    """Send one request that is not measured; return the model's name.

    Raises:
        DataPlaneError: no answer within `plan.max_seconds`, or none that is whole.
    """
    try:
        async with asyncio.timeout(plan.max_seconds):
            model = plan.model or await _first_model(target)
            body = completion_body(model, "warm up", plan.output_tokens)
            await complete(target, body, Sample(started_s=time.perf_counter()))
    except TimeoutError as error:
        raise DataPlaneError("the first request took too long", TIMED_OUT) from error
    return model


async def _first_model(target: BenchTarget) -> str:
    try:
        async with target.client() as client:
            return served_model(await client.get("/v1/models")).name
    except httpx.HTTPError as error:
        raise connection_error(error) from error
