"""The machine that measures: what it is, and how quiet it was."""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Noise:
    """What disturbed a turn."""

    others_cores: float
    """Cores that neither the server nor this client used."""
    steal_share: float
    """Of all CPU time: taken by other guests of the host."""
    load1: float


class Watch:
    """Measures the noise from its making to `noise()`.

    Args:
        server_cpu_s: Gives the CPU seconds of the server so far.
    """

    def __init__(self, server_cpu_s: Callable[[], float]) -> None:
        self._server_cpu_s = server_cpu_s
        self._before = self._read()

    def _read(self) -> tuple[float, float, float, float]:
        times = psutil.cpu_times()
        foreign_s = times.user + times.nice + times.system
        steal_s = float(getattr(times, "steal", 0.0))
        return foreign_s, self._server_cpu_s() + time.process_time(), steal_s, time.monotonic()

    def noise(self) -> Noise:
        """Return what disturbed since."""
        now = self._read()
        busy_s, own_s, steal_s, wall_s = (
            after - before for before, after in zip(self._before, now, strict=True)
        )
        wall_s = max(wall_s, 1e-9)
        return Noise(
            others_cores=max(0.0, busy_s - own_s) / wall_s,
            steal_share=max(0.0, steal_s) / wall_s / (os.cpu_count() or 1),
            load1=os.getloadavg()[0],
        )


def describe() -> dict[str, Any]:
    """Return what the machine is."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / GIB, 1),
        "kernel": platform.release().split("-")[0],
        "load": os.getloadavg()[0],
    }


def _cpu_model() -> str:
    """Return the model, and those of its instruction sets that matter here."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    wanted = ("avx2", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_int8", "i8mm", "bf16")
    found = " ".join(flag for flag in wanted if flag in flags)
    return f"{fields.get('model name', platform.machine())} ({found})"
