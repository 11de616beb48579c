"""Frames: everything that can change what the dashboard shows, and who supplies them."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from appliance.supervisor.admin.schemas import (
    AbortAnswer,
    AdapterRow,
    EngineRow,
    GatewayRow,
    JournalEvent,
    LoadAdapterBody,
    Operation,
    RequestRow,
    SleepBody,
    Snapshot,
    Stats,
    SystemInfo,
    Trace,
    WhoAmI,
)
from dashboard.client.prompt import PromptAnswer
from dashboard.source.insight import Insight


@dataclass(frozen=True, slots=True)
class Link:
    """The line to the server stands, or why it does not."""

    connected: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Alive:
    """The server said something without content."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Events were lost; a snapshot follows."""


@dataclass(frozen=True, slots=True)
class History:
    """Requests that ended before the snapshot; adds, never replaces."""

    requests: tuple[RequestRow, ...]


Frame = (
    Snapshot
    | EngineRow
    | GatewayRow
    | AdapterRow
    | RequestRow
    | Operation
    | Stats
    | JournalEvent
    | SystemInfo
    | WhoAmI
    | History
    | Link
    | Alive
    | Gap
)


class Source(Protocol):
    """A server, real or invented. Verbs raise `ApiProblem` and `UnreachableError`."""

    @property
    def label(self) -> str:
        """Which instance this is."""
        ...

    @property
    def insight(self) -> Insight:
        """What explains it."""
        ...

    def frames(self) -> AsyncIterator[Frame]:
        """Yield frames for ever; reconnects by itself."""
        ...

    async def trace(self, request_id: str) -> Trace:
        """The spans of one request."""
        ...

    async def sleep(self, engine_id: str, body: SleepBody) -> Operation:
        """Begin to put an engine to sleep."""
        ...

    async def wake(self, engine_id: str) -> Operation:
        """Begin to wake an engine."""
        ...

    async def restart(self, engine_id: str) -> Operation:
        """Begin to restart an engine."""
        ...

    async def load_adapter(self, name: str, body: LoadAdapterBody) -> Operation:
        """Begin to load an adapter."""
        ...

    async def unload_adapter(self, name: str) -> Operation:
        """Begin to unload an adapter."""
        ...

    async def pin_adapter(self, name: str, *, pinned: bool) -> Operation:
        """Begin to pin or unpin an adapter."""
        ...

    async def operation(self, operation_id: str, wait_s: float) -> Operation:
        """The operation, at its end or after `wait_s`."""
        ...

    async def abort(self, request_id: str) -> AbortAnswer:
        """End a live request."""
        ...

    async def try_prompt(self, model: str, prompt: str) -> PromptAnswer:
        """Send a prompt to the data plane."""
        ...

    async def aclose(self) -> None:
        """Let go of connections."""
        ...
