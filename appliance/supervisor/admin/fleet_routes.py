"""Engines, their verbs, operations, gateways and aborts.

Handlers are coroutines throughout: they run on the supervisor's loop, where the fleet lives.
"""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from appliance.supervisor.admin.access import API, Caller
from appliance.supervisor.admin.ports import FleetControl, NotFoundError
from appliance.supervisor.admin.schemas import (
    AbortAnswer,
    Collection,
    EngineRow,
    GatewayRow,
    Operation,
    SleepBody,
)

MAX_WAIT_S = 600.0
_RETRY_AFTER_S = 1
_DEFAULT_SLEEP = SleepBody.model_validate({})

Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="Long-poll, seconds.")]


def caller_of(request: Request) -> Caller:
    """Return whom the guard let in."""
    caller: Caller = request.state.caller
    return caller


async def accepted(
    fleet: FleetControl, operation: Operation, wait_s: float, response: Response
) -> Operation:
    """Answer a verb: 202 always, with the operation as it stands after at most `wait_s`."""
    response.status_code = 202
    response.headers["location"] = f"{API}/operations/{operation.id}"
    response.headers["retry-after"] = str(_RETRY_AFTER_S)
    return await fleet.operation(operation.id, wait_s) if wait_s else operation


def engine_routes(fleet: FleetControl) -> APIRouter:
    """Return the routes below `/engines`."""
    router = APIRouter(prefix=API, tags=["engines"])

    @router.get("/engines")
    async def engines() -> Collection[EngineRow]:
        """All engines."""
        return Collection(items=fleet.engines())

    @router.get("/engines/{engine_id}")
    async def engine(engine_id: str) -> EngineRow:
        """One engine."""
        return _find(fleet, engine_id)

    @router.post("/engines/{engine_id}/sleep", status_code=202)
    async def sleep(
        engine_id: str,
        request: Request,
        response: Response,
        body: SleepBody | None = None,
        wait: Wait = 0,
    ) -> Operation:
        """Release the engine's memory; asleep already, it changes nothing."""
        operation = fleet.sleep(engine_id, body or _DEFAULT_SLEEP, caller_of(request).actor)
        return await accepted(fleet, operation, wait, response)

    @router.post("/engines/{engine_id}/wake", status_code=202)
    async def wake(
        engine_id: str, request: Request, response: Response, wait: Wait = 0
    ) -> Operation:
        """Load what sleeping released; awake already, it changes nothing."""
        operation = fleet.wake(engine_id, caller_of(request).actor)
        return await accepted(fleet, operation, wait, response)

    @router.post("/engines/{engine_id}/restart", status_code=202)
    async def restart(
        engine_id: str, request: Request, response: Response, wait: Wait = 0
    ) -> Operation:
        """Stop the engine and start it anew; this also leaves a crash loop."""
        operation = fleet.restart(engine_id, caller_of(request).actor)
        return await accepted(fleet, operation, wait, response)

    @router.post("/engines/{engine_id}/reset-prefix-cache", status_code=202)
    async def reset_prefix_cache(
        engine_id: str, request: Request, response: Response, wait: Wait = 0
    ) -> Operation:
        """Forget cached prefixes; requests that run keep what they use."""
        operation = fleet.reset_prefix_cache(engine_id, caller_of(request).actor)
        return await accepted(fleet, operation, wait, response)

    return router


def _find(fleet: FleetControl, engine_id: str) -> EngineRow:
    for row in fleet.engines():
        if row.id == engine_id:
            return row
    raise NotFoundError(f"there is no engine {engine_id!r}")


def operation_routes(fleet: FleetControl) -> APIRouter:
    """Return `/gateways`, `/operations` and the abort of a request."""
    router = APIRouter(prefix=API, tags=["operations"])

    @router.get("/gateways")
    async def gateways() -> Collection[GatewayRow]:
        """All gateways."""
        return Collection(items=fleet.gateways())

    @router.get("/operations")
    async def operations() -> Collection[Operation]:
        """Newest first."""
        return Collection(items=fleet.operations())

    @router.get("/operations/{operation_id}")
    async def operation(operation_id: str, wait: Wait = 0) -> Operation:
        """One operation; with `wait`, at its end if that comes in time."""
        return await fleet.operation(operation_id, wait)

    @router.delete("/requests/{request_id}")
    async def abort(request_id: str, request: Request) -> AbortAnswer:
        """End a live request; answered once the engine or gateway has confirmed."""
        return await fleet.abort(request_id, caller_of(request).actor)

    return router
