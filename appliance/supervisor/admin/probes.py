"""The open routes: is it alive, has it started, can it serve. They tell a stranger little."""

from collections.abc import Sequence

from fastapi import APIRouter, Response

from appliance.supervisor.admin.ports import FleetControl
from appliance.supervisor.admin.probe_schemas import Probe, ProbeEngine
from appliance.supervisor.admin.schemas import EngineRow

_UNAVAILABLE = 503


def probe_routes(fleet: FleetControl) -> APIRouter:
    """Return `/livez`, `/startupz`, `/readyz` and `/health`."""
    router = APIRouter(tags=["probes"])

    @router.get("/livez")
    async def livez() -> Probe:
        """Whether the supervisor's loop runs."""
        return Probe(status="alive")

    @router.get("/startupz")
    async def startupz(response: Response) -> Probe:
        """Whether every engine has been ready once; until then, how far each is."""
        has_started, rows = fleet.startup()
        response.status_code = 200 if has_started else _UNAVAILABLE
        return Probe(status="started" if has_started else "starting", engines=_engines(rows))

    @router.get("/readyz")
    @router.get("/health")
    async def readyz(response: Response) -> Probe:
        """Whether a request would be served: by a ready engine, or by one that it wakes."""
        rows = fleet.engines()
        serving = (
            {"ready"} if fleet.system().on_asleep == "reject" else {"ready", "asleep", "waking"}
        )
        is_ready = any(row.state in serving for row in rows)
        response.status_code = 200 if is_ready else _UNAVAILABLE
        return Probe(status="ready" if is_ready else "not ready", engines=_engines(rows))

    return router


def _engines(rows: Sequence[EngineRow]) -> list[ProbeEngine]:
    return [
        ProbeEngine(id=row.id, state=row.state, phase=row.phase, progress=row.progress)
        for row in rows
    ]
