"""What happens and happened: requests, traces, stats, events, metrics."""

from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Response

from appliance.supervisor.admin.access import API
from appliance.supervisor.admin.event_stream import EventStream, last_event_id
from appliance.supervisor.admin.ports import TelemetryView
from appliance.supervisor.admin.schemas import (
    Collection,
    JournalEvent,
    Outcome,
    RequestRow,
    RequestState,
    Stats,
    Trace,
    TraceRow,
)

MAX_ROWS = 1000

Limit = Annotated[int, Query(ge=1, le=MAX_ROWS)]
State = Literal["live", "ended", RequestState]
LastEventId = Annotated[str | None, Header(alias="last-event-id")]


def request_routes(telemetry: TelemetryView) -> APIRouter:
    """Return `/requests` and `/traces`."""
    router = APIRouter(prefix=API, tags=["requests"])

    @router.get("/requests")
    async def requests(state: State | None = None, limit: Limit = 100) -> Collection[RequestRow]:
        """Live requests first, then ended ones, newest first. `state`: live, ended or a state."""
        return Collection(items=telemetry.requests(state, limit))

    @router.get("/requests/{request_id}")
    async def request(request_id: str) -> RequestRow:
        """One request, by any form of its id."""
        return telemetry.request(request_id)

    @router.get("/traces")
    async def traces(
        limit: Limit = 50,
        outcome: Outcome | None = None,
        min_ms: Annotated[float | None, Query(ge=0)] = None,
        model: Annotated[str | None, Query(max_length=256)] = None,
    ) -> Collection[TraceRow]:
        """Stored traces, newest first."""
        found = await telemetry.traces(limit=limit, outcome=outcome, min_ms=min_ms, model=model)
        return Collection(items=found)

    @router.get("/traces/{request_id}")
    async def trace(request_id: str) -> Trace:
        """All spans of one request, one tree, parents before children."""
        return await telemetry.trace(request_id)

    return router


def stats_routes(telemetry: TelemetryView) -> APIRouter:
    """Return `/stats`, `/events`, the event stream and `/metrics`."""
    router = APIRouter(tags=["telemetry"])

    @router.get(f"{API}/stats")
    async def stats() -> Stats:
        """The current frame."""
        return telemetry.stats()

    @router.get(f"{API}/events")
    async def events(limit: Limit = 100) -> Collection[JournalEvent]:
        """The journal, newest first."""
        return Collection(items=telemetry.events(limit))

    @router.get(
        f"{API}/events/stream",
        response_class=Response,
        responses={200: {"content": {"text/event-stream": {}}}},
    )
    async def stream(last_id: LastEventId = None) -> Response:
        """Server-Sent Events: a snapshot, or what came after `Last-Event-ID`, then deltas."""
        return EventStream(telemetry.subscribe(last_event_id(last_id)))

    @router.get("/metrics", response_class=Response)
    async def metrics(accept: Annotated[str, Header(include_in_schema=False)] = "") -> Response:
        """The Prometheus exposition."""
        content, media_type = await telemetry.metrics(accept)
        return Response(content, headers={"content-type": media_type})

    return router
