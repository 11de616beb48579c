"""What `ps ENGINE` shows of one engine: a line for each fact."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from appliance.cli.output import size

if TYPE_CHECKING:
    from appliance.supervisor.admin.schemas import EngineRow

_NOTHING = "-"


def weights_of(row: "EngineRow") -> str:
    """Return how most of its weights are kept: a quantization, else a dtype."""
    is_plain = row.quantization in (None, "none")
    return (row.dtype if is_plain else row.quantization) or _NOTHING


def engine_facts(row: "EngineRow") -> Iterator[tuple[str, str]]:
    """Yield name and value of all that is worth knowing of an engine."""
    yield from _life(row)
    yield from _computing(row)
    yield from _memory(row)
    if row.adapters:
        yield "adapters", ", ".join(row.adapters)
    if row.start_phases:
        yield "start", ", ".join(f"{name} {took:.1f} s" for name, took in row.start_phases.items())


def _life(row: "EngineRow") -> Iterator[tuple[str, str]]:
    yield "engine", row.id
    yield "state", row.state + _because(row.reason)
    yield "process", _NOTHING if row.pid is None else f"{row.pid}, epoch {row.epoch}"
    yield "restarts", str(row.restarts)
    if row.last_exit:
        yield "last exit", row.last_exit


def _computing(row: "EngineRow") -> Iterator[tuple[str, str]]:
    yield "model", row.model
    threads = f", {row.num_threads} threads" if row.num_threads else ""
    yield "device", f"{row.device}{threads}"
    yield "computes in", (row.dtype or _NOTHING) + _because(row.dtype_reason)
    kernels = row.kernel_path or row.kernel_backend or _NOTHING
    yield "kernels", kernels + _because(row.kernel_reason)
    yield "weights", weights_of(row) + _because(row.quantization_reason)
    yield "KV cache in", row.kv_cache_dtype or _NOTHING
    yield "weight cache", row.weight_cache or _NOTHING


def _memory(row: "EngineRow") -> Iterator[tuple[str, str]]:
    yield "resident", size(row.resident_bytes)
    yield "weights take", size(row.weights_bytes)
    yield "KV cache takes", f"{size(row.kv_cache_bytes)}, {100 * row.kv_used_ratio:.0f} % in use"
    context = _NOTHING if row.max_model_len is None else f"{row.max_model_len} tokens"
    yield "longest context", context
    yield "load", f"{row.running} running, {row.waiting} waiting, {row.tokens_per_s:.1f} tokens/s"


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""
