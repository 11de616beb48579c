"""All that the dashboard knows, and the pure function that a frame changes it with."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from appliance.supervisor.admin.schemas import (
    AdapterRow,
    EngineRow,
    GatewayRow,
    JournalEvent,
    Operation,
    RequestRow,
    Snapshot,
    Stats,
    SystemInfo,
    WhoAmI,
)
from dashboard.source.frames import Alive, Frame, Gap, History, Link
from dashboard.store.history import Trends, push

LIVE_STATES: Final = frozenset({"held", "queued", "prefill", "decode"})
KEEP_ENDED: Final = 300
KEEP_LIVE: Final = 1000
KEEP_EVENTS: Final = 100
KEEP_OPERATIONS: Final = 50
STALE_AFTER_S: Final = 20.0
"""A healthy server says something, if only a comment, more often than this."""


@dataclass(frozen=True, slots=True)
class State:
    """What is known now. `*_s` values are of the dashboard's own monotonic clock."""

    engines: Mapping[str, EngineRow] = field(default_factory=dict[str, EngineRow])
    gateways: Mapping[str, GatewayRow] = field(default_factory=dict[str, GatewayRow])
    adapters: Mapping[str, AdapterRow] = field(default_factory=dict[str, AdapterRow])
    requests: Mapping[str, RequestRow] = field(default_factory=dict[str, RequestRow])
    operations: Mapping[str, Operation] = field(default_factory=dict[str, Operation])
    events: tuple[JournalEvent, ...] = ()
    """Oldest first."""
    stats: Stats | None = None
    system: SystemInfo | None = None
    whoami: WhoAmI | None = None
    trends: Trends = field(default_factory=Trends)
    peak_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    """Most memory an engine was seen with: what its memory bar is measured against."""
    connected: bool = False
    ever_connected: bool = False
    link_reason: str = ""
    gaps: int = 0
    heard_s: float | None = None
    server_at: datetime | None = None
    server_at_s: float = 0.0

    def is_stale(self, now_s: float) -> bool:
        """Whether what is shown may no longer be true."""
        silence_s = self.silence_s(now_s)
        return not self.connected or silence_s is None or silence_s > STALE_AFTER_S

    def silence_s(self, now_s: float) -> float | None:
        """Since the server was last heard; None before it ever was."""
        return None if self.heard_s is None else max(0.0, now_s - self.heard_s)

    def server_now(self, now_s: float) -> datetime:
        """The server's time, so that ages are right when the two clocks differ.

        It stands still while the line is down: an age must not grow on stale data.
        """
        if self.server_at is None:
            return datetime.now(UTC)
        until_s = now_s if self.connected or self.heard_s is None else self.heard_s
        return self.server_at + timedelta(seconds=max(0.0, until_s - self.server_at_s))

    def live(self) -> list[RequestRow]:
        """Requests in flight, oldest first."""
        rows = [row for row in self.requests.values() if row.state in LIVE_STATES]
        return sorted(rows, key=lambda row: row.received_at)

    def ended(self) -> list[RequestRow]:
        """Requests that ended, newest first."""
        rows = [row for row in self.requests.values() if row.state not in LIVE_STATES]
        return sorted(rows, key=_ended_at, reverse=True)


def reduce(state: State, frame: Frame, now_s: float) -> State:
    """Return the state after `frame`, which arrived at `now_s`."""
    match frame:
        case Link():
            return _linked(state, frame, now_s)
        case Snapshot():
            changed = _snapshot(state, frame, now_s)
        case Stats():
            changed = _measured(state, frame, now_s)
        case Gap():
            changed = replace(state, gaps=state.gaps + 1)
        case Alive():
            changed = state
        case SystemInfo():
            changed = replace(state, system=frame)
        case WhoAmI():
            changed = replace(state, whoami=frame)
        case _:
            changed = _row(state, frame)
    return replace(changed, heard_s=now_s)


RowFrame = EngineRow | GatewayRow | AdapterRow | RequestRow | Operation | JournalEvent | History


def _row(state: State, frame: RowFrame) -> State:
    match frame:
        case EngineRow():
            changed = _with_engines(state, {**state.engines, frame.id: frame})
        case GatewayRow():
            changed = replace(state, gateways={**state.gateways, frame.name: frame})
        case AdapterRow():
            changed = replace(state, adapters=_adapters(state.adapters, frame))
        case RequestRow():
            changed = replace(state, requests=_merged(state.requests, [frame]))
        case History():
            changed = replace(state, requests=_merged(state.requests, frame.requests))
        case Operation():
            changed = replace(state, operations=_operations(state.operations, [frame]))
        case JournalEvent():
            changed = replace(state, events=_events(state.events, [frame]))
    return changed


def _linked(state: State, link: Link, now_s: float) -> State:
    if not link.connected:
        return replace(state, connected=False, link_reason=link.reason)
    return replace(state, connected=True, ever_connected=True, link_reason="", heard_s=now_s)


def _snapshot(state: State, snapshot: Snapshot, now_s: float) -> State:
    ended = {id_: row for id_, row in state.requests.items() if row.state not in LIVE_STATES}
    base = replace(
        state,
        gateways={row.name: row for row in snapshot.gateways},
        adapters={row.name: row for row in snapshot.adapters},
        requests=_merged(ended, snapshot.requests),
        operations=_operations({}, snapshot.operations),
        events=_events((), snapshot.events),
        connected=True,
        ever_connected=True,
        link_reason="",
    )
    engines = _with_engines(base, {row.id: row for row in snapshot.engines})
    return _measured(engines, snapshot.stats, now_s)


def _measured(state: State, stats: Stats, now_s: float) -> State:
    sample: dict[str, float | None] = {
        "out": stats.generation_tokens_per_s,
        "in": stats.prompt_tokens_per_s,
        "requests": stats.requests_per_s,
        "errors": stats.error_ratio,
        "ttft": stats.ttft_ms.p95,
        "tpot": stats.tpot_ms.p95,
        "queue": stats.queue_ms.p95,
        "e2e": stats.e2e_ms.p95,
    }
    for engine in state.engines.values():
        sample[f"engine:{engine.id}"] = engine.tokens_per_s
    return replace(
        state,
        stats=stats,
        trends=push(state.trends, stats.at, sample),
        server_at=stats.at,
        server_at_s=now_s,
    )


def _with_engines(state: State, engines: dict[str, EngineRow]) -> State:
    peaks = dict(state.peak_bytes)
    for engine in engines.values():
        peaks[engine.id] = max(peaks.get(engine.id, 0), engine.resident_bytes or 0)
    return replace(state, engines=engines, peak_bytes=peaks)


def _adapters(known: Mapping[str, AdapterRow], row: AdapterRow) -> dict[str, AdapterRow]:
    others = {name: other for name, other in known.items() if name != row.name}
    return others if row.state == "removed" else {**others, row.name: row}


def _merged(known: Mapping[str, RequestRow], rows: Iterable[RequestRow]) -> dict[str, RequestRow]:
    """Add rows; what has ended stays ended, whatever arrives late."""
    requests = dict(known)
    for row in rows:
        before = requests.get(row.id)
        late = before is not None and before.state not in LIVE_STATES and row.state in LIVE_STATES
        if not late:
            requests[row.id] = row
    if len(requests) <= KEEP_ENDED:
        return requests
    return _bounded(requests)


def _bounded(requests: dict[str, RequestRow]) -> dict[str, RequestRow]:
    newest = sorted(requests.values(), key=lambda row: row.received_at, reverse=True)
    live = [row for row in newest if row.state in LIVE_STATES][:KEEP_LIVE]
    ended = [row for row in newest if row.state not in LIVE_STATES][:KEEP_ENDED]
    return {row.id: row for row in (*live, *ended)}


def _operations(known: Mapping[str, Operation], rows: Iterable[Operation]) -> dict[str, Operation]:
    operations = {**known, **{row.id: row for row in rows}}
    newest = sorted(operations.values(), key=lambda row: row.created_at)[-KEEP_OPERATIONS:]
    return {row.id: row for row in newest}


def _events(
    known: tuple[JournalEvent, ...], rows: Iterable[JournalEvent]
) -> tuple[JournalEvent, ...]:
    by_id = {event.id: event for event in (*known, *rows)}
    return tuple(sorted(by_id.values(), key=lambda event: event.id)[-KEEP_EVENTS:])


def _ended_at(row: RequestRow) -> datetime:
    return row.ended_at or row.received_at
