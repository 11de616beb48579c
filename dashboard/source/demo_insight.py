"""What explains the invented instance."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from appliance.supervisor.admin.schemas import (
    AuditCheck,
    AuditEntry,
    ChangeTelemetry,
    EngineRow,
    Explanation,
    ExportStatus,
    FlightReport,
    JournalEvent,
    LogLine,
    Moment,
    MomentRow,
    Operation,
    OperationKind,
    Problem,
    ProfileRow,
    RequestRow,
    StackDump,
    StageDrops,
    StartProfileBody,
    TelemetrySettings,
)
from dashboard.client.insight import LogQuery
from dashboard.client.problems import ApiProblem
from dashboard.source.demo_explain import demo_explanation
from dashboard.source.demo_fleet import START, Fleet
from dashboard.source.demo_flight import demo_flight, demo_stacks
from dashboard.source.demo_log import audit_entries
from dashboard.source.demo_stats import percentiles
from dashboard.source.demo_trace import demo_trace

_SLOWEST: Final = 8

Begin = Callable[[OperationKind, str], Operation]


class DemoInsight:
    """Answers from what the fleet went through.

    Args:
        fleet: What lives.
        begin: Notes an operation and shows it.
    """

    def __init__(self, fleet: Fleet, begin: Begin) -> None:
        self._fleet = fleet
        self._begin = begin
        self._settings = _settings()

    async def explanation(self, request_id: str) -> Explanation:
        """Of a request that ended."""
        for row in self._fleet.ended:
            if row.id == request_id:
                return demo_explanation(demo_trace(row.model_copy()))
        raise problem(404, "not_found", "no such trace", "it comes when the request ends")

    async def moment(self, at: datetime, window_s: float) -> Moment:
        """What ended, and what was noted, around a time."""
        since, until = at - timedelta(seconds=window_s / 2), at + timedelta(seconds=window_s / 2)
        rows = [row for row in self._fleet.ended if row.ended_at and since <= row.ended_at <= until]
        events = [event for event in self._fleet.events if since <= event.at <= until]
        found = percentiles(row.ttft_ms for row in rows)
        slowest = sorted(rows, key=lambda row: row.age_s, reverse=True)[:_SLOWEST]
        return Moment(
            since=since,
            until=until,
            summary=_summary(rows, events),
            requests=len(rows),
            by_outcome=dict(Counter(str(row.state) for row in rows)),
            ttft_p50_ms=found.p50,
            ttft_p95_ms=found.p95,
            hour_ttft_p50_ms=percentiles(row.ttft_ms for row in self._fleet.ended).p50,
            slowest=[_moment_row(row) for row in slowest],
            events=[event.model_dump(mode="json") for event in events],
            engines={
                engine.id: {"steps": 720.0, "mean_batch": 3.2, "busy_share": 0.81}
                for engine in self._fleet.engines.values()
                if engine.state == "ready" and rows
            },
        )

    async def telemetry(self) -> TelemetrySettings:
        """What holds."""
        spans = 41_000 + 900 * len(self._fleet.ended)
        return self._settings.model_copy(
            update={"stored_spans": spans, "stored_bytes": spans * 180}
        )

    async def change_telemetry(self, change: ChangeTelemetry) -> TelemetrySettings:
        """Let it hold."""
        wanted = change.model_dump(exclude_none=True)
        self._settings = self._settings.model_copy(update=wanted)
        return await self.telemetry()

    async def journal(self, limit: int) -> Sequence[JournalEvent]:
        """Newest first."""
        return self._fleet.events[::-1][:limit]

    async def logs(self, query: LogQuery) -> Sequence[LogLine]:
        """Lines that fit."""
        return self._fleet.log.lines(query)

    async def audit(self, limit: int) -> Sequence[AuditEntry]:
        """Newest first."""
        return audit_entries(list(self._fleet.operations.values()))[:limit]

    async def audit_check(self) -> AuditCheck:
        """The invented chain is whole."""
        return AuditCheck(ok=True, entries=len(await self.audit(_ALL)))

    async def profiles(self) -> Sequence[ProfileRow]:
        """Newest first."""
        return [row.model_copy() for row in self._fleet.profiles.rows]

    async def start_profile(self, body: StartProfileBody) -> Operation:
        """Record for some invented steps."""
        engine = self._engine(body.engine)
        if engine.state != "ready":
            raise problem(409, "conflict", f"{engine.id} is {engine.state}", "w wakes it")
        operation = self._begin("profile", engine.id)
        self._fleet.profiles.begin(body, engine, operation, self._fleet.at)
        return operation.model_copy()

    async def flight(
        self,
        engine_id: str,
        steps: int,
        epoch: int | None = None,
    ) -> FlightReport:
        """The last steps."""
        events = [event for event in self._fleet.events if event.subject == engine_id]
        return demo_flight(self._engine(engine_id), self._fleet.at, events, steps)

    async def stacks(self, engine_id: str) -> StackDump:
        """Where its threads are."""
        return demo_stacks(self._engine(engine_id))

    def _engine(self, engine_id: str) -> EngineRow:
        engine = self._fleet.engines.get(engine_id)
        if engine is None:
            raise problem(404, "not_found", f"no engine {engine_id}", "see the engines table")
        return engine


_ALL: Final = 10_000


def problem(status: int, code: str, detail: str, hint: str) -> ApiProblem:
    """What a server would answer."""
    return ApiProblem(Problem(title=code, status=status, detail=detail, code=code, hint=hint))


def _settings() -> TelemetrySettings:
    return TelemetrySettings(
        recording=True,
        export=True,
        trace_ratio=0.1,
        slowest_per_minute=5,
        keep_errors=True,
        keep_aborts=True,
        keep_preempted=True,
        keep_slo_breaches=True,
        content=False,
        collector=ExportStatus(
            endpoint="http://127.0.0.1:4318",
            protocol="http/protobuf",
            state="works",
            exported=18_402,
            failed=0,
            dropped=0,
            queued=12,
        ),
        drops=[StageDrops(process="e1", stage="hops", dropped=0)],
        oldest_at=START - timedelta(hours=26),
    )


def _summary(rows: Sequence[RequestRow], events: Sequence[JournalEvent]) -> list[str]:
    if not rows and not events:
        return ["Nothing is known of that time: the demo did not run then."]
    texts = [event.text for event in events if event.level == "error"]
    failed = sum(row.state == "failed" for row in rows)
    if failed:
        texts.append(f"{failed} requests failed with it; those without a token were tried again.")
    late = [row for row in rows if (row.queue_ms or 0) > _LATE_MS]
    if late:
        texts.append(f"{len(late)} requests waited for more than a second: batches were full.")
    return texts or [f"Nothing out of the ordinary: {len(rows)} requests ended."]


_LATE_MS: Final = 1000.0


def _moment_row(row: RequestRow) -> MomentRow:
    queue_ms = row.queue_ms or 0.0
    late = queue_ms > _LATE_MS
    headline = f"{queue_ms / 1000:.1f} s in the queue" if late else "as long as usual"
    return MomentRow(
        request_id=row.id,
        outcome=str(row.state),
        model=row.model,
        duration_ms=row.age_s * 1000,
        ttft_ms=row.ttft_ms,
        headline=row.error_code or headline,
    )
