"""Chooses the kernel backend for a device."""

import torch

from engine.kernels.backend import KernelBackend
from engine.kernels.reference.backend import ReferenceBackend


def select_backend(device: torch.device) -> KernelBackend:
    """Return the fastest backend that runs on `device`: so far the reference runs on all."""
    del device
    return ReferenceBackend()
