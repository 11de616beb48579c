"""Which kernels compute a model, and in which dtype: decided once, with the reason."""

from dataclasses import dataclass
from typing import Literal

import torch

from engine.config import EngineConfig
from engine.core.batch import ConfigError
from engine.core.dtype import DtypeChoice, UnknownDtypeError, choose_dtype
from engine.kernels.cpu.library import (
    NoLibraryError,
    all_instruction_sets,
    instruction_sets,
)

QUANTIZATIONS = ("auto", "none", "int8", "w4")
KV_CACHE_DTYPES = ("auto", "bfloat16", "int8")


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """What was chosen."""

    backend: Literal["reference", "cpu"]
    path: str
    """`torch`, or an instruction set."""
    reason: str
    dtype: DtypeChoice


def choose_kernels(config: EngineConfig, device: torch.device, saved: str | None) -> KernelChoice:
    """Choose the CPU kernels where they can do what was asked for, else the reference.

    Args:
        config: What was asked for.
        device: Where the model runs.
        saved: The dtype that the checkpoint names, if it does.

    Raises:
        ConfigError: what was asked for contradicts itself, or cannot be done here.
    """
    _check_names(config)
    backend, _, wanted_path = config.kernels.partition(":")
    obstacle = None if backend == "cpu" else _obstacle(config, device, saved)
    if backend == "cpu" and device.type != "cpu":
        raise ConfigError(f"kernels {config.kernels!r} run on the device cpu, not on {device}")
    if backend == "cpu" and config.dtype not in (None, "bfloat16"):
        raise ConfigError(f"kernels {config.kernels!r} do not compute in dtype {config.dtype}")
    if obstacle is None:
        try:
            path, reason = _path(wanted_path)
        except NoLibraryError as error:
            if backend == "cpu":
                raise ConfigError(f"kernels {config.kernels!r}: {error}") from error
            obstacle = str(error)
        else:
            return KernelChoice("cpu", path, reason, _cpu_dtype(saved))
    _refuse_what_only_cpu_kernels_do(config, obstacle)
    try:
        dtype = choose_dtype(config.dtype, device, saved)
    except UnknownDtypeError as error:
        raise ConfigError(str(error)) from error
    _refuse_another_cache(config.kv_cache_dtype, dtype.name)
    return KernelChoice("reference", "torch", obstacle, dtype)


def _check_names(config: EngineConfig) -> None:
    for name, value, known in (
        ("quantization", config.quantization, QUANTIZATIONS),
        ("kv_cache_dtype", config.kv_cache_dtype, KV_CACHE_DTYPES),
        ("kernels", config.kernels.partition(":")[0], ("auto", "reference", "cpu")),
    ):
        if value not in known:
            raise ConfigError(f"{name} {value!r} is unknown; known: {', '.join(known)}")
    if ":" in config.kernels and not config.kernels.startswith("cpu:"):
        raise ConfigError(f"kernels {config.kernels!r}: only cpu has instruction sets")


def _obstacle(config: EngineConfig, device: torch.device, saved: str | None) -> str | None:
    """Return why the reference computes; None: the CPU kernels can."""
    if config.kernels == "reference":
        return "the reference kernels were asked for"
    if device.type != "cpu":
        return f"{device.type} has no kernels of its own"
    if config.dtype not in (None, "bfloat16"):
        return f"dtype {config.dtype} was asked for, which the cpu kernels do not compute in"
    asked = config.dtype is not None or config.quantization in ("int8", "w4")
    if saved == "float32" and not asked:
        return "the checkpoint is float32; with dtype bfloat16 the faster cpu kernels compute it"
    return None


def _path(wanted: str) -> tuple[str, str]:
    """Return the instruction set and why it was chosen.

    Raises:
        NoLibraryError: the kernels are not there.
        ConfigError: the wanted one is not in this build, or this machine does not run it.
    """
    here = instruction_sets()
    if not wanted:
        return here[0], "the best that this machine runs"
    if wanted not in all_instruction_sets():
        known = ", ".join(all_instruction_sets())
        raise ConfigError(f"kernels cpu:{wanted} is unknown; this build has: {known}")
    if wanted not in here:
        raise ConfigError(f"this machine does not run cpu:{wanted}; it runs: {', '.join(here)}")
    return wanted, "it was asked for"


def _cpu_dtype(saved: str | None) -> DtypeChoice:
    if saved in ("float32", "float16"):
        return DtypeChoice(torch.bfloat16, f"the checkpoint is {saved}, the cpu kernels are not")
    return DtypeChoice(torch.bfloat16)


def _refuse_what_only_cpu_kernels_do(config: EngineConfig, obstacle: str) -> None:
    for name, value, plain in (
        ("quantization", config.quantization, ("auto", "none")),
        ("kv_cache_dtype", config.kv_cache_dtype, ("auto", "bfloat16")),
    ):
        if value not in plain:
            raise ConfigError(f"{name} {value} needs the cpu kernels, but {obstacle}")


def _refuse_another_cache(wanted: str, computes_in: str) -> None:
    if wanted not in ("auto", computes_in):
        raise ConfigError(
            f"kv_cache_dtype {wanted}: the reference kernels keep keys and values in what they "
            f"compute in, {computes_in}"
        )
