"""The ASGI application of the data plane: its routes, and the middleware around them.

It is plain Starlette: every body is checked by our own tables, so FastAPI would add start-up time
and nothing else.
"""

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from appliance.gateway.auth import OPEN_PATHS, AuthMiddleware
from appliance.gateway.cors import CorsMiddleware
from appliance.gateway.data_plane import DataPlane
from appliance.gateway.journey import journey_of
from appliance.gateway.limits import LimitsMiddleware
from appliance.gateway.openai.chat import ChatDialect
from appliance.gateway.openai.completions import CompletionDialect
from appliance.gateway.openai.endpoint import GeneratingEndpoint
from appliance.gateway.openai.errors import ApiError
from appliance.gateway.openai.models import ModelsRoute
from appliance.gateway.openai.tokenize import TokenizeRoutes
from appliance.gateway.probes import Probes
from appliance.gateway.request_context import RequestContext, RequestContextMiddleware

OTHER_ROUTE = "other"
ROUTE_LABELS = OPEN_PATHS | {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/models",
    "/tokenize",
    "/detokenize",
}


class DataPlaneApp:
    """The application, with one entrance for each kind of listener.

    Trust follows the listener: what comes in by `local` is the local user, who needs no key.

    Args:
        plane: What all requests share.
    """

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self.routes = build_routes(plane)
        router: ASGIApp = _OpenAiRouter(self.routes)
        router = AuthMiddleware(router, plane.fleet, plane.cors_origins)
        router = CorsMiddleware(router, plane.cors_origins)
        router = LimitsMiddleware(router)
        self.public: ASGIApp = RequestContextMiddleware(
            router, is_local=False, observe=self._observe
        )
        self.local: ASGIApp = RequestContextMiddleware(router, is_local=True, observe=self._observe)

    def _observe(self, scope: Scope, context: RequestContext) -> None:
        """Book an ended request."""
        plane = self._plane
        plane.ledger.answered(route_label(scope["path"]), context.status)
        journey = journey_of(scope, context)
        if journey is not None:
            verdict = plane.ledger.close(journey)
            journey.gateway_busy_ns = plane.lag.since_ns(context.received_ns)
            journey.slo_ttft_ok, journey.slo_tpot_ok = verdict.ttft, verdict.tpot
            if context.authenticated_ns is not None:
                # strangers are counted, but may not push others' requests out of the lists
                plane.records.finished(journey)


def build_routes(plane: DataPlane) -> list[Route]:
    """Return every route of the data plane."""
    probes, models, tokenizing = Probes(plane), ModelsRoute(plane), TokenizeRoutes(plane)
    chat = GeneratingEndpoint(plane, ChatDialect())
    completions = GeneratingEndpoint(plane, CompletionDialect())
    return [
        Route("/livez", probes.livez),
        Route("/startupz", probes.startupz),
        Route("/readyz", probes.readyz),
        Route("/health", probes.readyz),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/models", models.index),
        Route("/v1/models/{model_id:path}", models.one),
        Route("/tokenize", tokenizing.tokenize, methods=["POST"]),
        Route("/detokenize", tokenizing.detokenize, methods=["POST"]),
    ]


def route_label(path: str) -> str:
    """Return the route's label in accounts: a closed set."""
    if path.startswith("/v1/models/"):
        return "/v1/models/{model_id}"
    return path if path in ROUTE_LABELS else OTHER_ROUTE


async def _no_such_route(scope: Scope, receive: Receive, send: Send) -> None:
    raise ApiError("unknown_url", "There is no such URL; see GET /v1/models for a start.")


class _OpenAiRouter:
    """A router whose refusals are `ApiError`s."""

    def __init__(self, routes: list[Route]) -> None:
        self._router = Router(routes, redirect_slashes=False, default=_no_such_route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # with an application in the scope, a wrong method raises
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            allow = (error.headers or {}).get("Allow", "")
            raise ApiError(
                "method_not_allowed",
                "This URL does not take this method.",
                headers=((b"allow", allow.encode()),),
            ) from error
