"""LoRA adapters: list, load, unload, pin. A load is checked first, then done on all engines."""

from fastapi import APIRouter, Request, Response

from appliance.supervisor.admin.access import API
from appliance.supervisor.admin.fleet_routes import Wait, accepted, caller_of
from appliance.supervisor.admin.ports import FleetControl, NotFoundError
from appliance.supervisor.admin.schemas import (
    AdapterRow,
    Collection,
    LoadAdapterBody,
    Operation,
)


def adapter_routes(fleet: FleetControl) -> APIRouter:
    """Return the routes below `/adapters`."""
    router = APIRouter(prefix=API, tags=["adapters"])

    @router.get("/adapters")
    async def adapters() -> Collection[AdapterRow]:
        """All adapters, by name."""
        return Collection(items=fleet.adapters())

    @router.get("/adapters/{name}")
    async def adapter(name: str) -> AdapterRow:
        """One adapter."""
        return _find(fleet, name)

    @router.put("/adapters/{name}", status_code=202)
    async def load(
        name: str, body: LoadAdapterBody, request: Request, response: Response, wait: Wait = 0
    ) -> Operation:
        """Load an adapter on all engines of its model, or on none.

        What is loaded under the name already is replaced: by the same, which changes nothing, or
        by other content, for requests from now on.
        """
        operation = await fleet.load_adapter(name, body, caller_of(request).actor)
        return await accepted(fleet, operation, wait, response)

    @router.delete("/adapters/{name}", status_code=202)
    async def unload(name: str, request: Request, response: Response, wait: Wait = 0) -> Operation:
        """Take the name away; requests that run with it go on to their end."""
        operation = fleet.unload_adapter(name, caller_of(request).actor)
        return await accepted(fleet, operation, wait, response)

    @router.post("/adapters/{name}/pin", status_code=202)
    async def pin(name: str, request: Request, response: Response, wait: Wait = 0) -> Operation:
        """Keep the adapter in its slot; pinned already, it changes nothing."""
        operation = fleet.pin_adapter(name, caller_of(request).actor, pinned=True)
        return await accepted(fleet, operation, wait, response)

    @router.post("/adapters/{name}/unpin", status_code=202)
    async def unpin(name: str, request: Request, response: Response, wait: Wait = 0) -> Operation:
        """Let the adapter make room for others."""
        operation = fleet.pin_adapter(name, caller_of(request).actor, pinned=False)
        return await accepted(fleet, operation, wait, response)

    return router


def _find(fleet: FleetControl, name: str) -> AdapterRow:
    for row in fleet.adapters():
        if row.name == name:
            return row
    raise NotFoundError(f"there is no adapter {name}")
