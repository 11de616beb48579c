"""Builds the spans of an engine's start from the phases that it reports when it is ready."""

from appliance.telemetry import names
from appliance.telemetry.span_data import SpanData
from engine.wire.header import new_span_id, new_trace_id
from engine.wire.messages import EngineReady


def start_spans(engine_id: str, epoch: int, ready: EngineReady) -> list[SpanData]:
    """Build one trace: `engine.start` with a child for each phase; empty without phases."""
    if not ready.phases:
        return []
    root = SpanData(
        trace_id=new_trace_id(),
        span_id=new_span_id(),
        parent_id=None,
        name="engine.start",
        kind="internal",
        process=engine_id,
        start_ns=min(phase.start_ns for phase in ready.phases),
        end_ns=max(phase.end_ns for phase in ready.phases),
        attributes={
            names.ENGINE_ID: engine_id,
            names.ENGINE_EPOCH: epoch,
            "quarterdeck.engine.device": ready.device,
            "quarterdeck.engine.dtype": ready.dtype,
            "quarterdeck.engine.weights_bytes": ready.weights_bytes,
            "quarterdeck.engine.num_blocks": ready.num_blocks,
        },
    )
    phases = [
        SpanData(
            trace_id=root.trace_id,
            span_id=new_span_id(),
            parent_id=root.span_id,
            name=f"start {phase.name}",
            kind="internal",
            process=engine_id,
            start_ns=phase.start_ns,
            end_ns=phase.end_ns,
            attributes={},
        )
        for phase in ready.phases
    ]
    return [root, *phases]
