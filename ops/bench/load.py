"""Measures any OpenAI-compatible server with the load of `quarterdeck bench`.

    python ops/bench/load.py --url http://127.0.0.1:8000 --api-key-file KEY --concurrency 1 8 32

For comparisons: the same prompts (`--seed`), the same machine, the same minute, one server at a
time. The server itself must support `ignore_eos`.
"""

import argparse
import sys
from pathlib import Path

from appliance.cli.bench import BenchPlan, run_bench
from appliance.cli.bench_client import BenchTarget


def main() -> int:
    """Parse the command line and run."""
    plan = BenchPlan()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", required=True, help="without /v1")
    parser.add_argument("--api-key-file", type=Path)
    parser.add_argument("--model", help="default: the first that the server names")
    parser.add_argument("--concurrency", type=int, nargs="+", default=plan.concurrency)
    parser.add_argument("--requests-per-slot", type=int, default=plan.requests_per_slot)
    parser.add_argument("--prompt-words", type=int, default=plan.prompt_words)
    parser.add_argument("--output-tokens", type=int, default=plan.output_tokens)
    parser.add_argument("--max-seconds", type=float, default=plan.max_seconds)
    parser.add_argument("--seed", help="default: another one each time")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    asked = parser.parse_args()
    key = asked.api_key_file.read_text().strip() if asked.api_key_file else None
    return run_bench(
        BenchTarget(url=asked.url.rstrip("/"), api_key=key),
        BenchPlan(
            model=asked.model,
            concurrency=tuple(asked.concurrency),
            requests_per_slot=asked.requests_per_slot,
            prompt_words=asked.prompt_words,
            output_tokens=asked.output_tokens,
            max_seconds=asked.max_seconds,
            seed=asked.seed,
        ),
        asked.output,
    )


if __name__ == "__main__":
    sys.exit(main())
