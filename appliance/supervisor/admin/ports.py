"""What the admin API needs from the supervisor: the seam between HTTP and the fleet."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from appliance.supervisor.admin.schemas import (
    AbortAnswer,
    AdapterRow,
    AuditCheck,
    AuditEntry,
    ChangeTelemetry,
    CreatedKey,
    CreateKey,
    EngineRow,
    Explanation,
    FlightReport,
    GatewayRow,
    JournalEvent,
    KeyRow,
    LoadAdapterBody,
    LogLine,
    Moment,
    Operation,
    ProfileRow,
    RequestRow,
    SleepBody,
    SloRow,
    Snapshot,
    Span,
    StackDump,
    StartProfileBody,
    Stats,
    SystemInfo,
    TelemetrySettings,
    Trace,
    TraceRow,
)


class NotFoundError(Exception):
    """The resource does not exist."""


class ConflictError(Exception):
    """The verb does not fit the current state."""

    def __init__(
        self,
        message: str,
        current_state: str,
        allowed_actions: list[str],
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.current_state = current_state
        self.allowed_actions = allowed_actions
        self.hint = hint


class RefusedError(Exception):
    """What is asked for can never work as it stands; `code` is stable, `hint` says what would."""

    def __init__(self, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceQuery:
    """What `GET /traces` is asked for; None: no matter."""

    limit: int = 50
    outcome: str | None = None
    min_ms: float | None = None
    model: str | None = None
    key_id: str | None = None
    engine: str | None = None
    trace_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    slowest_first: bool = False
    """Else newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQuery:
    """What `GET /events` is asked for; None: no matter."""

    limit: int = 100
    since: datetime | None = None
    until: datetime | None = None
    min_level: str | None = None
    kind: str | None = None
    """Prefix: `engine.`, `operation.failed`."""
    subject: str | None = None


class FleetControl(Protocol):
    """Engines, gateways, adapters, operations and aborts."""

    def engines(self) -> list[EngineRow]:
        """All engines, in order."""
        ...

    def gateways(self) -> list[GatewayRow]:
        """All gateways, in order."""
        ...

    def sleep(self, engine_id: str, body: SleepBody, actor: str) -> Operation:
        """Begin to put an engine to sleep. Raises NotFoundError, ConflictError."""
        ...

    def wake(self, engine_id: str, actor: str) -> Operation:
        """Begin to wake an engine. Raises NotFoundError, ConflictError."""
        ...

    def restart(self, engine_id: str, actor: str) -> Operation:
        """Begin to restart an engine; also leaves `crash_loop` and `failed`."""
        ...

    def reset_prefix_cache(self, engine_id: str, actor: str) -> Operation:
        """Begin to forget cached prefixes. Raises NotFoundError, ConflictError."""
        ...

    def adapters(self) -> list[AdapterRow]:
        """All LoRA adapters, by name."""
        ...

    async def load_adapter(self, name: str, body: LoadAdapterBody, actor: str) -> Operation:
        """Check an adapter, then begin to load it. Raises RefusedError, ConflictError."""
        ...

    def unload_adapter(self, name: str, actor: str) -> Operation:
        """Begin to unload an adapter. Raises NotFoundError, ConflictError."""
        ...

    def pin_adapter(self, name: str, actor: str, *, pinned: bool) -> Operation:
        """Begin to pin or unpin an adapter. Raises NotFoundError, ConflictError."""
        ...

    def operations(self) -> list[Operation]:
        """Newest first, bounded."""
        ...

    async def operation(self, operation_id: str, wait_s: float) -> Operation:
        """One operation, at its end or after `wait_s`. Raises NotFoundError."""
        ...

    async def abort(self, request_id: str, actor: str) -> AbortAnswer:
        """End a live request, confirmed. Raises NotFoundError, ConflictError (has ended)."""
        ...

    def system(self) -> SystemInfo:
        """Facts of this instance."""
        ...

    def startup(self) -> tuple[bool, list[EngineRow]]:
        """Whether every engine has been ready once, and the rows."""
        ...


class TelemetryView(Protocol):
    """What the hub shows."""

    def requests(self, state: str | None, limit: int) -> list[RequestRow]:
        """Live requests first, then ended, newest first. `state`: `live`, `ended` or a state."""
        ...

    def request(self, request_id: str) -> RequestRow:
        """One request. Raises NotFoundError."""
        ...

    async def traces(self, query: TraceQuery) -> list[TraceRow]:
        """Stored traces that fit."""
        ...

    async def spans(self, name: str) -> list[Span]:
        """A trace of the appliance itself: of an operation, of an engine's last start, by its id.

        Raises NotFoundError.
        """
        ...

    async def explanation(self, request_id: str) -> Explanation:
        """Why a request took as long as it did. Raises NotFoundError."""
        ...

    async def moment(self, at: datetime, window_s: float) -> Moment:
        """What happened around a point in time, told in the time zone of `at`."""
        ...

    def slos(self) -> list[SloRow]:
        """The promises and how they are kept."""
        ...

    async def telemetry(self) -> TelemetrySettings:
        """What is recorded and exported, and what was lost."""
        ...

    async def change_telemetry(self, change: ChangeTelemetry, actor: str) -> TelemetrySettings:
        """Change it while running. Raises RefusedError."""
        ...

    async def trace(self, request_id: str, *, content: bool = False) -> Trace:
        """The whole tree of one request; `content`: with recorded texts. Raises NotFoundError."""
        ...

    def stats(self) -> Stats:
        """The current frame."""
        ...

    def snapshot(self) -> Snapshot:
        """What a new reader of the event stream gets first."""
        ...

    async def events(self, query: EventQuery) -> list[JournalEvent]:
        """The journal, newest first; it survives restarts."""
        ...

    def subscribe(self, after_id: int | None) -> AsyncIterator[tuple[int, str, str]]:
        """Yield (id, event name, JSON) for ever.

        First `snapshot` (or, after a known id, what was missed), then deltas. A reader that falls
        behind gets `gap`, then a new `snapshot`.
        """
        ...

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """The Prometheus exposition and its content type."""
        ...


class KeyStore(Protocol):
    """Keys of the appliance; secrets are stored as SHA-256 only."""

    def verify(self, secret: bytes) -> KeyRow | None:
        """Return the key that this secret opens, or None; constant time over all keys."""
        ...

    def rows(self) -> list[KeyRow]:
        """All keys, revoked ones included."""
        ...

    def create(self, body: CreateKey, actor: str) -> CreatedKey:
        """Mint a key; the answer holds its secret, once."""
        ...

    def revoke(self, key_id: str, actor: str) -> KeyRow:
        """Make a key useless at once. Raises NotFoundError; ConflictError for configured keys."""
        ...


class LogBook(Protocol):
    """What the processes of the appliance wrote."""

    def lines(
        self,
        *,
        process: str | None,
        min_level: str | None,
        after_id: int | None,
        limit: int,
        contains: str | None = None,
    ) -> list[LogLine]:
        """The newest lines that fit, oldest first; after an id, the first ones that follow it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAuditEntry:
    """What the guard knows of a call that would change something."""

    actor: str
    scope: str | None
    method: str
    route: str
    target: str | None
    body_sha256: str | None
    status: int
    operation: str | None = None
    trace_id: str | None = None
    source: str | None = None


CountAnswer = Callable[[str, int], None]
"""Called with (route template or `other`, status)."""


def _count_nothing(route: str, status: int) -> None:
    """For who counts no answers."""


class AuditTrail(Protocol):
    """Who changed what: an append-only file whose entries are chained by hashes."""

    def append(self, entry: NewAuditEntry) -> None:
        """Take an entry; a full disk is logged and counted, never raised."""
        ...

    async def written(self) -> None:
        """Wait, for a bounded time, until a killed supervisor would leave the entries so far."""
        ...

    async def entries(self, limit: int) -> list[AuditEntry]:
        """Newest first."""
        ...

    async def verify(self) -> AuditCheck:
        """Whether nothing was changed, removed or put in between."""
        ...


class Diagnostics(Protocol):
    """Profiles, stacks and the flight recorder."""

    def profiles(self) -> list[ProfileRow]:
        """Newest first."""
        ...

    def profile(self, profile_id: str) -> ProfileRow:
        """One profile. Raises NotFoundError."""
        ...

    def start_profile(self, body: StartProfileBody, actor: str) -> Operation:
        """Begin a profile. Raises NotFoundError, ConflictError, RefusedError."""
        ...

    def stop_profile(self, profile_id: str | None, actor: str) -> list[Operation]:
        """End a running profile (None: all). Raises NotFoundError."""
        ...

    def delete_profile(self, profile_id: str, actor: str) -> None:
        """Remove its files. Raises NotFoundError, ConflictError."""
        ...

    def profile_file(self, profile_id: str, name: str) -> Path:
        """Where a file of a profile lies. Raises NotFoundError."""
        ...

    async def flight(self, engine_id: str, steps: int, epoch: int | None = None) -> FlightReport:
        """The last steps of an engine, dead or alive. Raises NotFoundError."""
        ...

    async def stacks(self, engine_id: str) -> StackDump:
        """Where every thread of an engine is. Raises NotFoundError, ConflictError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Insight:
    """What explains the appliance beside the hub."""

    logs: LogBook
    audit: AuditTrail
    diagnostics: Diagnostics
    count_answer: CountAnswer = _count_nothing
    """Counts every answer of the control plane."""
