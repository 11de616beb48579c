"""GET /v1/models and /v1/models/{id}: what is served, under the names that requests use."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from appliance.control_link.messages import EngineRoute
from appliance.gateway.data_plane import DataPlane
from appliance.gateway.openai.dialect import unix_now
from appliance.gateway.openai.errors import model_not_found


class ModelsRoute:
    """Both routes."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._created = unix_now()

    async def index(self, request: Request) -> Response:
        """List every served name."""
        rows = [self._row(name, route) for name, route in self._plane.fleet.models().items()]
        return json_response({"object": "list", "data": rows})

    async def one(self, request: Request) -> Response:
        """Show one served name."""
        name = request.path_params["model_id"]
        route = self._plane.fleet.models().get(name)
        if route is None:
            raise model_not_found()
        return json_response(self._row(name, route))

    def _row(self, name: str, route: EngineRoute) -> dict[str, object]:
        adapter = self._plane.fleet.adapter(name)
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "quarterdeck",
            "root": adapter.model if adapter else route.model,
            "parent": adapter.model if adapter else None,
            "max_model_len": self._plane.fleet.max_model_len(name),
        }


def json_response(body: object, status: int = 200) -> Response:
    """Return a JSON response."""
    return Response(msgspec.json.encode(body), status, media_type="application/json")
