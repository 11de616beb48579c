"""The switches, the journal and the explanations of a hub in memory."""

from datetime import UTC, datetime, timedelta

from appliance.supervisor.admin.ports import EventQuery, NotFoundError, RefusedError, TraceQuery
from appliance.supervisor.admin.schemas import (
    ChangeTelemetry,
    Explanation,
    JournalEvent,
    Moment,
    SloRow,
    Span,
    StageDrops,
    TelemetrySettings,
    TraceRow,
)

BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def journal_event(number: int, kind: str = "engine.ready", level: str = "info") -> JournalEvent:
    return JournalEvent(
        id=number,
        at=BEGAN + timedelta(seconds=number),
        kind=kind,
        level=level,
        subject="e0",
        text=f"event {number}",
    )


def slo_row() -> SloRow:
    return SloRow(
        name="availability",
        objective=0.999,
        good=10,
        bad=0,
        ratio=1.0,
        budget_left=1.0,
        burn=[],
        state="ok",
    )


class InMemoryTelemetry:
    """Remembers what it was asked."""

    def __init__(self) -> None:
        self.slo_rows = [slo_row()]
        self.trace_queries: list[TraceQuery] = []
        self.event_queries: list[EventQuery] = []
        self.content_shown: list[bool] = []
        self.changes: list[tuple[ChangeTelemetry, str]] = []
        self.moments: list[tuple[datetime, float]] = []
        self.journal = [journal_event(2, "engine.died", "warning"), journal_event(1)]
        self.has_collector = False
        self.settings = TelemetrySettings(
            recording=True,
            export=False,
            trace_ratio=1.0,
            slowest_per_minute=5,
            keep_errors=True,
            keep_aborts=True,
            keep_preempted=True,
            keep_slo_breaches=True,
            content=False,
            drops=[StageDrops(process="supervisor", stage="trace_store", dropped=3)],
            stored_spans=12,
            stored_bytes=3400,
        )

    async def traces(self, query: TraceQuery) -> list[TraceRow]:
        self.trace_queries.append(query)
        return []

    async def telemetry(self) -> TelemetrySettings:
        return self.settings

    async def change_telemetry(self, change: ChangeTelemetry, actor: str) -> TelemetrySettings:
        if change.export and not self.has_collector:
            raise RefusedError("no_collector", "there is no collector", "Configure one.")
        self.changes.append((change, actor))
        self.settings = self.settings.model_copy(update=change.model_dump(exclude_none=True))
        return self.settings

    async def events(self, query: EventQuery) -> list[JournalEvent]:
        self.event_queries.append(query)
        return self.journal[: query.limit]

    def slos(self) -> list[SloRow]:
        return self.slo_rows

    async def spans(self, name: str) -> list[Span]:
        if name != "op-1":
            raise NotFoundError(f"no trace of {name}")
        span = {"kind": "internal", "process": "supervisor", "start_ns": 1, "end_ns": 9}
        return [Span(name="operation sleep", span_id="1" * 16, parent_id=None, **span)]

    async def explanation(self, request_id: str) -> Explanation:
        if not request_id.startswith("req-"):
            raise NotFoundError(f"no trace of request {request_id}")
        return Explanation(
            request_id=request_id,
            verdict="not slow",
            causes=[],
            phases=[],
            cohort="5 requests of m",
            cohort_size=5,
            duration_ms=20.0,
        )

    async def moment(self, at: datetime, window_s: float) -> Moment:
        self.moments.append((at, window_s))
        half = timedelta(seconds=window_s / 2)
        return Moment(
            since=at - half,
            until=at + half,
            summary=["nothing happened"],
            requests=0,
            by_outcome={},
            ttft_p50_ms=None,
            ttft_p95_ms=None,
            hour_ttft_p50_ms=None,
            slowest=[],
            events=[],
            engines={},
        )
