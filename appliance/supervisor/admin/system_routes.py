"""Who am I, what is this, which keys are there."""

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response

from appliance.supervisor.admin.access import API
from appliance.supervisor.admin.fleet_routes import caller_of
from appliance.supervisor.admin.openapi import openapi_document
from appliance.supervisor.admin.ports import FleetControl, KeyStore
from appliance.supervisor.admin.schemas import (
    Collection,
    CreatedKey,
    CreateKey,
    Index,
    KeyRow,
    SystemInfo,
    WhoAmI,
)

_LINKED = (
    "engines", "adapters", "gateways", "operations", "requests", "traces", "stats", "events",
    "events/stream", "keys", "system", "whoami", "openapi.json",
)  # fmt: skip


def system_routes(app: FastAPI, fleet: FleetControl) -> APIRouter:
    """Return the index, `/whoami`, `/system` and `/openapi.json`."""
    router = APIRouter(prefix=API, tags=["system"])

    @router.get("")
    @router.get("/")
    async def index() -> Index:
        """Where everything is."""
        links = {name: f"{API}/{name}" for name in _LINKED} | {"metrics": "/metrics"}
        return Index(name="quarterdeck", version=version("quarterdeck"), links=links)

    @router.get("/whoami")
    async def whoami(request: Request) -> WhoAmI:
        """As whom the appliance sees the caller."""
        caller = caller_of(request)
        transport = "tcp" if caller.key is not None else "unix"
        return WhoAmI(actor=caller.actor, scope=caller.scope, transport=transport, key=caller.key)

    @router.get("/system")
    async def system() -> SystemInfo:
        """Facts of this instance."""
        return fleet.system()

    @router.get("/openapi.json")
    async def openapi() -> dict[str, Any]:
        """This description."""
        return openapi_document(app)

    return router


def key_routes(keys: KeyStore) -> APIRouter:
    """Return the routes below `/keys`."""
    router = APIRouter(prefix=API, tags=["keys"])

    @router.get("/keys")
    async def rows() -> Collection[KeyRow]:
        """All keys, never a secret."""
        return Collection(items=keys.rows())

    @router.post("/keys", status_code=201)
    async def create(body: CreateKey, request: Request, response: Response) -> CreatedKey:
        """Mint a key. This answer is the only place where its secret ever stands."""
        created = keys.create(body, caller_of(request).actor)
        response.headers["location"] = f"{API}/keys/{created.id}"
        response.headers["cache-control"] = "no-store"
        return created

    @router.delete("/keys/{key_id}")
    async def revoke(key_id: str, request: Request) -> KeyRow:
        """Make a key useless at once."""
        return keys.revoke(key_id, caller_of(request).actor)

    return router
