"""Bounds on what a request may be before anybody looks into it: headers, body, nesting, number."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from appliance.gateway.auth import is_open
from appliance.gateway.host import is_well_formed
from appliance.gateway.openai.errors import ApiError
from appliance.gateway.request_context import ClientGoneError, header_values

MAX_BODY_BYTES = 2 << 20
MAX_DISCARDED_BYTES = 16 << 20
"""A body that is too large is read up to here, so that its sender gets to read the refusal."""
MAX_HEADERS = 100
MAX_HEADER_BYTES = 32 << 10
MAX_JSON_DEPTH = 64
MAX_REQUESTS_AT_ONCE = 512
LARGE_BODY_BYTES = 64 << 10
"""Parsed in a thread from here on."""
CLOSE = ((b"connection", b"close"),)

ResultT = TypeVar("ResultT")


class LimitsMiddleware:
    """Refuses what is malformed or too much, before the key is looked at."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._at_once = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or refuse it."""
        check_headers(scope)
        if self._at_once >= MAX_REQUESTS_AT_ONCE and not is_open(scope):
            message = "Too many requests at once; try again later."
            raise ApiError("server_overloaded", message, retry_after_s=1, headers=CLOSE)
        self._at_once += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._at_once -= 1


def check_headers(scope: Scope) -> None:
    """Raise ApiError when the headers are too many, too large, or name no proper host."""
    headers = scope["headers"]
    size_bytes = sum(len(name) + len(value) for name, value in headers)
    if len(headers) > MAX_HEADERS or size_bytes > MAX_HEADER_BYTES:
        raise ApiError("headers_too_large", "The request's headers are too large.", headers=CLOSE)
    if not is_well_formed(header_values(scope, b"host")):
        raise ApiError("invalid_host", "The Host header is missing or malformed.", headers=CLOSE)


async def refuse_large_body(scope: Scope, receive: Receive) -> None:
    """Raise ApiError when the declared length is above the limit."""
    declared = header_values(scope, b"content-length")
    if not declared or not declared[0].isdigit() or int(declared[0]) <= MAX_BODY_BYTES:
        return
    is_on_its_way = not header_values(scope, b"expect")
    if is_on_its_way and int(declared[0]) <= MAX_DISCARDED_BYTES:
        await _discard(receive, MAX_DISCARDED_BYTES)
    raise too_large()


def too_large() -> ApiError:
    """The refusal of a body above the limit."""
    message = f"The request's body is larger than {MAX_BODY_BYTES} bytes."
    return ApiError("request_too_large", message, headers=CLOSE)


async def _discard(receive: Receive, limit_bytes: int) -> None:
    seen_bytes = 0
    while seen_bytes <= limit_bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        seen_bytes += len(message.get("body", b""))
        if not message.get("more_body", False):
            return


async def read_body(receive: Receive) -> bytes:
    """Return the whole body.

    Raises:
        ApiError: `request_too_large`.
        ClientGoneError: the client closed the connection.
    """
    chunks: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunks.append(message.get("body", b""))
        size_bytes += len(chunks[-1])
        if size_bytes > MAX_BODY_BYTES:
            await _discard(receive, MAX_DISCARDED_BYTES)
            raise too_large()
        if not message.get("more_body", False):
            return b"".join(chunks)


async def read_json_object(scope: Scope, receive: Receive) -> tuple[dict[str, Any], int]:
    """Return the body of a request as a JSON object, and its size in bytes.

    Raises:
        ApiError: another content type, a body that is too large or no JSON object.
        ClientGoneError: the client closed the connection.
    """
    kinds = header_values(scope, b"content-type")
    kind = kinds[0].partition(b";")[0].strip().lower() if len(kinds) == 1 else b""
    if kind != b"application/json":
        raise ApiError(
            "unsupported_media_type", "Send the header 'content-type: application/json'."
        )
    if header_values(scope, b"content-encoding") not in ([], [b"identity"]):
        raise ApiError("unsupported_media_type", "Compressed bodies are not accepted.")
    await refuse_large_body(scope, receive)
    body = await read_body(receive)
    return await in_proportion(len(body), lambda: parse_json_object(body)), len(body)


async def in_proportion(
    size_bytes: int, work: Callable[[], ResultT], *, threshold_bytes: int = LARGE_BODY_BYTES
) -> ResultT:
    """Do work that grows with a body: here when it is small, in a thread when it is large."""
    if size_bytes < threshold_bytes:
        return work()
    return await asyncio.to_thread(work)


def parse_json_object(body: bytes) -> dict[str, Any]:
    """Parse strict JSON (no NaN, no lone surrogates) of bounded depth.

    Raises:
        ApiError: it is none, or not an object.
    """
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ApiError("invalid_json", "Could not parse the JSON body of the request.") from None
    if not isinstance(value, dict):
        raise ApiError("invalid_json", "The JSON body of the request must be an object.")
    _check_depth(value)
    return value


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [child for parent in level for child in _containers(parent)]
        if not level:
            return
    raise ApiError("invalid_json", f"The JSON body is nested deeper than {MAX_JSON_DEPTH} levels.")


def _containers(value: object) -> list[object]:
    children: list[object] = []
    if isinstance(value, dict):
        children = list(value.values())
    elif isinstance(value, list):
        children = value
    return [child for child in children if isinstance(child, dict | list)]
