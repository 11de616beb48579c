"""Memory that really goes back to the system when an engine sleeps.

glibc keeps freed blocks in its arenas, so weights in ordinary tensors would stay resident. Large
tensors on the CPU therefore live in anonymous mappings of their own, which end with their last
tensor; `trim` returns what small allocations left behind.
"""

import ctypes
import gc
import mmap
import os
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import torch
from torch import Tensor

_ALIGNMENT_BYTES = 64
_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(device: torch.device) -> int:
    """Return the process's resident set on the CPU, else the bytes that torch holds on a GPU."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    return int(_STATM.read_text().split()[1]) * _PAGE_BYTES


def trim(device: torch.device) -> None:
    """Collect garbage and give free memory back to the system (or to the device)."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    libc = ctypes.CDLL(None)
    malloc_trim = getattr(libc, "malloc_trim", None)  # glibc only
    if malloc_trim is not None:
        malloc_trim(0)


def allocate(
    shapes: Mapping[str, Sequence[int]], dtype: torch.dtype, device: torch.device
) -> dict[str, Tensor]:
    """Make one zeroed block of memory and cut it into the named tensors.

    On the CPU pages become resident when they are first written, and the block is unmapped when
    its last tensor is dropped.
    """
    starts: dict[str, int] = {}
    end = 0
    for name, shape in shapes.items():
        starts[name] = end
        end += _aligned(prod(shape) * dtype.itemsize)
    block = _block(max(end, _ALIGNMENT_BYTES), device)
    return {
        name: block.narrow(0, starts[name], prod(shape) * dtype.itemsize).view(dtype).view(*shape)
        for name, shape in shapes.items()
    }


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _block(size: int, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(size, dtype=torch.uint8, device=device)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)  # fewer misses when much of it is read in each step
    return torch.frombuffer(pages, dtype=torch.uint8)
