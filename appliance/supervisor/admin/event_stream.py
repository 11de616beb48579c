"""The event stream as Server-Sent Events: id, event and data lines, and a ping when it is quiet."""

from collections.abc import AsyncGenerator, AsyncIterator

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PING_S = 15.0
"""Proxies cut a connection that says nothing for a minute or so."""

_HEADERS = {
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # nginx would collect events before it sends them
}
_PING = b": ping\n\n"


def last_event_id(header: str | None) -> int | None:
    """Return the id after which a reader wants to go on, None for one that starts anew."""
    return int(header) if header is not None and header.isascii() and header.isdigit() else None


def frame(event_id: int, name: str, text: str) -> bytes:
    """Return one event; a newline in the text starts another data line."""
    lines = "".join(f"data: {line}\n" for line in text.split("\n"))
    return f"id: {event_id}\nevent: {name}\n{lines}\n".encode()


class EventStream(Response):
    """Sends events until the reader leaves or the subscription ends.

    Args:
        events: (id, event name, JSON) in order; closed when the reader leaves.
        ping_s: seconds of silence after which a comment shows that the stream lives.
    """

    def __init__(
        self, events: AsyncIterator[tuple[int, str, str]], *, ping_s: float = PING_S
    ) -> None:
        super().__init__(media_type="text/event-stream", headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._ping_s = ping_s
        self._sending = anyio.Lock()
        self._sent_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch, receive, tasks.cancel_scope)
                tasks.start_soon(self._ping, send)
                await self._pump(send)
                tasks.cancel_scope.cancel()
        finally:
            if isinstance(self._events, AsyncGenerator):
                with anyio.CancelScope(shield=True):
                    await self._events.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pump(self, send: Send) -> None:
        async for event_id, name, text in self._events:
            await self._write(send, frame(event_id, name, text))

    async def _write(self, send: Send, chunk: bytes) -> None:
        async with self._sending:
            self._sent_at = anyio.current_time()
            await send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def _ping(self, send: Send) -> None:
        self._sent_at = max(self._sent_at, anyio.current_time())
        while True:
            quiet_s = anyio.current_time() - self._sent_at
            if quiet_s >= self._ping_s:
                await self._write(send, _PING)
            else:
                await anyio.sleep(self._ping_s - quiet_s)

    @staticmethod
    async def _watch(receive: Receive, reader: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        reader.cancel()
