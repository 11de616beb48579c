"""Released memory goes back to the system, measured from outside the allocator."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.core.memory import allocate, resident_bytes, trim

CPU = torch.device("cpu")

SLEEP_AND_WAKE = """
import json, sys
from pathlib import Path
from engine.core.memory import resident_bytes
from tests.engine.models.harness import make_runner, share

runner = make_runner(Path(sys.argv[1]), num_threads=2)
quiet = lambda *_: None
def text():
    tokens, done = [504, 3575, 282, 4649, 314], 0
    for _ in range(6):
        result = runner.execute([share(tokens[done:], done, blocks=[0])])
        done = len(tokens)
        tokens.extend(result.token_ids["r"])
    return tokens
found = {"texts": [text()], "released": [], "weights": runner._loaded.weights.total}
for level in (1, 2, 1):
    before = runner.resident_bytes()
    runner.release(level)
    found["released"].append(before - runner.resident_bytes())
    runner.restore(quiet)
    found["texts"].append(text())
print(json.dumps(found))
"""


def test_allocated_tensors_are_zero_apart_and_aligned():
    tensors = allocate({"a": (3, 5), "b": (7,)}, torch.bfloat16, CPU)
    tensors["a"].fill_(1.0)

    assert tensors["a"].shape == (3, 5)
    assert not tensors["b"].any()
    assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors.values())


def test_dropping_the_last_tensor_gives_the_pages_back():
    before = resident_bytes(CPU)
    tensors = allocate({"a": (64 << 20,)}, torch.uint8, CPU)
    tensors["a"].fill_(1)
    full = resident_bytes(CPU)

    del tensors
    trim(CPU)

    assert full - before > 60 << 20
    assert full - resident_bytes(CPU) > 60 << 20


@pytest.mark.process
def test_sleep_frees_the_weights_and_waking_gives_the_same_text(smollm2_path: Path):
    answer = subprocess.run(
        [sys.executable, "-c", SLEEP_AND_WAKE, str(smollm2_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )

    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert all(freed >= 0.8 * found["weights"] for freed in found["released"])
    assert len({tuple(text) for text in found["texts"]}) == 1
