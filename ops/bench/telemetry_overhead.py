"""What telemetry costs: pairs of windows under load, switched on and off while it runs.

    python ops/bench/telemetry_overhead.py [--scenario all stalled] [--streams 1 8 32]

It starts a real appliance for each scenario, keeps S streams of completions going, and measures
windows in pairs: telemetry on and off (`PATCH /admin/v1/telemetry`), every other pair mirrored, by
lot, after a warm-up. CPU seconds are those of the kernel for every thread, tokens those that the
streams got. Ratios are on / off over pairs, trimmed geometric means, with 95 % intervals by
resampling pairs. Many short windows say more than few long ones: neighbours have the same weather.
A settling time below a second charges what was recorded before to the window after it.

Scenarios: `default` as shipped, without a collector; `sampled` a tenth of the traces to a local
collector; `all` every trace to it; `stalled` a collector that accepts and never answers; `full` the
supervisor's files cannot grow (trace store on a full disk); `scrape` a scrape of /metrics every
second while telemetry is on. The whole run is bounded; it ends by itself. OTHERS are the cores
that other processes used: beyond a few hundredths, the machine is not quiet enough to judge by.
Exit code 0: all bounds kept.
"""

import argparse
import asyncio
import contextlib
import json
import random
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from overhead.collectors import collector, stall, take_all
from overhead.figures import Result
from overhead.measure import Plan, measure
from overhead.subject import Subject, SubjectError

MAX_OTHERS = 0.15
SCENARIOS = ("default", "sampled", "all", "stalled", "full", "scrape")


def main() -> int:
    """Parse the command line and run."""
    asked = parse()
    results: list[Result] = []
    if asked.output == "table":
        print(HEADER, flush=True)
    for scenario in asked.scenario:
        try:
            for result in run_scenario(scenario, asked):
                results.append(result)
                if asked.output == "table":
                    print(line_of(result), flush=True)
        except SubjectError as error:
            print(f"telemetry_overhead: {scenario}: {error}", file=sys.stderr)
            return 1
    if asked.output == "json":
        print(json.dumps([result.as_json() for result in results], indent=1))
    else:
        print_verdicts(results)
    return 0 if all(each.passed for result in results for each in result.verdicts) else 1


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="name, directory or .gguf file")
    parser.add_argument("--serve", default="", help='more flags of `serve`: "--dtype float32"')
    parser.add_argument("--scenario", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a window")
    parser.add_argument("--settle", type=float, default=1.0, help="after a switch, not measured")
    parser.add_argument("--warm-up", type=float, default=5.0)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return parser.parse_args()


def run_scenario(scenario: str, asked: argparse.Namespace) -> Iterator[Result]:
    """Start an appliance for a scenario and measure it at each number of streams."""
    root = Path(tempfile.mkdtemp(prefix="qd-oh-"))
    try:
        with collector_for(scenario) as flags:
            subject = Subject(root, asked.model, [*flags, *shlex.split(asked.serve)])
            try:
                subject.wait_ready()
                for streams in asked.streams:
                    yield asyncio.run(measure(subject, plan_of(scenario, streams, asked)))
            finally:
                subject.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def collector_for(scenario: str) -> Iterator[list[str]]:
    """Run the scenario's collector; give the flags that name it."""
    if scenario not in {"sampled", "all", "stalled"}:
        yield []
        return
    with collector(stall if scenario == "stalled" else take_all) as url:
        yield ["--otlp-endpoint", url, "--trace-ratio", "0.1" if scenario == "sampled" else "1"]


def plan_of(scenario: str, streams: int, asked: argparse.Namespace) -> Plan:
    """Return what to measure."""
    return Plan(
        scenario=scenario,
        streams=streams,
        pairs=asked.pairs,
        window_s=asked.seconds,
        settle_s=asked.settle,
        warm_up_s=asked.warm_up,
        output_tokens=asked.output_tokens,
        seed=asked.seed,
    )


HEADER = (
    f"{'SCENARIO':<9}{'S':>3}{'PAIRS':>6}{'TOK/S':>8}"
    f"{'ENGINE+GW CPU/TOKEN':>30}{'APPLIANCE CPU/TOKEN':>30}{'TOK/S RATIO':>22}"
    f"{'LAG P99':>10}{'SPANS/S':>9}{'DROPPED':>9}{'OTHERS':>8}  VERDICT"
)


def line_of(result: Result) -> str:
    """Return a line of the table."""
    engine, whole, rate = result.engine_cpu, result.appliance_cpu, result.rate
    lag = "-" if result.lag_p99_s is None else f"{result.lag_p99_s * 1e3:.1f} ms"
    good = all(each.passed for each in result.verdicts)
    engine_text = f"{result.engine_cpu_ms_per_token:.2f} ms {change(engine)}"
    whole_text = f"{result.appliance_cpu_ms_per_token:.2f} ms {change(whole)}"
    rate_text = f"{rate.mean:.3f} [{rate.low:.3f} {rate.high:.3f}]"
    return (
        f"{result.scenario:<9}{result.streams:>3}{result.pairs:>6}{result.rate_on:>8.1f}"
        f"{engine_text:>30}{whole_text:>30}{rate_text:>22}"
        f"{lag:>10}{result.spans_per_s:>9.0f}{result.records_dropped:>9.0f}"
        f"{result.others_cores:>8.2f}  {'pass' if good else 'FAIL'}"
    )


def change(ratio) -> str:  # noqa: ANN001 - a Ratio
    """Return a ratio as a change with its interval."""
    low, high = ((value - 1) * 100 for value in (ratio.low, ratio.high))
    return f"{(ratio.mean - 1) * 100:+.1f}% [{low:+.1f} {high:+.1f}]"


def print_verdicts(results: list[Result]) -> None:
    """Print every bound that was not kept, and failures of the load."""
    if any(result.others_cores > MAX_OTHERS for result in results):
        print("note: the machine was not quiet (OTHERS); measure again before you believe it")
    for result in results:
        at = f"{result.scenario}, {result.streams} streams"
        for verdict in result.verdicts:
            if not verdict.passed:
                shown = "no value" if verdict.value is None else f"{verdict.value:.4f}"
                print(f"FAIL {at}: {verdict.bound}: {shown}")
        for failure in sorted(set(result.failures)):
            print(f"     {at}: {result.failures.count(failure)} x {failure}")


if __name__ == "__main__":
    sys.exit(main())
