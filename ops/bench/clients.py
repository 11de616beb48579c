"""Compares engine clients: the same prompts through an engine in a process and in this one.

    python ops/bench/clients.py MODEL [--prompts 64] [--output-tokens 32] [--rounds 3]

What is between a program and its engine costs time at every step: sockets, msgpack, a second
process that wants a core. Both clients run the same work in turns, in one run, on the same machine,
so the ratio says what the way costs; with a tiny model it is nearly all there is.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from appliance.cli.bench_load import make_prompt
from engine.llm import LLM, SamplingParams

WARM_UP_PROMPTS = 4
SEED = "clients"


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a directory or a .gguf file")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--prompt-words", type=int, default=20)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-num-seqs", type=int, default=16)
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--max-seconds", type=float, default=120.0, help="bound of the whole run")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    asked = parser.parse_args()
    times_s = measure(asked)
    report(asked, times_s)
    return 0


def measure(asked: argparse.Namespace) -> dict[str, list[float]]:
    """Return the seconds of each round by client; rounds alternate."""
    options = {"max_num_seqs": asked.max_num_seqs, "num_threads": asked.num_threads}
    prompts = [make_prompt(f"{SEED}-{k}", asked.prompt_words) for k in range(asked.prompts)]
    params = SamplingParams(max_tokens=asked.output_tokens, temperature=0, ignore_eos=True)
    times_s: dict[str, list[float]] = {"inproc": [], "multiprocess": []}
    started_s = time.monotonic()
    with (
        LLM(asked.model, multiprocess=False, prefix_caching=False, **options) as inproc,
        LLM(asked.model, multiprocess=True, prefix_caching=False, **options) as multiprocess,
    ):
        clients = {"inproc": inproc, "multiprocess": multiprocess}
        answers = {
            name: _texts(llm, prompts[:WARM_UP_PROMPTS], params) for name, llm in clients.items()
        }
        assert answers["inproc"] == answers["multiprocess"], "the clients answer differently"
        for _ in range(asked.rounds):
            for name, llm in clients.items():
                if time.monotonic() - started_s > asked.max_seconds:
                    return times_s
                begun_s = time.perf_counter()
                _texts(llm, prompts, params)
                times_s[name].append(time.perf_counter() - begun_s)
    return times_s


def _texts(llm: LLM, prompts: list[str], params: SamplingParams) -> list[str]:
    return [result.text for result in llm.generate(prompts, params, use_tqdm=False)]


def report(asked: argparse.Namespace, times_s: dict[str, list[float]]) -> None:
    """Print tokens per second of each client, by its median round, and their ratio."""
    tokens = asked.prompts * asked.output_tokens
    medians = {name: statistics.median(each) for name, each in times_s.items() if each}
    if len(medians) < len(times_s):
        print("bench: no whole round in time; ask for less", file=sys.stderr)
        raise SystemExit(1)
    ratio = medians["multiprocess"] / medians["inproc"]
    if asked.output == "json":
        print(json.dumps({"rounds_s": times_s, "output_tokens": tokens, "time_ratio": ratio}))
        return
    print(f"{'CLIENT':<14}{'ROUNDS':>7}{'MEDIAN S':>10}{'OUT TOK/S':>11}")
    for name, median_s in medians.items():
        print(f"{name:<14}{len(times_s[name]):>7}{median_s:>10.2f}{tokens / median_s:>11.1f}")
    print(f"multiprocess takes {ratio:.2f} times as long as in process")


if __name__ == "__main__":
    sys.exit(main())
