"""Reads a request's body before any handler runs: small, in time, and JSON."""

import asyncio

from starlette.types import Message, Receive, Scope

from appliance.supervisor.admin.origin import header_values
from appliance.supervisor.admin.problems import ProblemError, problem

MAX_BYTES = 64 << 10
DEADLINE_S = 10.0


class ClientGoneError(Exception):
    """The client hung up before its body was complete."""


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """Return the whole body; empty for methods and requests without one.

    Raises:
        ProblemError: 408, 413 or 415.
        ClientGoneError: there is nobody left to answer.
    """
    lengths = header_values(scope, b"content-length")
    if lengths and lengths[0].isdigit() and int(lengths[0]) > MAX_BYTES:
        raise _too_large()
    try:
        async with asyncio.timeout(DEADLINE_S):
            body = await _collect(receive)
    except TimeoutError as error:
        late = problem(408, "body_timeout", f"the body took longer than {DEADLINE_S:g} s")
        raise ProblemError(late) from error
    if body:
        _check_type(scope)
    return body


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that hands the body out once more, then goes on with the real one."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return pending.pop() if pending else await receive()

    return receive_again


async def _collect(receive: Receive) -> bytes:
    chunks = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunks += message.get("body", b"")
        if len(chunks) > MAX_BYTES:
            raise _too_large()
        if not message.get("more_body", False):
            return bytes(chunks)


def _too_large() -> ProblemError:
    return ProblemError(problem(413, "body_too_large", f"at most {MAX_BYTES} bytes"))


def _check_type(scope: Scope) -> None:
    values = header_values(scope, b"content-type")
    kind = values[0].split(b";")[0].strip().lower() if len(values) == 1 else b""
    if kind != b"application/json":
        hint = "Send Content-Type: application/json."
        raise ProblemError(problem(415, "not_json", "bodies are JSON here", hint))
