"""What happens and happened: requests, traces, explanations, stats, events, metrics, switches."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response

from appliance.supervisor.admin.access import API, may
from appliance.supervisor.admin.event_stream import EventStream, last_event_id
from appliance.supervisor.admin.fleet_routes import caller_of
from appliance.supervisor.admin.ports import EventQuery, TelemetryView, TraceQuery
from appliance.supervisor.admin.problems import ProblemError, problem
from appliance.supervisor.admin.schemas import (
    ChangeTelemetry,
    Collection,
    Explanation,
    JournalEvent,
    Moment,
    Outcome,
    RequestRow,
    RequestState,
    SloRow,
    Span,
    Stats,
    TelemetrySettings,
    Trace,
    TraceRow,
)
from appliance.trace_formats.chrome import chrome_trace
from appliance.trace_formats.otlp_json import otlp_json

MAX_ROWS = 1000
MAX_WINDOW_S = 3600.0

Limit = Annotated[int, Query(ge=1, le=MAX_ROWS)]
State = Literal["live", "ended", RequestState]
EventLevel = Literal["info", "warning", "error"]
Name = Annotated[str | None, Query(max_length=256)]
At = Annotated[datetime | None, Query(description="ISO 8601; UTC where no offset is given.")]
LastEventId = Annotated[str | None, Header(alias="last-event-id")]


def request_routes(telemetry: TelemetryView) -> APIRouter:
    """Return `/requests`, `/traces`, `/spans` and `/moment`."""
    router = APIRouter(prefix=API, tags=["requests"])

    @router.get("/requests")
    async def requests(state: State | None = None, limit: Limit = 100) -> Collection[RequestRow]:
        """Live requests first, then ended ones, newest first. `state`: live, ended or a state."""
        return Collection(items=telemetry.requests(state, limit))

    @router.get("/requests/{request_id}")
    async def request(request_id: str) -> RequestRow:
        """One request, by any form of its id."""
        return telemetry.request(request_id)

    _add_traces(router, telemetry)

    @router.get("/traces/{request_id}")
    async def trace(request_id: str, http: Request) -> Trace:
        """All spans of one request, one tree, parents before children.

        Recorded prompts and outputs are shown to the scope `admin` alone.
        """
        return await telemetry.trace(request_id, content=may(caller_of(http), "admin"))

    @router.get("/traces/{request_id}/otlp")
    async def otlp(request_id: str, http: Request) -> dict[str, Any]:
        """The trace as OTLP JSON, for any OpenTelemetry back end."""
        content = may(caller_of(http), "admin")
        return otlp_json(await telemetry.trace(request_id, content=content))

    @router.get("/traces/{request_id}/chrome")
    async def chrome(request_id: str, http: Request) -> dict[str, Any]:
        """The trace as Chrome trace events, for ui.perfetto.dev."""
        content = may(caller_of(http), "admin")
        return chrome_trace(await telemetry.trace(request_id, content=content))

    @router.get("/traces/{request_id}/explanation")
    async def explanation(request_id: str) -> Explanation:
        """Why a request took as long as it did."""
        return await telemetry.explanation(request_id)

    @router.get("/moment")
    async def moment(
        at: datetime, window_s: Annotated[float, Query(gt=0, le=MAX_WINDOW_S)] = 60.0
    ) -> Moment:
        """What happened around a point in time, told in the time zone of `at`."""
        return await telemetry.moment(_utc(at), window_s)

    return router


def _add_traces(router: APIRouter, telemetry: TelemetryView) -> None:
    @router.get("/spans/{name}")
    async def spans(name: str) -> Collection[Span]:
        """A trace of the appliance itself: an operation's, an engine's last start, or by its id."""
        return Collection(items=await telemetry.spans(name))

    @router.get("/traces")
    async def traces(  # noqa: PLR0913 - one for each filter
        *,
        limit: Limit = 50,
        outcome: Outcome | None = None,
        min_ms: Annotated[float | None, Query(ge=0)] = None,
        model: Name = None,
        key_id: Name = None,
        engine: Name = None,
        trace_id: Annotated[str | None, Query(pattern="^[0-9a-f]{32}$")] = None,
        since: At = None,
        until: At = None,
        order: Literal["newest", "slowest"] = "newest",
    ) -> Collection[TraceRow]:
        """Stored traces that fit; `since` and `until` are of the request's arrival."""
        query = TraceQuery(
            limit=limit,
            outcome=outcome,
            min_ms=min_ms,
            model=model,
            key_id=key_id,
            engine=engine,
            trace_id=trace_id,
            since=_maybe_utc(since),
            until=_maybe_utc(until),
            slowest_first=order == "slowest",
        )
        return Collection(items=await telemetry.traces(query))


def stats_routes(telemetry: TelemetryView) -> APIRouter:
    """Return `/stats`, `/slos`, `/telemetry`, `/events`, the event stream and `/metrics`."""
    router = APIRouter(tags=["telemetry"])

    @router.get(f"{API}/stats")
    async def stats() -> Stats:
        """The current frame."""
        return telemetry.stats()

    @router.get(f"{API}/slos")
    async def slos() -> Collection[SloRow]:
        """The promises and how they are kept."""
        return Collection(items=telemetry.slos())

    _add_switches(router, telemetry)
    _add_events(router, telemetry)

    @router.get("/metrics", response_class=Response)
    async def metrics(accept: Annotated[str, Header(include_in_schema=False)] = "") -> Response:
        """The Prometheus exposition."""
        content, media_type = await telemetry.metrics(accept)
        return Response(content, headers={"content-type": media_type})

    return router


def _add_switches(router: APIRouter, telemetry: TelemetryView) -> None:
    @router.get(f"{API}/telemetry")
    async def show_telemetry() -> TelemetrySettings:
        """What is recorded and exported, and what was lost."""
        return await telemetry.telemetry()

    @router.patch(f"{API}/telemetry")
    async def change_telemetry(body: ChangeTelemetry, http: Request) -> TelemetrySettings:
        """Change it while running; it lasts until the appliance ends. Content needs `admin`."""
        caller = caller_of(http)
        if body.content and not may(caller, "admin"):
            detail = f"this key has the scope {caller.scope}; recording content needs admin"
            hint = "quarterdeck keys create --scope admin makes one."
            raise ProblemError(problem(403, "scope_too_small", detail, hint))
        return await telemetry.change_telemetry(body, caller.actor)


def _add_events(router: APIRouter, telemetry: TelemetryView) -> None:
    @router.get(f"{API}/events")
    async def events(
        *,
        limit: Limit = 100,
        since: At = None,
        until: At = None,
        min_level: EventLevel | None = None,
        kind: Annotated[str | None, Query(max_length=64, description="Prefix.")] = None,
        subject: Name = None,
    ) -> Collection[JournalEvent]:
        """The journal, newest first; it survives restarts."""
        query = EventQuery(
            limit=limit,
            since=_maybe_utc(since),
            until=_maybe_utc(until),
            min_level=min_level,
            kind=kind,
            subject=subject,
        )
        return Collection(items=await telemetry.events(query))

    @router.get(
        f"{API}/events/stream",
        response_class=Response,
        responses={200: {"content": {"text/event-stream": {}}}},
    )
    async def stream(last_id: LastEventId = None) -> Response:
        """Server-Sent Events: a snapshot, or what came after `Last-Event-ID`, then deltas."""
        return EventStream(telemetry.subscribe(last_event_id(last_id)))


def _utc(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def _maybe_utc(at: datetime | None) -> datetime | None:
    return None if at is None else _utc(at)
