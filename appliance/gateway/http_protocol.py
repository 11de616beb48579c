"""uvicorn's HTTP protocol with absolute deadlines, header bounds and a cap on connections.

uvicorn has no deadline for the receipt of headers or body, so one trickling client could hold a
connection for ever; and it keeps a stalled connection open until its buffer drains. So an answer
that nobody takes is dropped, and the application gets a way to cut a stream (`CUT_KEY` in the
scope).
"""

import os
import resource
from asyncio import TimerHandle, Transport
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from appliance.gateway.limits import MAX_HEADER_BYTES, MAX_HEADERS
from appliance.gateway.openai.errors import ApiError

HEADER_DEADLINE_S = 10.0
BODY_DEADLINE_S = 30.0
STALL_S = 30.0
"""A whole answer of which nothing is taken for this long is dropped."""
MAX_CONNECTIONS = min(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
"""Of one listener; below the limit of descriptors, where accepting would spin."""
CUT_KEY = "quarterdeck.cut"
"""Scope key: a callable that drops the connection at once, unsent bytes included."""


class _HeadersTooLargeError(Exception):
    """Raised inside the parser, which wraps it."""


class DeadlineProtocol(HttpToolsProtocol):
    """One connection."""

    _deadline: TimerHandle | None = None
    _stall_check: TimerHandle | None = None
    _header_bytes = 0
    _has_too_large_headers = False

    def connection_made(self, transport: Transport) -> None:
        """Begin the wait for headers; refuse a connection above the cap."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse(ApiError("server_overloaded", "Too many connections.", retry_after_s=1))
            return
        self._set_deadline(HEADER_DEADLINE_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadlines."""
        self._clear_deadline()
        if self._stall_check is not None:
            self._stall_check.cancel()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A request's first byte: its headers must be here soon."""
        super().on_message_begin()
        self._header_bytes = 0
        state: Any = self.scope
        state[CUT_KEY] = self.transport.abort
        self._set_deadline(HEADER_DEADLINE_S)

    def on_url(self, url: bytes) -> None:
        """Bound the target like a header."""
        self._count_header_bytes(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Bound the headers while they arrive."""
        self._count_header_bytes(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The body must be here soon."""
        self._set_deadline(BODY_DEADLINE_S)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """All is here."""
        self._clear_deadline()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is written, though perhaps not taken."""
        super().on_response_complete()
        self._check_stall(None)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP in the OpenAI shape."""
        if self._has_too_large_headers:
            self._refuse(ApiError("headers_too_large", "The request's headers are too large."))
        else:
            self._refuse(ApiError("invalid_http", msg))

    def _check_stall(self, unsent_before: int | None) -> None:
        """Drop the connection when no byte has left since the last look."""
        unsent = self.transport.get_write_buffer_size()
        if unsent and unsent == unsent_before:
            self.transport.abort()
        elif unsent:
            self._stall_check = self.loop.call_later(STALL_S, self._check_stall, unsent)

    def _count_header_bytes(self, size_bytes: int) -> None:
        self._header_bytes += size_bytes
        if self._header_bytes > MAX_HEADER_BYTES or len(self.headers) >= MAX_HEADERS:
            self._has_too_large_headers = True
            raise _HeadersTooLargeError

    def _refuse(self, error: ApiError) -> None:
        self._clear_deadline()
        body = error.body()
        lines = [
            f"HTTP/1.1 {error.status} ".encode(),
            b"content-type: application/json",
            b"content-length: " + str(len(body)).encode(),
            b"connection: close",
            b"x-request-id: req-" + os.urandom(12).hex().encode(),
            *(name + b": " + value for name, value in error.headers()),
        ]
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        self.transport.close()

    def _set_deadline(self, delay_s: float) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(delay_s, self.transport.abort)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
