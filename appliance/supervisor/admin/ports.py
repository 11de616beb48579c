"""What the admin API needs from the supervisor: the seam between HTTP and the fleet."""

from collections.abc import AsyncIterator
from typing import Protocol

from appliance.supervisor.admin.schemas import (
    AbortAnswer,
    AdapterRow,
    CreatedKey,
    CreateKey,
    EngineRow,
    GatewayRow,
    JournalEvent,
    KeyRow,
    LoadAdapterBody,
    Operation,
    RequestRow,
    SleepBody,
    Snapshot,
    Stats,
    SystemInfo,
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

    async def traces(
        self, *, limit: int, outcome: str | None, min_ms: float | None, model: str | None
    ) -> list[TraceRow]:
        """Stored traces, newest first."""
        ...

    async def trace(self, request_id: str) -> Trace:
        """The whole tree of one request. Raises NotFoundError."""
        ...

    def stats(self) -> Stats:
        """The current frame."""
        ...

    def snapshot(self) -> Snapshot:
        """What a new reader of the event stream gets first."""
        ...

    def events(self, limit: int) -> list[JournalEvent]:
        """Journal, newest first."""
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
