"""Browsers of configured origins: the preflight, and the headers that let them read answers."""

from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from appliance.gateway.openai.errors import Headers
from appliance.gateway.request_context import header_values

ALLOWED_METHODS = b"GET, POST"
ALLOWED_HEADERS = b"authorization, content-type, traceparent, tracestate, x-request-id"
EXPOSED_HEADERS = b"x-request-id, retry-after, openai-processing-ms, x-quarterdeck-ignored"
MAX_AGE_S = b"600"


class CorsMiddleware:
    """Answers preflights of allowed origins; any other OPTIONS goes on and meets the lock.

    Args:
        app: The application inside.
        allowed_origins: Exact origins, such as `https://chat.example`; none by default.
    """

    def __init__(self, app: ASGIApp, allowed_origins: Iterable[str]) -> None:
        self._app = app
        self._allowed = frozenset(origin.encode() for origin in allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        origins = header_values(scope, b"origin")
        if len(origins) != 1 or origins[0] not in self._allowed:
            await self._app(scope, receive, send)
            return
        shared: Headers = [(b"access-control-allow-origin", origins[0]), (b"vary", b"Origin")]
        asks = header_values(scope, b"access-control-request-method")
        if scope["method"] == "OPTIONS" and asks:
            await _answer_preflight(send, shared)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                exposed = (b"access-control-expose-headers", EXPOSED_HEADERS)
                message = {**message, "headers": [*message["headers"], *shared, exposed]}
            await send(message)

        await self._app(scope, receive, send_with_headers)


async def _answer_preflight(send: Send, shared: Headers) -> None:
    headers: Headers = [
        *shared,
        (b"access-control-allow-methods", ALLOWED_METHODS),
        (b"access-control-allow-headers", ALLOWED_HEADERS),
        (b"access-control-max-age", MAX_AGE_S),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
