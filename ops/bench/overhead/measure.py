"""Measures one scenario at one number of streams."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import psutil

from overhead.figures import Result, Verdict, Window, paired_ratio, verdicts_of
from overhead.streams import Load
from overhead.subject import Histogram, Role, Subject, SubjectError, histogram_of, total_of

LAG = "quarterdeck_loop_lag_seconds"
SPANS = "quarterdeck_spans_exported_total"
DROPPED = "quarterdeck_records_dropped_total"
END_S = 60.0
SCRAPE_S = 1.0
MS_PER_S = 1e3
Cpu = dict[Role, dict[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to measure."""

    scenario: str
    streams: int
    pairs: int
    window_s: float
    settle_s: float
    warm_up_s: float
    output_tokens: int
    seed: int

    @property
    def longest_s(self) -> float:
        """Bound of the whole."""
        windows_s = 2 * self.pairs * (2 * self.window_s + self.settle_s + 5)
        return self.warm_up_s + windows_s + END_S


@dataclass(slots=True)
class Seen:
    """What the windows with telemetry gave besides."""

    lag: Histogram
    others_s: float = 0.0
    """CPU seconds of processes that are neither the appliance nor this one."""
    seconds: float = 0.0
    spans: float = 0.0
    dropped: float = 0.0


async def measure(subject: Subject, plan: Plan) -> Result:
    """Run the load and the windows; everything ends with it."""
    load = Load(subject.port, subject.api_key, subject.model, plan.output_tokens)
    stop = asyncio.Event()
    async with asyncio.timeout(plan.longest_s), _unwrapped(), asyncio.TaskGroup() as tasks:
        streams = [
            tasks.create_task(load.stream(f"{plan.seed}-{plan.streams}-{index}", stop))
            for index in range(plan.streams)
        ]
        try:
            windows, seen = await _windows(subject, plan, load)
        finally:
            stop.set()
            for stream in streams:
                stream.cancel()  # an answer that runs is not waited for
    return _result(plan, windows, seen, load.failures)


@contextlib.asynccontextmanager
async def _unwrapped() -> AsyncIterator[None]:
    """Give the appliance's failure as it is, not as part of a group."""
    try:
        yield
    except* SubjectError as group:
        raise group.exceptions[0] from None


async def _windows(subject: Subject, plan: Plan, load: Load) -> tuple[list[Window], Seen]:
    await asyncio.sleep(plan.warm_up_s)
    if plan.scenario == "full":
        subject.fill_disk()
    seen = Seen(Histogram({}))
    windows = [await _window(subject, plan, load, seen, on=on) for on in _order(plan)]
    await asyncio.to_thread(subject.set_recording, on=True)
    return windows, seen


def _order(plan: Plan) -> Iterator[bool]:
    """Yield whether telemetry is on in each window.

    Two pairs mirror each other (on, off, off, on or the reverse, by lot), so that what changes
    steadily cancels out.
    """
    draw, first = random.Random(plan.seed), True
    for pair in range(plan.pairs):
        first = draw.random() < 0.5 if pair % 2 == 0 else not first  # noqa: PLR2004 - a coin
        yield from (first, not first)


async def _window(subject: Subject, plan: Plan, load: Load, seen: Seen, *, on: bool) -> Window:
    await asyncio.to_thread(subject.set_recording, on=on)
    await asyncio.sleep(plan.settle_s)
    before = await asyncio.to_thread(subject.scrape)
    cpu, since_s, foreign_s = subject.cpu_s(), time.monotonic(), _machine_s()
    await _pass(subject, plan, scrapes=on and plan.scenario == "scrape")
    used, until_s = _difference(cpu, subject.cpu_s()), time.monotonic()
    seen.others_s += max(0.0, _machine_s() - foreign_s - sum(used.values()))
    seen.seconds += until_s - since_s
    if on:
        _note(seen, before, await asyncio.to_thread(subject.scrape))
    return Window(
        on=on,
        seconds=until_s - since_s,
        tokens=load.tokens_within(since_s, until_s),
        engine_cpu_s=used["engine"] + used["gateway"],
        appliance_cpu_s=sum(used.values()),
    )


async def _pass(subject: Subject, plan: Plan, *, scrapes: bool) -> None:
    """Let the window pass, with a scrape a second where the scenario has them."""
    end_s = time.monotonic() + plan.window_s
    while scrapes and time.monotonic() + SCRAPE_S < end_s:
        begun_s = time.monotonic()
        await asyncio.to_thread(subject.scrape)
        await asyncio.sleep(max(0.0, SCRAPE_S - (time.monotonic() - begun_s)))
    await asyncio.sleep(max(0.0, end_s - time.monotonic()))


def _difference(before: Cpu, after: Cpu) -> dict[Role, float]:
    """Return the seconds used since; threads that began meanwhile count from their start."""
    return {
        role: sum(used_s - before[role].get(thread, 0.0) for thread, used_s in threads.items())
        for role, threads in after.items()
    }


def _machine_s() -> float:
    """Return the CPU seconds that the machine gave to all processes but this one."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system - time.process_time()


def _note(seen: Seen, before: str, after: str) -> None:
    labels = {"process": "supervisor"}
    added = histogram_of(after, LAG, **labels).since(histogram_of(before, LAG, **labels))
    seen.lag = seen.lag.plus(added)
    seen.spans += total_of(after, SPANS) - total_of(before, SPANS)
    seen.dropped += total_of(after, DROPPED) - total_of(before, DROPPED)


def _result(plan: Plan, windows: list[Window], seen: Seen, failures: list[str]) -> Result:
    if any(not window.tokens for window in windows):
        why = f" ({failures[-1]})" if failures else ""
        raise SubjectError(f"a window had no tokens: ask for longer ones{why}")
    pairs = [
        sorted(windows[at : at + 2], key=lambda each: not each.on)
        for at in range(0, len(windows), 2)
    ]
    on, off = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    engine = paired_ratio(*([w.engine_cpu_s / w.tokens for w in side] for side in (on, off)))
    whole = paired_ratio(*([w.appliance_cpu_s / w.tokens for w in side] for side in (on, off)))
    rate = paired_ratio(*([w.rate for w in side] for side in (on, off)))
    lag_s = seen.lag.quantile(0.99)
    tokens = sum(window.tokens for window in on)
    clean = Verdict("no failed request", float(len(failures)), not failures)
    return Result(
        scenario=plan.scenario,
        streams=plan.streams,
        pairs=plan.pairs,
        rate_on=tokens / sum(window.seconds for window in on),
        rate_off=sum(w.tokens for w in off) / sum(w.seconds for w in off),
        engine_cpu_ms_per_token=sum(w.engine_cpu_s for w in on) / tokens * MS_PER_S,
        appliance_cpu_ms_per_token=sum(w.appliance_cpu_s for w in on) / tokens * MS_PER_S,
        engine_cpu=engine,
        appliance_cpu=whole,
        rate=rate,
        lag_p99_s=lag_s,
        spans_per_s=seen.spans / sum(window.seconds for window in on),
        others_cores=seen.others_s / seen.seconds,
        records_dropped=seen.dropped,
        failures=failures,
        verdicts=[*verdicts_of(plan.scenario, engine, whole, rate, lag_s), clean],
    )
