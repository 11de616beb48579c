"""What the journal says of engines and gateways: short sentences for people. Pure."""

from appliance.supervisor.lifecycle import EngineState, Lifecycle
from appliance.supervisor.managed_engine import ManagedEngine
from appliance.supervisor.managed_gateway import ManagedGateway
from engine.clock import now_ns
from engine.wire.messages import EngineReady

_GOES = {
    "sleep": "goes to sleep",
    "restart": "is ended to start again",
    "stop": "is ended",
}


def engine_text(engine: ManagedEngine, before: EngineState | None) -> str:
    """Say what state an engine has entered; `before`: the one it comes from."""
    life = engine.life
    match life.state:
        case EngineState.READY:
            return _ready(engine, before)
        case EngineState.BACKOFF:
            wait_s = ((engine.next_start_ns or now_ns()) - now_ns()) / 1e9
            return f"{life.reason}; next start in {max(0.0, wait_s):.1f} s"
        case EngineState.CRASH_LOOP:
            return f"left down after {engine.policy.deaths} deaths in a row: {life.reason}"
        case _:
            return _plain(life)


def _plain(life: Lifecycle) -> str:
    """Say the states that need no more than the lifecycle."""
    texts = {
        EngineState.STARTING: _starting(life),
        EngineState.DRAINING: _GOES.get(life.phase or "", f"hangs: {life.reason}"),
        EngineState.ASLEEP: f"asleep at level {life.sleep_level}",
        EngineState.WAKING: f"wakes from level {life.sleep_level}",
        EngineState.FAILED: f"cannot start like this: {life.reason}",
    }
    return texts.get(life.state, "has ended")


def _starting(life: Lifecycle) -> str:
    if life.last_exit is None:
        return "starts"
    was_asked = life.last_exit.startswith("exit code 0")
    return "starts again" if was_asked else f"starts again after: {life.last_exit}"


def gateway_text(gateway: ManagedGateway) -> str:
    """Say what state a gateway has entered."""
    match gateway.state:
        case "starting":
            return f"starts (epoch {gateway.epoch})"
        case "ready":
            pid = "none" if gateway.child is None else gateway.child.pid
            return f"ready: process {pid} (epoch {gateway.epoch})"
        case "backoff":
            return "waits before its next start"
        case "stopped":
            return "has ended"


def _ready(engine: ManagedEngine, before: EngineState | None) -> str:
    if before is not EngineState.STARTING or engine.facts.ready is None:
        why = f": {engine.life.reason}" if engine.life.reason else ""
        return f"serves again{why}"
    ready = engine.facts.ready
    start_s = engine.last_start_s or 0.0
    why = f" ({ready.dtype_reason})" if ready.dtype_reason else ""
    return (
        f"ready: {engine.plan.config.model_name}, {ready.dtype}{why},"
        f" {ready.num_blocks} KV blocks, {start_s:.1f} s; {kernel_text(ready)}"
    )


def kernel_text(ready: EngineReady) -> str:
    """Say how weights and keys are kept, and what computes, with the reasons."""
    weights = ready.dtype if ready.quantization == "none" else ready.quantization
    path = ready.kernel_path or ready.kernel_backend
    threads = f" on {ready.num_threads} threads" if ready.num_threads else ""
    told = f"weights {weights}{_because(ready.quantization_reason)}"
    if ready.kv_cache_dtype:
        told += f", KV {ready.kv_cache_dtype}"
    return f"{told}, kernels {path}{threads}{_because(ready.kernel_reason)}"


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""
