"""What holds of an engine now, as levels: they go when it goes."""

from collections.abc import Iterator
from typing import get_args

from appliance.supervisor.admin.schemas import EngineRow, EngineStateName
from appliance.telemetry import names
from appliance.telemetry.accounts import Level
from engine.wire.messages import EngineReady, EngineStats

STATES: tuple[str, ...] = get_args(EngineStateName)
NS_PER_S = 1e9


def row_levels(row: EngineRow) -> Iterator[Level]:
    """Yield what the supervisor itself knows of an engine, dead or alive."""
    for state in STATES:
        yield names.ENGINE_STATE, (row.id, state), float(row.state == state)
    yield names.ENGINE_INFO, _info(row), 1.0
    yield names.ENGINE_RESTARTS, (row.id,), row.restarts


def _info(row: EngineRow) -> tuple[str, ...]:
    """Return the labels of `ENGINE_INFO`; what is not known yet is empty."""
    facts = (
        row.dtype,
        row.kernel_backend,
        row.kernel_path,
        row.quantization,
        row.kv_cache_dtype,
        row.num_threads,
    )
    return (row.id, row.model, row.device, *(str(fact or "") for fact in facts))


def silent_levels(row: EngineRow) -> Iterator[Level]:
    """Yield the loads of an engine that says nothing (it starts, or is dead): nothing is in it."""
    label = (row.id,)
    yield names.ENGINE_RUNNING, label, 0
    yield names.ENGINE_WAITING, label, 0
    yield names.KV_USED_RATIO, label, 0
    yield names.ENGINE_RESIDENT, label, row.resident_bytes or 0
    yield names.ENGINE_SLEEP_LEVEL, label, row.sleep_level


def stats_levels(engine_id: str, stats: EngineStats) -> Iterator[Level]:
    """Yield what an engine last said of itself."""
    label = (engine_id,)
    yield names.ENGINE_RUNNING, label, stats.running
    yield names.ENGINE_WAITING, label, stats.waiting
    yield names.KV_USED_RATIO, label, stats.used_blocks / max(1, stats.num_blocks)
    yield names.ENGINE_RESIDENT, label, stats.resident_bytes
    yield names.ENGINE_CACHED_BLOCKS, label, stats.cached_blocks
    yield names.ENGINE_ADAPTERS, (engine_id, "loaded"), stats.adapters_loaded
    yield names.ENGINE_ADAPTERS, (engine_id, "active"), stats.adapters_active
    yield names.ENGINE_KV_BLOCKS, label, stats.num_blocks
    yield names.ENGINE_BATCH_LIMIT, label, stats.max_num_seqs
    yield names.ENGINE_SLEEP_LEVEL, label, stats.sleep_level
    yield names.QUEUE_DEPTH, (engine_id, "inbox"), stats.inbox
    yield names.QUEUE_DEPTH, (engine_id, "outbox"), stats.outbox
    yield names.QUEUE_DEPTH, (engine_id, "records"), stats.records_waiting


def ready_levels(engine_id: str, ready: EngineReady) -> Iterator[Level]:
    """Yield what an engine told when its start was done."""
    label = (engine_id,)
    yield names.ENGINE_PEAK_FLOPS, label, ready.peak_flops
    yield names.ENGINE_PEAK_BYTES, label, ready.peak_bytes_per_s
    sizes = (str(ready.block_size), str(ready.num_blocks))
    yield names.CACHE_CONFIG, (engine_id, *sizes), 1.0
    for phase in ready.phases:
        took_s = (phase.end_ns - phase.start_ns) / NS_PER_S
        yield names.ENGINE_START_SECONDS, (engine_id, phase.name), took_s


def lora_level(engine_id: str, ready: EngineReady, stats: EngineStats, unix_s: float) -> Level:
    """Return which adapters are in use, as the Kubernetes inference gateway wants to read it.

    The value is the time of the report, by which a reader finds the newest of several series.
    """
    running, waiting = (
        ",".join(sorted(name for name, count in use if count))
        for use in (stats.adapter_running, stats.adapter_waiting)
    )
    return names.LORA_INFO, (engine_id, str(ready.max_loras), running, waiting), unix_s
