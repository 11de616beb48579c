"""How much a long prompt that arrives disturbs the requests that are decoding.

    python ops/bench/long_prompt.py --url http://127.0.0.1:8000 --api-key-file KEY

Some streams decode; after a while one long prompt comes. Printed are the gaps between tokens before
it came and while its prompt was computed, and their ratio. Works with any OpenAI server that takes
token ids as a prompt and supports `ignore_eos`.
"""

import argparse
import asyncio
import itertools
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx


@dataclass
class Bench:
    """What is sent where, and when tokens came."""

    client: httpx.AsyncClient
    model: str
    arrivals: list[list[float]] = field(default_factory=list)

    async def stream(self, prompt_tokens: int, output_tokens: int) -> list[float]:
        """Stream one completion; return when each of its frames came, in seconds."""
        arrivals: list[float] = []
        self.arrivals.append(arrivals)
        body = {
            "model": self.model,
            "prompt": [random.randrange(1000, 20000) for _ in range(prompt_tokens)],
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        async with self.client.stream("POST", "/v1/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    if "error" in json.loads(line[6:]):
                        raise RuntimeError(line)
                    arrivals.append(time.monotonic())
        return arrivals


def gaps(arrivals: list[list[float]], start: float, end: float) -> list[float]:
    """Return the gaps between tokens that ended within a span of time, in milliseconds."""
    return [
        (later - earlier) * 1e3
        for one in arrivals
        for earlier, later in itertools.pairwise(one)
        if start <= later <= end
    ]


def quantile(values: list[float], share: float) -> float:
    """Return the value below which `share` of the values are."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def run(asked: argparse.Namespace) -> int:
    """Measure and print."""
    key = asked.api_key_file.read_text().strip() if asked.api_key_file else "none"
    headers = {"Authorization": f"Bearer {key}"}
    limit = httpx.Timeout(asked.max_seconds)
    async with httpx.AsyncClient(base_url=asked.url, headers=headers, timeout=limit) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        bench = Bench(client, model)
        async with asyncio.timeout(asked.max_seconds), asyncio.TaskGroup() as tasks:
            streams = [
                tasks.create_task(bench.stream(32, asked.output_tokens))
                for _ in range(asked.streams)
            ]
            while not all(len(one) > asked.settle_tokens for one in bench.arrivals):
                await asyncio.sleep(0.05)
            settled = time.monotonic()
            await asyncio.sleep(asked.before_seconds)
            sent = time.monotonic()
            first = (await bench.stream(asked.prompt_tokens, 1))[0]
            still_decoding = sum(not stream.done() for stream in streams)
            bench.arrivals.pop()
            for stream in streams:
                stream.cancel()
    before, during = gaps(bench.arrivals, settled, sent), gaps(bench.arrivals, sent, first)
    print(f"{still_decoding} of {asked.streams} streams decoded all the time")
    print(f"prompt of {asked.prompt_tokens} tokens: first token after {first - sent:.2f} s")
    for name, values in (("before", before), ("during", during)):
        print(
            f"token gaps {name}: {len(values)} p50 {statistics.median(values):.1f} ms "
            f"p95 {quantile(values, 0.95):.1f} ms max {max(values):.1f} ms"
        )
    print(f"p95 during / before: {quantile(during, 0.95) / quantile(before, 0.95):.2f}")
    return 0


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="without /v1")
    parser.add_argument("--api-key-file", type=Path)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=4000)
    parser.add_argument("--output-tokens", type=int, default=1500)
    parser.add_argument("--settle-tokens", type=int, default=20)
    parser.add_argument("--before-seconds", type=float, default=5.0)
    parser.add_argument("--max-seconds", type=float, default=180.0)
    asked = parser.parse_args()
    try:
        return asyncio.run(run(asked))
    except TimeoutError:
        print(f"not done within {asked.max_seconds:g} s; see --max-seconds", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
