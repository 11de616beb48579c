"""Compares Quarterdeck with its peers on this machine: vLLM, llama.cpp, OpenVINO GenAI.

    bash ops/bench/peers.sh                                     # installs them, once
    python ops/bench/compare.py --results ops/bench/RESULTS.md --json results.json
    python ops/bench/compare.py --quick

Everything is measured in turns: in each round, each load is run by each subject, one right after
the other and in another order each round; only one of them works at a time. Servers are started
once. Peers are stopped (SIGSTOP) between their turns; Quarterdeck idles. A full run takes about 25
minutes, a quick one 5. Peers that are not installed are left out, and said.

Exit code 0: nothing failed, whatever the figures say; the bounds are in the report.
"""

import argparse
import asyncio
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ceilings import CeilingsError, measure_ceilings
from comparison.fleet import WARM_UP_TOKENS, Fleet
from comparison.llama_bench import llama_bench
from comparison.machine import Watch, describe
from comparison.order import turns
from comparison.results import Results
from comparison.scenarios import SCENARIOS, Cell, cells_of, takes_part
from comparison.servers import Server, ServerError, start, tree_cpu_s
from comparison.subjects import OURS, SUBJECTS, Peers, Subject, chosen
from comparison.table import markdown
from comparison.versions import versions_of

from appliance.cli.bench_load import Load

CEILING_S = 0.2
MAX_FAILURES = 2
"""Of a subject, before it is left out."""
QUICK_SUBJECTS = (OURS, "llama-q4_1", "llama-q4_0", "vllm", "openvino")
QUICK_STREAMS, FULL_STREAMS = (1, 32), (1, 8, 16, 32)
QUICK_SCENARIOS = ("throughput", "ttft", "prefill", "staggered")


def main() -> int:
    """Parse the command line, measure, and write the report."""
    asked = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers end
    peers = Peers(asked.cache, asked.threads)
    try:
        subjects = [each for each in chosen(asked.subjects) if _is_here(each, peers)]
    except ValueError as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    results = Results(machine=describe(), versions=versions_of(subjects, peers))
    begun_s = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="qd-cmp-"))
    try:
        _measure_machine(results, subjects, peers, asked)
        _measure_all(results, subjects, peers, asked, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    results.took_s = time.monotonic() - begun_s
    _write(results, asked)
    return 1 if results.failures else 0


def parse() -> argparse.Namespace:
    """Return the command line, with what `--quick` means filled in."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round, fewer subjects and loads")
    parser.add_argument("--subjects", nargs="+", metavar="NAME", help=", ".join(SUBJECTS))
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS)
    parser.add_argument("--streams", type=int, nargs="+", help="of the throughput scenario")
    parser.add_argument("--rounds", type=int)
    parser.add_argument(
        "--everywhere", action="store_true", help="throughput of all with all numbers of streams"
    )
    parser.add_argument("--model", default="smollm2", help="of Quarterdeck; peers have their own")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--cache", type=Path, default=_cache(), help="where peers.sh put the peers")
    parser.add_argument("--json", type=Path, help="write all values to this file")
    parser.add_argument("--results", type=Path, help="write the report to this file too")
    asked = parser.parse_args()
    asked.subjects = asked.subjects or (QUICK_SUBJECTS if asked.quick else list(SUBJECTS))
    asked.scenarios = asked.scenarios or (QUICK_SCENARIOS if asked.quick else SCENARIOS)
    asked.streams = asked.streams or (QUICK_STREAMS if asked.quick else FULL_STREAMS)
    asked.rounds = asked.rounds or (1 if asked.quick else 3)
    return asked


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "quarterdeck-peers"


def _is_here(subject: Subject, peers: Peers) -> bool:
    if peers.is_installed(subject):
        return True
    _say(f"{subject.name} is not installed below {peers.cache} and left out (see peers.sh)")
    return False


def _measure_machine(
    results: Results, subjects: Sequence[Subject], peers: Peers, asked: argparse.Namespace
) -> None:
    try:
        ceilings = measure_ceilings(sorted({1, peers.threads}), CEILING_S)
        results.ceilings = [asdict(each) for each in ceilings]
    except CeilingsError as error:
        _say(str(error))
    for subject in subjects:
        if subject.kind == "llama" and "prefill" in asked.scenarios:
            try:
                results.llama_bench += llama_bench(subject, peers)
            except (OSError, subprocess.SubprocessError) as error:
                results.failures.append(f"llama-bench, {subject.name}: {error}")


def _measure_all(
    results: Results,
    subjects: Sequence[Subject],
    peers: Peers,
    asked: argparse.Namespace,
    root: Path,
) -> None:
    seed = secrets.token_hex(4)

    def start_warm(subject: Subject, streams: int) -> Server:
        _say(f"starting {subject.name}")
        server = start(subject, peers, streams, asked.model, root)
        try:
            asyncio.run(server.measure(_warm_up(streams), f"{seed}-{secrets.token_hex(4)}"))
        except BaseException:
            server.stop()
            raise
        return server

    fleet = Fleet(start_warm)
    cells = [
        (cell, [s.name for s in subjects if takes_part(s, cell, everywhere=asked.everywhere)])
        for cell in cells_of(asked.scenarios, asked.streams)
    ]
    failures: Counter[str] = Counter()
    try:
        for index, (at, cell, name) in enumerate(turns(cells, asked.rounds)):
            if failures[name] >= MAX_FAILURES:
                continue
            try:
                _turn(results, fleet, cell, at, SUBJECTS[name], f"{seed}-{index}")
            except ServerError as error:
                failures[name] += 1
                results.failures.append(f"{name}, {cell.scenario} {cell.size}: {error}")
                _say(results.failures[-1])
    finally:
        results.commands, results.facts = fleet.commands, fleet.facts
        fleet.close()


def _warm_up(streams: int) -> Load:
    return Load(slots=streams, requests=streams, prompt_words=16, output_tokens=WARM_UP_TOKENS)


def _turn(results: Results, fleet: Fleet, cell: Cell, at: int, subject: Subject, seed: str) -> None:
    with fleet.turn(subject, cell.streams) as server:
        watch = Watch(lambda: tree_cpu_s(server.pid))
        outcome = asyncio.run(server.measure(cell.load, seed))
        noise = watch.noise()
    values = cell.values(outcome)
    results.add(cell, subject.name, at, values, noise)
    shown = f"{values['output_tok_s']:7.1f} tok/s  TTFT {values['ttft_ms_p50']:7.1f} ms"
    _say(
        f"round {at + 1} {cell.scenario:>10} {cell.size:4} {subject.name:<17} {shown}"
        f"  ITL {values['itl_ms_p50']:6.1f} ms  {values['prompt_tokens']:.0f} in"
        f"  steal {noise.steal_share:.1%}  others {noise.others_cores:.2f}"
    )


def _write(results: Results, asked: argparse.Namespace) -> None:
    text = markdown(results)
    print(text)
    if asked.results:
        asked.results.write_text(text)
    if asked.json:
        asked.json.write_text(json.dumps(results.as_json(), indent=1))


def _say(text: str) -> None:
    print(f"compare: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
