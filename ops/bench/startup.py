"""How long `quarterdeck serve` takes to its first answer, what memory it needs, what it costs idle.

    python ops/bench/startup.py [--rounds 3] [--serve "--kv-cache-dtype int8"] [-o json]

Starts come in turns: cold, without packed weights on disk, and warm, with those that the start
before left there. Files stay in the system's cache of pages in both. The time runs from the start
of the program to the last byte of an answer of one token. Phases are the engine's own (admin API).

After the last start it runs a short load and prints, for each process, the most memory that was
ever resident (`VmHWM`, shared pages in each process that maps them) and its share now (`PSS`, each
page once), and the CPU that it used while nobody asked anything.
"""

import argparse
import asyncio
import json
import secrets
import shlex
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from overhead.subject import Subject, SubjectError

from appliance.cli.bench_client import BenchTarget
from appliance.cli.bench_figures import Sample
from appliance.cli.bench_load import Load, Run, complete, completion_body
from appliance.cli.data_plane import DataPlaneError

MIB = 1 << 20
LOAD = Load(slots=8, requests=8, prompt_words=100, output_tokens=32, max_seconds=60)
LONG_PHASE_S = 0.05


@dataclass(frozen=True, slots=True)
class Start:
    """One start."""

    kind: str
    """`cold` or `warm`."""
    ready_s: float
    """When the engine said that it can serve."""
    answer_s: float
    phases: dict[str, float]
    """Seconds of the engine's phases, in order."""
    weight_cache: str | None
    """Whether the engine found packed weights; None: it does not say."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the appliance, in bytes and cores."""

    role: str
    pid: int
    peak_bytes: int
    share_bytes: int
    idle_cores: float


@dataclass(slots=True)
class Report:
    """What was measured."""

    starts: list[Start] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)


def main() -> int:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="name, directory or .gguf file")
    parser.add_argument("--serve", default="", help='more flags of `serve`: "--num-threads 1"')
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=float, default=20.0, help="seconds without requests")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    asked = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="qd-start-"))
    try:
        report = measure(root, asked)
    except (SubjectError, DataPlaneError) as error:
        print(f"startup: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if asked.output == "json":
        print(json.dumps(asdict(report), indent=1))
    else:
        print("\n".join(lines_of(report)))
    return 0


def measure(root: Path, asked: argparse.Namespace) -> Report:
    """Start it cold and warm in turns, then look at the last one."""
    report, packed = Report(), root / "weights"
    flags = ["--weight-cache", str(packed), *shlex.split(asked.serve)]
    for index in range(2 * asked.rounds):
        is_cold = index % 2 == 0
        if is_cold:
            shutil.rmtree(packed, ignore_errors=True)
        own = root / str(index)
        own.mkdir()
        begun_s = time.perf_counter()
        subject = Subject(own, asked.model, flags)
        try:
            kind = "cold" if is_cold else "warm"
            report.starts.append(_first_answer(subject, kind, begun_s))
            print(f"startup: {kind} {report.starts[-1].answer_s:.2f} s", file=sys.stderr)
            if index == 2 * asked.rounds - 1:
                report.processes = _look(subject, asked.idle)
        finally:
            subject.stop()
    return report


def _first_answer(subject: Subject, kind: str, begun_s: float) -> Start:
    subject.wait_ready()
    ready_s = time.perf_counter()
    body = completion_body(subject.model, "Once upon a time", 1)
    asyncio.run(complete(_target(subject), body, Sample(started_s=ready_s)))
    answer_s = time.perf_counter()
    engine = subject.engines()[0]
    return Start(
        kind,
        ready_s - begun_s,
        answer_s - begun_s,
        engine["start_phases"],
        engine.get("weight_cache"),
    )


def _look(subject: Subject, idle_s: float) -> list[Process]:
    """Return the processes, after some requests and then some rest."""
    run = Run(_target(subject), subject.model, LOAD, secrets.token_hex(4))
    asyncio.run(run.measure())
    if run.reasons:
        raise SubjectError("; ".join(sorted(run.reasons)))
    time.sleep(1)  # what ends a request, such as its spans, is no idle work
    before, since_s = _cpu_by_process(subject), time.monotonic()
    time.sleep(idle_s)
    after, took_s = _cpu_by_process(subject), time.monotonic() - since_s
    return [
        Process(role, pid, *memory_of(pid), (after[pid] - before.get(pid, 0.0)) / took_s)
        for pid, role in subject.processes()
        if pid in after
    ]


def _target(subject: Subject) -> BenchTarget:
    return BenchTarget(url=f"http://127.0.0.1:{subject.port}", api_key=subject.api_key)


def _cpu_by_process(subject: Subject) -> dict[int, float]:
    """Return the CPU seconds of all threads of each process, as the scheduler counts them."""
    used: dict[int, float] = {}
    for pid, _ in subject.processes():
        stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
        used[pid] = sum(int(text.split()[0]) for text in stats) / 1e9
    return used


def memory_of(pid: int) -> tuple[int, int]:
    """Return the most that was ever resident, and the share now, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return kib_of(status, "VmHWM") * 1024, kib_of(rollup, "Pss") * 1024


def kib_of(text: str, name: str) -> int:
    """Return a field of a file below /proc; 0 when it is not there."""
    for line in text.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


def lines_of(report: Report) -> list[str]:
    """Return the report as text."""
    lines = [f"{'START':<7}{'READY S':>9}{'ANSWER S':>10}  PHASES"]
    for start in report.starts:
        phases = " ".join(
            f"{name} {took_s:.2f}"
            for name, took_s in start.phases.items()
            if took_s >= LONG_PHASE_S
        )
        cache = f" [weight cache: {start.weight_cache}]" if start.weight_cache else ""
        lines.append(
            f"{start.kind:<7}{start.ready_s:>9.2f}{start.answer_s:>10.2f}  {phases}{cache}"
        )
    lines += [_summary(report.starts, kind) for kind in ("cold", "warm")]
    lines += ["", f"{'PROCESS':<12}{'PID':>9}{'PEAK MIB':>10}{'PSS MIB':>9}{'IDLE CORE':>11}"]
    for each in report.processes:
        lines.append(_line(each.role, str(each.pid), each))
    if report.processes:
        lines.append(_line("all", "", _sum(report.processes)))
    return lines


def _summary(starts: Sequence[Start], kind: str) -> str:
    times_s = [start.answer_s for start in starts if start.kind == kind]
    if not times_s:
        return f"{kind}: not measured"
    middle_s, low_s, high_s = statistics.median(times_s), min(times_s), max(times_s)
    return f"{kind}: {middle_s:.2f} s to the first answer ({low_s:.2f} to {high_s:.2f})"


def _line(role: str, pid: str, each: Process) -> str:
    return (
        f"{role:<12}{pid:>9}{each.peak_bytes / MIB:>10.0f}{each.share_bytes / MIB:>9.0f}"
        f"{each.idle_cores:>11.2%}"
    )


def _sum(processes: Sequence[Process]) -> Process:
    return Process(
        "all",
        0,
        sum(each.peak_bytes for each in processes),
        sum(each.share_bytes for each in processes),
        sum(each.idle_cores for each in processes),
    )


if __name__ == "__main__":
    sys.exit(main())
