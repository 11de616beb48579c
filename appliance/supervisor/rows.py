"""What the admin API shows of engines and gateways, and what gateways are told of engines."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from appliance.control_link.messages import EngineRoute
from appliance.supervisor.admin.schemas import EngineRow, GatewayRow
from appliance.supervisor.engine_verbs import progress_of
from appliance.supervisor.lifecycle import EngineState
from appliance.supervisor.managed_engine import EngineFacts, ManagedEngine
from appliance.supervisor.managed_gateway import ManagedGateway
from engine.clock import now_ns
from engine.wire.messages import EngineReady
from engine.wire.stats import EngineStats

FIRST_GUESS_S = 10.0
"""How long a start takes, before one was seen."""
GIVEN_UP_RETRY_S = 60.0
NS_PER_S = 1e9


def wall_time(at_ns: int) -> datetime:
    """Return a clock reading as wall-clock time."""
    return datetime.now(UTC) + timedelta(microseconds=(at_ns - now_ns()) / 1000)


def engine_row(engine: ManagedEngine, adapters: Sequence[str] = ()) -> EngineRow:
    """Return one engine as the admin API shows it; `adapters` are those that it can use now."""
    life, config = engine.life, engine.plan.config
    row = EngineRow(
        id=engine.engine_id,
        state=life.state.value,
        reason=life.reason,
        phase=life.phase,
        progress=progress_of(life),
        epoch=life.epoch,
        pid=engine.child.pid if engine.child else None,
        model=config.model_name,
        served_names=list(engine.plan.served_names),
        device=config.device,
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        sleep_level=life.sleep_level,
        desired_sleep_level=engine.desired_sleep_level,
        restarts=life.restarts,
        heartbeat_age_s=engine.heartbeat_age_s,
        since=wall_time(engine.since_ns),
        next_restart_at=wall_time(engine.next_start_ns) if engine.next_start_ns else None,
        last_exit=life.last_exit,
        allowed_actions=life.allowed_actions,
        adapters=list(adapters),
    )
    return row.model_copy(update=_measured(engine.facts)) if life.is_alive else row


def _measured(facts: EngineFacts) -> dict[str, object]:
    """What the running epoch has said about itself."""
    values: dict[str, object] = {}
    if facts.ready is not None:
        ready = facts.ready
        values |= {
            "device": ready.device,
            "dtype": ready.dtype,
            "dtype_reason": ready.dtype_reason,
            "kernel_backend": ready.kernel_backend,
            **_kernels(ready),
            "max_model_len": ready.max_model_len,
            "weights_bytes": ready.weights_bytes,
            "kv_cache_bytes": ready.kv_cache_bytes,
            "resident_bytes": ready.resident_bytes,
            "start_phases": {p.name: (p.end_ns - p.start_ns) / NS_PER_S for p in ready.phases},
        }
    if facts.stats is not None:
        stats = facts.stats
        values |= {
            "resident_bytes": stats.resident_bytes,
            "running": stats.running,
            "waiting": stats.waiting,
            "kv_used_ratio": stats.used_blocks / stats.num_blocks if stats.num_blocks else 0.0,
            "tokens_per_s": round(facts.throughput.per_second(now_ns() / 1e9), 1),
            "steps": stats.step,
            "step_parts": _step_parts(stats),
        }
    return values


def _kernels(ready: EngineReady) -> dict[str, object]:
    """What computes and how weights and keys are kept; None where an engine does not say."""
    return {
        "kernel_path": ready.kernel_path or None,
        "kernel_reason": ready.kernel_reason or None,
        "quantization": ready.quantization,
        "quantization_reason": ready.quantization_reason or None,
        "kv_cache_dtype": ready.kv_cache_dtype or None,
        "weight_cache": ready.weight_cache,
        "num_threads": ready.num_threads or None,
        "num_parameters": ready.num_parameters or None,
    }


def _step_parts(stats: EngineStats) -> dict[str, float]:
    """Return the share of each part in the time of its steps."""
    parts = {
        "schedule": stats.schedule_seconds,
        "build": stats.build_seconds,
        "forward": stats.forward_seconds,
        "sample": stats.sample_seconds,
        "send": stats.send_seconds,
    }
    whole_s = sum(parts.values())
    return {name: round(part_s / whole_s, 4) for name, part_s in parts.items()} if whole_s else {}


def gateway_row(gateway: ManagedGateway) -> GatewayRow:
    """Return one gateway as the admin API shows it."""
    return GatewayRow(
        name=gateway.name,
        epoch=gateway.epoch,
        pid=gateway.child.pid if gateway.child else None,
        state=gateway.state,
        restarts=gateway.restarts,
        live_requests=gateway.live_requests,
    )


def engine_route(engine: ManagedEngine, adapters: Sequence[str] = ()) -> EngineRoute:
    """Return one engine as gateways need to know it; `adapters` are those that it can use now."""
    life, config = engine.life, engine.plan.config
    return EngineRoute(
        engine_id=engine.engine_id,
        epoch=life.epoch,
        state=life.state.value,
        phase=life.phase or "",
        done=life.done,
        total=life.total,
        reason=life.reason,
        model=engine.plan.served_names[0],
        served_names=engine.plan.served_names,
        model_path=config.model,
        ready=engine.facts.ready if life.is_alive else None,
        sleep_level=life.sleep_level,
        retry_after_s=retry_after_s(engine),
        adapters=tuple(adapters),
    )


def retry_after_s(engine: ManagedEngine) -> float:
    """Guess when it may be worth asking this engine again."""
    start_s = engine.last_start_s or FIRST_GUESS_S
    in_state_s = (now_ns() - engine.since_ns) / 1e9
    match engine.life.state:
        case EngineState.READY:
            return 1.0
        case EngineState.STARTING | EngineState.WAKING:
            return max(1.0, start_s - in_state_s)
        case EngineState.BACKOFF:
            wait_s = (engine.next_start_ns or now_ns()) - now_ns()
            return max(0.0, wait_s / 1e9) + start_s
        case EngineState.CRASH_LOOP | EngineState.FAILED | EngineState.STOPPED:
            return GIVEN_UP_RETRY_S
        case EngineState.ASLEEP | EngineState.DRAINING:
            return start_s
