"""The routes that explain an instance, as typed calls."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from appliance.supervisor.admin.schemas import (
    AuditCheck,
    AuditEntry,
    ChangeTelemetry,
    Collection,
    Explanation,
    FlightReport,
    JournalEvent,
    LogLine,
    Moment,
    Operation,
    ProfileRow,
    StackDump,
    StartProfileBody,
    TelemetrySettings,
)
from dashboard.client.calls import HttpCalls, part

SLOW_TIMEOUT_S: Final = 30.0
"""For answers that are computed from many rows, and for stacks of a stuck process."""


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which log lines; None: no matter."""

    process: str | None = None
    min_level: str | None = None
    after_id: int | None = None
    contains: str | None = None
    limit: int = 500


class InsightApi:
    """One method a route; see `dashboard.source.insight.Insight`."""

    def __init__(self, calls: HttpCalls) -> None:
        self._calls = calls

    async def explanation(self, request_id: str) -> Explanation:
        """Why a request took as long as it did."""
        path = f"/traces/{part(request_id)}/explanation"
        return await self._calls.call("GET", path, Explanation, timeout_s=SLOW_TIMEOUT_S)

    async def moment(self, at: datetime, window_s: float) -> Moment:
        """What happened around a point in time."""
        params = {"at": at.astimezone().isoformat(), "window_s": window_s}
        return await self._calls.call(
            "GET", "/moment", Moment, timeout_s=SLOW_TIMEOUT_S, params=params
        )

    async def telemetry(self) -> TelemetrySettings:
        """What is recorded, exported and lost."""
        return await self._calls.get("/telemetry", TelemetrySettings)

    async def change_telemetry(self, change: ChangeTelemetry) -> TelemetrySettings:
        """Send what is set in `change`."""
        body = change.model_dump(exclude_none=True)
        return await self._calls.call("PATCH", "/telemetry", TelemetrySettings, json=body)

    async def journal(self, limit: int) -> list[JournalEvent]:
        """Events, newest first."""
        params: dict[str, str | int | float] = {"limit": limit}
        return (await self._calls.get("/events", Collection[JournalEvent], params)).items

    async def logs(self, query: LogQuery) -> list[LogLine]:
        """The newest lines that fit, oldest first."""
        wanted: dict[str, str | int | float | None] = {
            "process": query.process,
            "level": query.min_level,
            "after": query.after_id,
            "contains": query.contains,
            "limit": query.limit,
        }
        params = {name: value for name, value in wanted.items() if value is not None}
        return (await self._calls.get("/logs", Collection[LogLine], params)).items

    async def audit(self, limit: int) -> list[AuditEntry]:
        """Who changed what, newest first."""
        params: dict[str, str | int | float] = {"limit": limit}
        return (await self._calls.get("/audit", Collection[AuditEntry], params)).items

    async def audit_check(self) -> AuditCheck:
        """Whether the chain of the audit log is whole."""
        return await self._calls.call("GET", "/audit/verify", AuditCheck, timeout_s=SLOW_TIMEOUT_S)

    async def profiles(self) -> list[ProfileRow]:
        """Profiles, newest first."""
        return (await self._calls.get("/profiles", Collection[ProfileRow])).items

    async def start_profile(self, body: StartProfileBody) -> Operation:
        """Begin a profile."""
        return await self._calls.call("POST", "/profiles", Operation, json=body.model_dump())

    async def flight(self, engine_id: str, steps: int, epoch: int | None = None) -> FlightReport:
        """The last steps of one start of an engine; without `epoch`, of the last that crashed."""
        params: dict[str, str | int | float] = {"steps": steps}
        if epoch is not None:
            params["epoch"] = epoch
        return await self._calls.get(f"/engines/{part(engine_id)}/flight", FlightReport, params)

    async def stacks(self, engine_id: str) -> StackDump:
        """Where every thread of an engine is."""
        path = f"/engines/{part(engine_id)}/stacks"
        return await self._calls.call("POST", path, StackDump, timeout_s=SLOW_TIMEOUT_S)
