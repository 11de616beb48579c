"""Explanations, promises, log lines, profiles with sensible values."""

from datetime import timedelta
from typing import Any

from appliance.supervisor.admin.schemas import (
    AuditEntry,
    BurnRate,
    Cause,
    Evidence,
    Explanation,
    ExportStatus,
    FlightEvent,
    FlightReport,
    FlightStep,
    LogLine,
    Moment,
    MomentRow,
    PhaseAgainstCohort,
    ProfileFile,
    ProfileRow,
    SloRow,
    StageDrops,
    TelemetrySettings,
)
from tests.dashboard.samples import AT, REQUEST_ID, an_event


def an_explanation(**changes: Any) -> Explanation:
    """Of `samples.a_trace`: 40 ms in the queue, and a long prefill beside it."""
    queue = Evidence(
        text="8 requests were in the batch", value=40.0, unit="ms", ratio=11.0, span_id="queue"
    )
    beside = Evidence(text="req-9 prefilled 1,900 tokens in step 88", span_id="prefill")
    values: dict[str, Any] = {
        "request_id": REQUEST_ID,
        "verdict": "Slow because it waited: 36 ms of 100 ms are beyond the median.",
        "causes": [
            Cause(
                kind="queue",
                text="waited 40 ms in the queue, 11x the median of this hour",
                cost_ms=36.0,
                share=0.8,
                confidence="sure",
                advice="add an engine",
                evidence=[queue],
            ),
            Cause(
                kind="long_prefill_beside",
                text="shared a step with a long prompt",
                cost_ms=9.0,
                share=0.2,
                confidence="weak",
                evidence=[beside],
            ),
        ],
        "phases": [
            PhaseAgainstCohort(phase="queue", ms=40.0, median_ms=3.6, p95_ms=9.0, ratio=11.1),
            PhaseAgainstCohort(phase="decode", ms=38.0, median_ms=37.0, p95_ms=60.0, ratio=1.0),
        ],
        "cohort": "212 requests of smollm2 in the last hour",
        "cohort_size": 212,
        "duration_ms": 100.0,
        "excess_ms": 45.0,
        "critical_path": ["root", "queue", "prefill", "decode"],
    }
    return Explanation(**{**values, **changes})


def an_slo(name: str = "ttft", state: str = "ok", **changes: Any) -> SloRow:
    values: dict[str, Any] = {
        "name": name,
        "objective": 0.99,
        "threshold_ms": 500.0 if name != "availability" else None,
        "good": 9_900,
        "bad": 45,
        "ratio": 0.9955,
        "budget_left": 0.55,
        "burn": [BurnRate(window="5m", rate=None), BurnRate(window="1h", rate=0.4)],
        "state": state,
    }
    return SloRow(**{**values, **changes})


def a_moment(**changes: Any) -> Moment:
    values: dict[str, Any] = {
        "since": AT,
        "until": AT + timedelta(seconds=60),
        "summary": ["e1 died of signal 9; 3 requests failed with it."],
        "requests": 41,
        "by_outcome": {"finished": 38, "failed": 3},
        "ttft_p50_ms": 210.0,
        "ttft_p95_ms": 900.0,
        "hour_ttft_p50_ms": 60.0,
        "slowest": [
            MomentRow(
                request_id=REQUEST_ID,
                outcome="failed",
                model="smollm2",
                duration_ms=4100.0,
                ttft_ms=310.0,
                headline="its engine died",
            )
        ],
        "events": [an_event(text="e1 was killed").model_dump(mode="json")],
        "engines": {"e0": {"steps": 600.0, "busy_share": 0.82}},
    }
    return Moment(**{**values, **changes})


def a_line(line_id: int = 1, text: str = "listening", **changes: Any) -> LogLine:
    values: dict[str, Any] = {
        "id": line_id,
        "at": AT,
        "process": "gateway-0",
        "level": "info",
        "logger": "appliance.gateway",
        "text": text,
    }
    return LogLine(**{**values, **changes})


def an_audit_entry(seq: int = 1, **changes: Any) -> AuditEntry:
    values: dict[str, Any] = {
        "seq": seq,
        "at": AT,
        "actor": "amy",
        "scope": "operator",
        "method": "POST",
        "route": "/admin/v1/engines/{engine_id}/sleep",
        "target": "e0",
        "body_sha256": None,
        "status": 202,
        "previous": "0" * 64,
        "hash": "a" * 64,
    }
    return AuditEntry(**{**values, **changes})


def settings(**changes: Any) -> TelemetrySettings:
    values: dict[str, Any] = {
        "recording": True,
        "export": True,
        "trace_ratio": 0.1,
        "slowest_per_minute": 5,
        "keep_errors": True,
        "keep_aborts": True,
        "keep_preempted": True,
        "keep_slo_breaches": True,
        "content": False,
        "collector": ExportStatus(
            endpoint="http://collector:4318",
            protocol="http/protobuf",
            state="failing",
            last_error="connection refused",
            exported=900,
            failed=7,
            dropped=2,
            queued=40,
        ),
        "drops": [StageDrops(process="e0", stage="hops", dropped=12)],
        "stored_spans": 12_000,
        "stored_bytes": 4_000_000,
        "oldest_at": AT,
    }
    return TelemetrySettings(**{**values, **changes})


def a_profile(profile_id: str = "prof-1", **changes: Any) -> ProfileRow:
    values: dict[str, Any] = {
        "id": profile_id,
        "engine": "e0",
        "epoch": 1,
        "state": "done",
        "created_at": AT,
        "actor": "local",
        "steps": 20,
        "first_step": 100,
        "last_step": 119,
        "files": [
            ProfileFile(name="rank0.json.gz", kind="torch", num_bytes=8_000_000),
            ProfileFile(name="merged.json.gz", kind="merged", num_bytes=9_000_000),
        ],
    }
    return ProfileRow(**{**values, **changes})


def a_step(step: int, **changes: Any) -> FlightStep:
    values: dict[str, Any] = {
        "step": step,
        "at": AT,
        "finished": True,
        "stage": "done",
        "took_ms": 61.0,
        "prefill_tokens": 0,
        "decode_tokens": 4,
        "requests": 4,
        "used_blocks": 88,
        "waiting": 0,
        "request_ids": [REQUEST_ID],
    }
    return FlightStep(**{**values, **changes})


def a_flight(**changes: Any) -> FlightReport:
    values: dict[str, Any] = {
        "engine": "e0",
        "epoch": 1,
        "pid": 4711,
        "alive": True,
        "steps": [a_step(88, prefill_tokens=1900, took_ms=420.0), a_step(87)],
        "events": [FlightEvent(at=AT, kind="preempted", text="req-9 gave its blocks back")],
    }
    return FlightReport(**{**values, **changes})
