"""Proves the engine on a GPU: `python -m tests.gpu.run [MODEL]`; run it on the day one is there.

Loads the tiny random model (or MODEL) on cuda:0 and on the CPU, compares their logits and greedy
tokens, checks that company in a batch changes no token, that sleep gives the device's memory back
and that waking gives the same text, and prints figures. Exit code 0: all of it held.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from engine.core.runner import TorchRunner
from engine.wire.messages import SamplingParams
from tests.engine.models.harness import engine_config, share
from tests.tiny_model import make_tiny_model

DEVICE = "cuda:0"
PROMPT = [5, 9, 30, 41, 7, 11, 12, 100, 3, 77]
NUM_TOKENS = 24
LOGPROBS = SamplingParams(max_tokens=1, temperature=0.0, logprobs=5)


def main(arguments: Sequence[str]) -> int:
    if not torch.cuda.is_available():
        print(f"no CUDA device is visible to torch {torch.__version__}: nothing was proven")
        return 2
    print(f"torch {torch.__version__} on {torch.cuda.get_device_name(0)}")
    with tempfile.TemporaryDirectory() as directory:
        model = Path(arguments[0]) if arguments else make_tiny_model(Path(directory) / "tiny")
        failed = [name for name, held in checks(model) if not report(name, held)]
    print("FAILED: " + ", ".join(failed) if failed else "all checks held")
    return 1 if failed else 0


def report(name: str, held: bool) -> bool:
    print(f"{'ok  ' if held else 'FAIL'} {name}")
    return held


def checks(model: Path):
    cpu, gpu = load(model, "cpu", "float32"), load(model, DEVICE, "float32")
    yield "first logprobs agree with the CPU", logprobs_agree(cpu, gpu)
    yield "greedy tokens agree with the CPU", generate(cpu) == generate(gpu)
    del cpu
    for dtype in ("float32", "bfloat16", "float16"):
        runner = load(model, DEVICE, dtype)
        alone = generate(runner)
        yield f"{dtype}: company changes no token", generate(runner, company=9) == alone
        yield f"{dtype}: chunked prefill changes no token", generate(runner, chunk=3) == alone
        for level in (1, 2):
            yield f"{dtype}: level {level} frees device memory", frees(runner, level)
            yield f"{dtype}: waking gives the same text", generate(runner) == alone
        figures(runner, dtype)
        del runner


def load(model: Path, device: str, dtype: str) -> TorchRunner:
    runner = TorchRunner(engine_config(model, device=device, dtype=dtype, kv_cache_bytes=256 << 20))
    started = time.perf_counter()
    facts = runner.load(lambda *_: None)
    print(f"     {device} {dtype}: loaded in {time.perf_counter() - started:.2f} s, {facts}")
    return runner


def logprobs_agree(first: TorchRunner, second: TorchRunner) -> bool:
    request = share(PROMPT, blocks=[1], sampling=LOGPROBS)
    tops = [runner.execute([request]).logprobs["r"][0].top for runner in (first, second)]
    worst = max(abs(a.logprob - b.logprob) for a, b in zip(*tops, strict=True))
    print(f"     largest difference of a logprob: {worst:.2e}")
    return worst < 1e-3


def generate(runner: TorchRunner, *, company: int = 0, chunk: int = 0) -> list[int]:
    tokens, done = list(PROMPT), 0
    if chunk:
        runner.execute([share(PROMPT[:chunk], blocks=[0, 1, 2])])
        done = chunk
    others = [
        share(PROMPT[: at + 1], blocks=[20 + at], request_id=f"o{at}") for at in range(company)
    ]
    for _ in range(NUM_TOKENS):
        result = runner.execute([*others, share(tokens[done:], done, blocks=[0, 1, 2])])
        assert not result.faults, result.faults
        done = len(tokens)
        tokens.extend(result.token_ids["r"])
    return tokens[len(PROMPT) :]


def frees(runner: TorchRunner, level: int) -> bool:
    before = runner.resident_bytes()
    runner.release(level)
    after = runner.resident_bytes()
    print(f"     level {level}: {before} -> {after} bytes on the device")
    runner.restore(lambda *_: None)
    return before - after > 200 << 20  # the KV cache alone is 256 MiB


def figures(runner: TorchRunner, dtype: str) -> None:
    for name, batch in (
        ("decode, 1 request", [share([5], 20, blocks=[0, 1])]),
        (
            "decode, 32 requests",
            [share([5], 20, blocks=[2 * at, 2 * at + 1], request_id=str(at)) for at in range(32)],
        ),
        ("prefill, 256 tokens", [share([7] * 256, blocks=range(16))]),
    ):
        runner.execute(batch)
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(20):
            runner.execute(batch)
        torch.cuda.synchronize()
        print(f"     {dtype}: {name}: {(time.perf_counter() - started) * 50:.2f} ms a step")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
