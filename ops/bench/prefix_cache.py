"""Time to the first token of a chat's second turn, against its first.

    python ops/bench/prefix_cache.py --url http://127.0.0.1:8000 --api-key-file KEY

Each round is a new chat whose first message is about as long as asked; the second turn repeats all
of it and adds a sentence, as chats do.
"""

import argparse
import random
import statistics
import sys
import time
from pathlib import Path

import httpx

WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world")


def first_token_s(client: httpx.Client, model: str, messages: list[dict[str, str]]) -> float:
    """Stream a chat; return the time to its first token, in seconds."""
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": 16,
        "temperature": 0,
        "stream": True,
    }
    started = time.monotonic()
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if '"content":"' in line.replace(" ", "") and '"content":""' not in line:
                return time.monotonic() - started
    raise RuntimeError("the answer had no text")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="without /v1")
    parser.add_argument("--api-key-file", type=Path)
    parser.add_argument("--prompt-words", type=int, default=960)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    key = asked.api_key_file.read_text().strip() if asked.api_key_file else "none"
    headers = {"Authorization": f"Bearer {key}"}
    ratios: list[float] = []
    with httpx.Client(base_url=asked.url, headers=headers, timeout=120.0) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        for number in range(asked.rounds):
            text = " ".join(random.choices(WORDS, k=asked.prompt_words))
            messages = [{"role": "user", "content": text}]
            first = first_token_s(client, model, messages)
            messages += [
                {"role": "assistant", "content": "Yes."},
                {"role": "user", "content": "And now?"},
            ]
            second = first_token_s(client, model, messages)
            ratios.append(second / first)
            print(f"round {number}: first turn {first * 1e3:.0f} ms, second {second * 1e3:.0f} ms")
    print(f"second / first: median {statistics.median(ratios):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
