"""The probes, open to everybody: is the process alive, has it started, would it serve a request."""

from starlette.requests import Request
from starlette.responses import Response

from appliance.control_link.messages import EngineRoute
from appliance.gateway.data_plane import DataPlane
from appliance.gateway.fleet import ASLEEP, READY
from appliance.gateway.openai.models import json_response

UNAVAILABLE = 503


class Probes:
    """Answers `/livez`, `/startupz`, `/readyz` and `/health`."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._has_started = False

    async def livez(self, request: Request) -> Response:
        """The loop turns."""
        return json_response({"status": "alive"})

    async def startupz(self, request: Request) -> Response:
        """Whether a first engine and its tokenizer have been ready; until then, how far it is."""
        routes = self._routes()
        self._has_started = self._has_started or any(
            route.ready is not None and self._plane.texts.is_loaded(route.model_path)
            for route in routes
        )
        status = "started" if self._has_started else "starting"
        body = {"status": status, "engines": [_progress(route) for route in routes]}
        return json_response(body, 200 if self._has_started else UNAVAILABLE)

    async def readyz(self, request: Request) -> Response:
        """Whether a request would be served now; a sleeping engine counts when requests wake it."""
        if self._plane.is_draining:
            return json_response({"status": "draining"}, UNAVAILABLE)
        state = self._plane.fleet.state
        serving = {READY, ASLEEP} if state and state.on_asleep == "wake" else {READY}
        if any(route.state in serving for route in self._routes()):
            return json_response({"status": "ready"})
        return json_response({"status": "not ready"}, UNAVAILABLE)

    def _routes(self) -> tuple[EngineRoute, ...]:
        state = self._plane.fleet.state
        return state.engines if state else ()


def _progress(route: EngineRoute) -> dict[str, object]:
    return {
        "id": route.engine_id,
        "model": route.model,
        "state": route.state,
        "phase": route.phase or None,
        "done": route.done,
        "total": route.total,
    }
