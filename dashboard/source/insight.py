"""What explains an instance: asked for when a screen needs it, never pushed."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from appliance.supervisor.admin.schemas import (
    AuditCheck,
    AuditEntry,
    ChangeTelemetry,
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
from dashboard.client.insight import LogQuery


class Insight(Protocol):
    """Explanations, journals, profiles. All raise `ApiProblem` and `UnreachableError`."""

    async def explanation(self, request_id: str) -> Explanation:
        """Why a request took as long as it did."""
        ...

    async def moment(self, at: datetime, window_s: float) -> Moment:
        """What happened around a point in time."""
        ...

    async def telemetry(self) -> TelemetrySettings:
        """What is recorded, exported and lost."""
        ...

    async def change_telemetry(self, change: ChangeTelemetry) -> TelemetrySettings:
        """Change it; returns what holds then."""
        ...

    async def journal(self, limit: int) -> Sequence[JournalEvent]:
        """Events, also those before this instance's start."""
        ...

    async def logs(self, query: LogQuery) -> Sequence[LogLine]:
        """The newest lines that fit, oldest first."""
        ...

    async def audit(self, limit: int) -> Sequence[AuditEntry]:
        """Who changed what, newest first."""
        ...

    async def audit_check(self) -> AuditCheck:
        """Whether the chain of the audit log is whole."""
        ...

    async def profiles(self) -> Sequence[ProfileRow]:
        """Profiles, newest first."""
        ...

    async def start_profile(self, body: StartProfileBody) -> Operation:
        """Begin a profile."""
        ...

    async def flight(self, engine_id: str, steps: int, epoch: int | None = None) -> FlightReport:
        """The last steps of one start of an engine; without `epoch`, of the last that crashed."""
        ...

    async def stacks(self, engine_id: str) -> StackDump:
        """Where every thread of an engine is."""
        ...
