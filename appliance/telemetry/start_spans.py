"""Builds the trace of an engine's start: from the spawn of its process until it can serve."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from appliance.telemetry import names
from appliance.telemetry.span_data import Attributes, SpanData
from appliance.telemetry.span_ids import derived_span_id
from engine.wire.header import TraceContext, new_context
from engine.wire.messages import EngineReady

ROOT = "engine.start"
SPAWN = "spawn"
"""From the spawn to the process's first own phase: the interpreter's start."""


class _Phase(NamedTuple):
    name: str
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class _Start:
    context: TraceContext
    spawned_ns: int
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)
    """First and last word of each phase that has not been reported whole."""


class Starts:
    """Follows the starts of engines; each becomes one trace, at its end.

    Args:
        emit: Takes finished spans.
    """

    def __init__(self, emit: Callable[[Sequence[SpanData]], None]) -> None:
        self._emit = emit
        self._starts: dict[tuple[str, int], _Start] = {}
        self._ended: dict[str, int] = {}

    def spawned(self, engine_id: str, epoch: int, at_ns: int, context: TraceContext) -> None:
        """A process was spawned; `context` is that of the start's root span."""
        self._starts[engine_id, epoch] = _Start(context, at_ns)

    def progress(self, engine_id: str, epoch: int, phase: str, at_ns: int) -> None:
        """An engine said in which phase it is."""
        start = self._starts.get((engine_id, epoch))
        if start is not None:
            first_ns, _ = start.seen.get(phase, (at_ns, at_ns))
            start.seen[phase] = (first_ns, at_ns)

    def ready(self, engine_id: str, epoch: int, ready: EngineReady) -> None:
        """An engine can serve; a repeat is ignored, as every client gets the message."""
        if self._ended.get(engine_id, -1) >= epoch:
            return
        self._ended[engine_id] = epoch
        start = self._starts.pop((engine_id, epoch), None)
        phases = [_Phase(p.name, p.start_ns, p.end_ns) for p in ready.phases]
        if start is None and not phases:
            return
        told: Attributes = {
            names.ENGINE_DEVICE: ready.device,
            names.ENGINE_DTYPE: ready.dtype,
            names.ENGINE_KERNELS: ready.kernel_path or ready.kernel_backend,
            names.ENGINE_QUANTIZATION: ready.quantization,
            names.ENGINE_KV_DTYPE: ready.kv_cache_dtype,
            names.ENGINE_WEIGHT_CACHE: ready.weight_cache,
            names.ENGINE_THREADS: ready.num_threads,
            names.ENGINE_WEIGHTS: ready.weights_bytes,
            names.ENGINE_BLOCKS: ready.num_blocks,
        }
        spawned_ns = phases[0].start_ns if start is None else start.spawned_ns
        context = new_context() if start is None else start.context
        self._emit(_trace((engine_id, epoch), context, spawned_ns, phases, told))

    def died(self, engine_id: str, epoch: int, at_ns: int, reason: str) -> None:
        """A process is gone; a start that it was in has failed."""
        start = self._starts.pop((engine_id, epoch), None)
        if start is None:
            return
        phases = [_Phase(name, *bounds) for name, bounds in start.seen.items()]
        if phases:  # the last one ran until now
            phases[-1] = phases[-1]._replace(end_ns=at_ns)
        spans = _trace((engine_id, epoch), start.context, start.spawned_ns, phases, {})
        root = spans[0]
        root.end_ns, root.error = at_ns, "engine_died"
        root.attributes |= {names.ERROR_TYPE: "engine_died", names.EVENT_TEXT: reason}
        self._emit(spans)


def _trace(
    engine: tuple[str, int],
    context: TraceContext,
    spawned_ns: int,
    phases: Sequence[_Phase],
    told: Attributes,
) -> list[SpanData]:
    engine_id, epoch = engine
    first_ns = min((phase.start_ns for phase in phases), default=spawned_ns)
    if spawned_ns < first_ns:
        phases = [_Phase(SPAWN, spawned_ns, first_ns), *phases]
    root = SpanData(
        trace_id=context.trace_id,
        span_id=context.span_id,
        parent_id=None,
        name=ROOT,
        kind="internal",
        process=engine_id,
        start_ns=min(spawned_ns, first_ns),
        end_ns=max((phase.end_ns for phase in phases), default=spawned_ns),
        attributes={names.ENGINE_ID: engine_id, names.ENGINE_EPOCH: epoch, **told},
    )
    return [root, *(_child(root, number, phase) for number, phase in enumerate(phases))]


def _child(root: SpanData, number: int, phase: _Phase) -> SpanData:
    return SpanData(
        trace_id=root.trace_id,
        span_id=derived_span_id(root.span_id, phase.name, str(number)),
        parent_id=root.span_id,
        name=f"start {phase.name}",
        kind="internal",
        process=root.process if phase.name != SPAWN else "supervisor",
        start_ns=phase.start_ns,
        end_ns=phase.end_ns,
        attributes={},
    )
