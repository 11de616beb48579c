"""llama.cpp's own benchmark, without a server: a check of what was measured through one."""

import json
import subprocess
from typing import Any

from comparison.subjects import Peers, Subject

LIMIT_S = 120.0
REPEATS = 3


def llama_bench(subject: Subject, peers: Peers) -> list[dict[str, Any]]:
    """Return prefill of 128 and 512 tokens and decode of 64.

    Raises:
        subprocess.SubprocessError: it failed, or takes too long.
    """
    program = peers.program(subject).with_name("llama-bench")
    ran = subprocess.run(  # noqa: S603 - the peer
        [
            *(str(program), "-m", str(peers.weights(subject)), "-t", str(peers.threads)),
            *("-p", "128,512", "-n", "64", "-r", str(REPEATS), "-o", "json"),
        ],
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
    )
    return [row_of(subject.name, each) for each in json.loads(ran.stdout)]


def row_of(model: str, test: dict[str, Any]) -> dict[str, Any]:
    """Return one test in our words."""
    prompt, output = test["n_prompt"], test["n_gen"]
    return {
        "model": model,
        "test": f"prefill {prompt}" if prompt else f"decode {output}",
        "tok_s": test["avg_ts"],
        "stddev": test["stddev_ts"],
    }
