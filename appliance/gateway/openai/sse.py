"""The answering side of a stream: frames, comments while nothing comes, and a stall deadline.

Only `data:` frames and `:` comments are ever sent: SDKs choke on `id:`, `retry:` and named events.
A stream that fails ends with an error frame and without `[DONE]`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import NoReturn, Protocol

from starlette.types import Send

from appliance.gateway.data_plane import Timing
from appliance.gateway.generation import Delta
from appliance.gateway.journey import Journey
from appliance.gateway.openai.errors import ApiError, Headers
from appliance.gateway.request_context import ClientGoneError
from engine.clock import now_ns

DONE = b"data: [DONE]\n\n"
COMMENT = b": waiting for the first token\n\n"
COMMENT_HELD = b": waiting for an engine\n\n"
HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Frames(Protocol):
    """The frames of one stream, in the dialect of its route."""

    def opening(self) -> Iterable[bytes]:
        """What comes before the first delta, when the first token is here."""
        ...

    def delta(self, delta: Delta) -> Iterable[bytes]:
        """What a delta becomes; may be nothing."""
        ...

    def closing(self) -> Iterable[bytes]:
        """What comes after the last delta, before `[DONE]`."""
        ...


class SseStream:
    """A `Sink` that writes to a client as fast as it reads.

    Args:
        send: The ASGI send.
        cut: Drops the connection at once.
        frames: The dialect.
        journey: Gets the times and the number of frames.
        timing: Deadlines.
    """

    def __init__(
        self,
        send: Send,
        cut: Callable[[], None],
        frames: Frames,
        journey: Journey,
        timing: Timing,
    ) -> None:
        self._send = send
        self._cut = cut
        self._frames = frames
        self._journey = journey
        self._timing = timing
        self._lock = asyncio.Lock()
        self._last_write_ns = now_ns()
        self._num_emitting = 0
        """Deltas that are being written or wait for it."""
        self._sending_since_ns: int | None = None
        """When a delta was handed to the socket that has not taken it yet."""
        self._is_started = False
        self._is_opened = False

    @property
    def has_started(self) -> bool:
        """Whether the HTTP status is out."""
        return self._is_started

    @property
    def has_delivered(self) -> bool:
        """Whether a frame is out; comments do not count."""
        return self._is_opened

    async def emit(self, delta: Delta) -> None:
        """Write a delta; waits while the client does not read, until `keep_alive` gives it up."""
        self._num_emitting += 1
        try:
            async with self._lock:
                await self._emit(delta)
        finally:
            self._num_emitting -= 1

    async def _emit(self, delta: Delta) -> None:
        start_ns = self._sending_since_ns = now_ns()
        try:
            frames = [] if self._is_opened else await self._open()
            frames += self._frames.delta(delta)
            if frames:
                await self._write(b"".join(frames))
                self._note_frames(len(frames))
        finally:
            self._journey.note_sent(start_ns)
            self._sending_since_ns = None

    async def _open(self) -> list[bytes]:
        """Return the opening; warnings that come after the headers are written as a comment."""
        warnings = self._journey.context.warnings
        if self._is_started and warnings:
            await self._write(f": warnings: {'; '.join(warnings)}\n\n".encode())
        self._is_opened = True
        return list(self._frames.opening())

    def restart(self, index: int) -> None:
        """Nothing was delivered, so there is nothing to forget."""

    async def close(self) -> None:
        """Write the end of a complete stream."""
        frames = [*self._frames.closing(), DONE]
        async with self._lock:
            await self._bounded(self._write(b"".join(frames)))
            self._note_frames(len(frames))
            await self._bounded(self._send_body(b"", more=False))

    async def fail(self, error: ApiError) -> None:
        """Write the error frame and end the body, without `[DONE]`."""
        async with self._lock:
            await self._bounded(self._write(b"data: " + error.body() + b"\n\n"))
            await self._bounded(self._send_body(b"", more=False))

    async def keep_alive(self) -> None:
        """Begin the stream when the first token is late, and comment while nothing comes.

        It also cuts a reader off that stalls: a timer for each delta would cost more than its text.

        Raises:
            ClientGoneError: it was cut off.
        """
        comment_ns = now_ns() + int(self._timing.hold_status_s * 1e9)
        while True:
            at_ns = now_ns()
            if self._sending_since_ns is not None:
                delay_s = self._timing.stall_s - (at_ns - self._sending_since_ns) / 1e9
                if delay_s <= 0:
                    self._give_up()
            elif at_ns >= comment_ns:
                delay_s = await self._comment_when_silent()
                comment_ns = now_ns() + int(delay_s * 1e9)
            else:
                delay_s = (comment_ns - at_ns) / 1e9
            await asyncio.sleep(min(delay_s, self._timing.stall_s, self._timing.comment_s))

    async def _comment_when_silent(self) -> float:
        """Comment if it is time; return after how many seconds it may be."""
        if self._num_emitting:  # behind a delta that is never taken it would wait for ever
            return 0.0
        async with self._lock:
            silent_s = (now_ns() - self._last_write_ns) / 1e9
            if self._is_started and silent_s < self._timing.comment_s:
                return self._timing.comment_s - silent_s
            comment = COMMENT_HELD if self._journey.is_held else COMMENT
            await self._bounded(self._write(comment))
        return self._timing.comment_s

    def _note_frames(self, count: int) -> None:
        self._journey.frames += count
        self._journey.first_frame_ns = self._journey.first_frame_ns or self._last_write_ns

    async def _write(self, chunk: bytes) -> None:
        if not self._is_started:
            self._is_started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await self._send_body(chunk, more=True)
        self._last_write_ns = now_ns()

    async def _send_body(self, chunk: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": more})

    async def _bounded(self, sending: Awaitable[None]) -> None:
        """Wait for the socket, but not for ever: a reader that stalls is cut off."""
        start_ns = now_ns()
        try:
            async with asyncio.timeout(self._timing.stall_s):
                await sending
        except TimeoutError:
            self._give_up()
        finally:
            self._journey.note_sent(start_ns)

    def _give_up(self) -> NoReturn:
        self._cut()
        raise ClientGoneError from None
