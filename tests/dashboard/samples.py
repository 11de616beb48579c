"""Rows of the admin schemas with sensible values."""

from datetime import UTC, datetime, timedelta
from typing import Any

from appliance.supervisor.admin.schemas import (
    AdapterOnEngine,
    AdapterRow,
    EngineRow,
    JournalEvent,
    Operation,
    Percentiles,
    RequestRow,
    Snapshot,
    Span,
    Stats,
    Trace,
)

AT = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
REQUEST_ID = "req-0123456789abcdef01234567"
MS = 1_000_000


def an_engine(engine_id: str = "e0", **changes: Any) -> EngineRow:
    values: dict[str, Any] = {
        "id": engine_id,
        "state": "ready",
        "epoch": 1,
        "pid": 4711,
        "model": "smollm2",
        "served_names": ["smollm2"],
        "device": "cpu",
        "weights_bytes": 290_000_000,
        "resident_bytes": 520_000_000,
        "since": AT,
        "allowed_actions": ["sleep", "restart"],
    }
    return EngineRow(**{**values, **changes})


def an_adapter(name: str = "sql-lora", **changes: Any) -> AdapterRow:
    values: dict[str, Any] = {
        "name": name,
        "state": "loaded",
        "model": "smollm2",
        "path": f"/srv/adapters/{name}",
        "content_hash": "ab12cd34" * 8,
        "rank": 16,
        "num_bytes": 1_800_000,
        "targets": ["q_proj", "v_proj"],
        "engines": [AdapterOnEngine(engine="e0", state="loaded", active=True, resident=True)],
    }
    return AdapterRow(**{**values, **changes})


def a_request(request_id: str = REQUEST_ID, **changes: Any) -> RequestRow:
    values: dict[str, Any] = {
        "id": request_id,
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "state": "decode",
        "route": "/v1/chat/completions",
        "model": "smollm2",
        "engine": "e0",
        "gateway": "gateway-0",
        "stream": True,
        "received_at": AT,
        "age_s": 1.0,
    }
    return RequestRow(**{**values, **changes})


def stats(at: datetime = AT, **changes: Any) -> Stats:
    none = Percentiles()
    values: dict[str, Any] = {
        "at": at,
        "window_s": 60.0,
        "running": 0,
        "waiting": 0,
        "held": 0,
        "requests_per_s": 0.0,
        "prompt_tokens_per_s": 0.0,
        "generation_tokens_per_s": 0.0,
        "error_ratio": 0.0,
        "ttft_ms": none,
        "tpot_ms": none,
        "queue_ms": none,
        "e2e_ms": none,
        "received": 0,
        "rejected": 0,
        "finished": 0,
        "aborted": 0,
        "failed": 0,
        "dropped_records": 0,
    }
    return Stats(**{**values, **changes})


def a_snapshot(**changes: Any) -> Snapshot:
    values: dict[str, Any] = {
        "engines": [an_engine()],
        "gateways": [],
        "requests": [],
        "operations": [],
        "stats": stats(),
        "events": [],
    }
    return Snapshot(**{**values, **changes})


def an_event(event_id: int = 1, text: str = "e0 is ready", **changes: Any) -> JournalEvent:
    values: dict[str, Any] = {
        "id": event_id,
        "at": AT,
        "kind": "engine.ready",
        "level": "info",
        "subject": "e0",
        "text": text,
    }
    return JournalEvent(**{**values, **changes})


def an_operation(kind: str = "sleep", **changes: Any) -> Operation:
    values: dict[str, Any] = {
        "id": "op-1",
        "kind": kind,
        "target": "e0",
        "state": "done",
        "actor": "local",
        "trace_id": "0" * 32,
        "created_at": AT,
        "ended_at": AT + timedelta(seconds=0.4),
        "result": {"freed_bytes": 268_000_000},
    }
    return Operation(**{**values, **changes})


def a_span(name: str, start_ms: float, end_ms: float, parent: str | None, **changes: Any) -> Span:
    values: dict[str, Any] = {
        "name": name,
        "kind": "internal",
        "process": "gateway-0",
        "start_ns": int(start_ms * MS),
        "end_ns": int(end_ms * MS),
        "span_id": name,
        "parent_id": parent,
    }
    return Span(**{**values, **changes})


def a_trace(**changes: Any) -> Trace:
    """100 ms: 40 queued, first token at 60, four output messages."""
    spans = [
        a_span("POST /v1/chat/completions", 0, 100, None, kind="server", span_id="root"),
        a_span("auth", 0, 2, "root"),
        a_span("chat smollm2", 2, 98, "root", kind="client", span_id="chat"),
        a_span("queue", 2, 42, "chat", process="e0"),
        a_span("prefill", 42, 60, "chat", process="e0"),
        a_span("decode", 60, 98, "chat", process="e0", span_id="decode"),
        a_span("stream", 98, 100, "root"),
    ]
    for step in range(4):
        at = 60 + 9 * step
        spans += [
            a_span(
                "send EngineOutputs", at, at + 1, "decode",
                kind="producer", process="e0", span_id=f"send{step}", linked=True,
            ),
            a_span(
                "process EngineOutputs", at + 1, at + 2, f"send{step}",
                kind="consumer", span_id=f"process{step}", linked=True,
            ),
        ]  # fmt: skip
    values: dict[str, Any] = {
        "request": a_request(state="finished", age_s=0.1, ttft_ms=60.0, queue_ms=40.0, status=200),
        "headline": "TTFT 60 ms: 67 % queued, 4x the recent median",
        "spans": spans,
        "complete": True,
    }
    return Trace(**{**values, **changes})
