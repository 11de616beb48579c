"""The outermost middleware: gives every request its ids and clock, and every answer its headers.

It is also the last place where an error becomes an answer in the OpenAI shape.
"""

import logging
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from appliance.control_link.messages import KeyRecord
from appliance.gateway.admission import RateStatus
from appliance.gateway.openai.errors import ApiError, Headers
from engine.clock import now_ns
from engine.log_lines import about
from engine.wire.header import TraceContext, new_context, new_span_id, parse_traceparent

logger = logging.getLogger(__name__)

CONTEXT_KEY = "quarterdeck"
API_VERSION = b"2020-10-01"
CLIENT_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
UNSAFE_IN_HEADER = re.compile(r"[^ -~]")
MAX_WARNINGS = 8
MAX_WARNING_CHARS = 200


class ClientGoneError(Exception):
    """The client closed the connection before it had its answer."""


@dataclass(slots=True)
class RequestContext:
    """What is known of one HTTP request, whatever becomes of it."""

    hex_id: str
    """24 hex digits, in every id of this request."""
    trace: TraceContext
    """Trace id, and the id of the server span."""
    parent_span_id: str | None
    received_ns: int
    is_local: bool
    """It came over the unix socket: the local user, no key needed."""
    client_request_id: str | None
    key: KeyRecord | None = None
    authenticated_ns: int | None = None
    rate: RateStatus | None = None
    ignored: tuple[str, ...] = ()
    """Unknown parameters."""
    warnings: tuple[str, ...] = ()
    """What of the request is not enforced, as it is safe in a header."""
    status: int = 0
    """Of the answer, 0 while it has not started."""
    error: ApiError | None = None
    was_accepted: bool = False
    ended_ns: int | None = None
    """The last `send` returned."""

    @property
    def request_id(self) -> str:
        """The id in `x-request-id`, records and traces."""
        return f"req-{self.hex_id}"

    def warn(self, texts: Iterable[str]) -> None:
        """Add warnings; the same one is kept once, and few of them."""
        safe = (UNSAFE_IN_HEADER.sub("?", text)[:MAX_WARNING_CHARS] for text in texts)
        self.warnings = tuple(dict.fromkeys((*self.warnings, *safe)))[:MAX_WARNINGS]


def context_of(scope: Scope) -> RequestContext:
    """Return the context that the middleware put into the scope."""
    context = scope[CONTEXT_KEY]
    assert isinstance(context, RequestContext)
    return context


def header_values(scope: Scope, name: bytes) -> list[bytes]:
    """Return every value of a header; names in a scope are lower case."""
    return [value for key, value in scope["headers"] if key == name]


def _only_value(scope: Scope, name: bytes) -> str | None:
    values = header_values(scope, name)
    return values[0].decode("latin-1") if len(values) == 1 else None


def new_request_context(scope: Scope, *, is_local: bool) -> RequestContext:
    """Start the clock of a request and put it into its caller's trace, if it has one."""
    parent = parse_traceparent(_only_value(scope, b"traceparent"))
    trace = new_context()
    if parent is not None:
        trace = TraceContext(parent.trace_id, new_span_id(), parent.flags)
    label = _only_value(scope, b"x-request-id")
    return RequestContext(
        hex_id=os.urandom(12).hex(),
        trace=trace,
        parent_span_id=parent.span_id if parent else None,
        received_ns=now_ns(),
        is_local=is_local,
        client_request_id=label if label and CLIENT_REQUEST_ID.fullmatch(label) else None,
    )


Observer = Callable[[Scope, RequestContext], None]
"""Called once at the end of each request."""


class RequestContextMiddleware:
    """Wraps the whole application.

    Args:
        app: The application inside.
        is_local: Whether the listener in front of it is the unix socket. Trust follows the
            listener, never a header.
        observe: Told of every request's end.
    """

    def __init__(self, app: ASGIApp, *, is_local: bool, observe: Observer) -> None:
        self._app = app
        self._is_local = is_local
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; anything but HTTP is refused."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        context = new_request_context(scope, is_local=self._is_local)
        scope[CONTEXT_KEY] = context
        answer = _Answer(context, send)
        try:
            with about(context.request_id, context.trace.trace_id):
                await self._serve(scope, receive, answer)
        finally:
            context.ended_ns = context.ended_ns or now_ns()
            self._observe(scope, context)

    async def _serve(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        context = context_of(scope)
        try:
            await self._app(scope, receive, answer.send)
        except ApiError as error:
            await answer.send_error(error)
        except ClientGoneError:
            context.error = ApiError("client_disconnected", "The client closed the connection.")
            context.status = context.status or context.error.status
        except Exception:
            logger.exception("request %s failed", context.request_id)
            await answer.send_error(ApiError("internal_error", "The server failed."))


@dataclass(slots=True)
class _Answer:
    """The sending side of one request: adds the headers that every answer carries."""

    context: RequestContext
    raw_send: Send
    has_started: bool = field(default=False, init=False)

    async def send(self, message: Message) -> None:
        """Pass a message on, with our headers at the start."""
        if message["type"] == "http.response.start":
            self.has_started = True
            self.context.status = message["status"]
            message = {**message, "headers": [*message["headers"], *self._headers()]}
        await self.raw_send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.context.ended_ns = now_ns()

    async def send_error(self, error: ApiError) -> None:
        """Answer with an error, if nothing was sent yet."""
        self.context.error = error
        if self.has_started:
            return
        await send_json(self.send, error.status, error.body(), error.headers())

    def _headers(self) -> Headers:
        context = self.context
        elapsed_ms = (now_ns() - context.received_ns) // 1_000_000
        headers: Headers = [
            (b"x-request-id", context.request_id.encode()),
            (b"openai-processing-ms", str(elapsed_ms).encode()),
            (b"openai-version", API_VERSION),
        ]
        if context.rate is not None:
            headers += context.rate.headers()
        if context.ignored:
            headers.append((b"x-quarterdeck-ignored", ", ".join(context.ignored).encode()))
        if context.warnings:
            headers.append((b"x-quarterdeck-warnings", "; ".join(context.warnings).encode()))
        return headers


async def send_json(send: Send, status: int, body: bytes, headers: Headers | None = None) -> None:
    """Answer with a JSON body."""
    start: Headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *(headers or []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body, "more_body": False})
