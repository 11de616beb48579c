"""Measures what the device can do at its best, once, when an engine starts.

Operations by the product of two square matrices, bytes by a sum over more memory than caches hold:
the ceilings of the roofline model (Williams, Waterman, Patterson 2009). Takes about 0.1 s.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

SIDE = 768
READ_BYTES = 64 << 20
ROUNDS = 3
BUDGET_S = 0.05
"""For each of the two."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Best figures per second."""

    flops: float
    bytes_per_s: float


@torch.inference_mode()
def measure_ceilings(dtype: torch.dtype, device: torch.device) -> Ceilings:
    """Return what this device reached in `dtype`."""
    left = torch.ones((SIDE, SIDE), dtype=dtype, device=device)
    right = torch.ones((SIDE, SIDE), dtype=dtype, device=device)
    matmul_s = _best_s(lambda: left @ right, device)
    memory = torch.ones(READ_BYTES // 4, dtype=torch.float32, device=device)
    read_s = _best_s(memory.sum, device)
    return Ceilings(flops=2.0 * SIDE**3 / matmul_s, bytes_per_s=READ_BYTES / read_s)


def _best_s(run: Callable[[], torch.Tensor], device: torch.device) -> float:
    """Return the shortest time of a few runs within the budget, after one to warm up."""
    run()
    best_s, began_s = float("inf"), time.perf_counter()
    for _ in range(ROUNDS):
        start_s = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best_s = min(best_s, time.perf_counter() - start_s)
        if time.perf_counter() - began_s > BUDGET_S:
            break
    return best_s
