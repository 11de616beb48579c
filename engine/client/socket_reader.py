"""Receives from a ZeroMQ socket in an event loop: no task and no future for each message.

ZeroMQ tells by a file descriptor that something about a socket has changed, once: whoever is told
must take all there is, and must look again after each send, which may have swallowed the news
(http://api.zeromq.org/4-3:zmq-getsockopt, ZMQ_FD).
"""

import asyncio
from collections.abc import Callable
from typing import Final

import zmq

from engine.wire.sockets import receive_frames

BURST: Final = 64
"""Messages taken before the loop's other work gets its turn."""

_EVENTS: Final = int(zmq.EVENTS)
_READABLE: Final = int(zmq.POLLIN)
_WRITABLE: Final = int(zmq.POLLOUT)
"""As numbers: pyzmq's enumerations cost more than the calls."""

OnFrames = Callable[[list[bytes]], None]


class SocketReader:
    """Hands every message of one socket over, as long as `run` runs.

    Args:
        socket: A plain socket that only this event loop's thread touches.
        on_frames: Gets the frames of each message; what it raises ends `run`.
    """

    def __init__(self, socket: "zmq.Socket[bytes]", on_frames: OnFrames) -> None:
        self._socket = socket
        self._on_frames = on_frames
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._is_due = False
        """The loop will look again soon: once is enough, however often it was asked to."""

    async def run(self) -> None:
        """Receive until cancelled."""
        self._loop = loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        descriptor = self._socket.getsockopt(zmq.FD)
        assert isinstance(descriptor, int), "the option is a number"
        loop.add_reader(descriptor, self._take_all)
        try:
            self._take_all()  # of what has come before, nobody is told
            await self._ended
        finally:
            loop.remove_reader(descriptor)
            self._loop = None

    async def writable(self) -> None:
        """Wait until the socket would take a message; `run` must be running meanwhile."""
        while True:
            events = self._events()
            if events & _READABLE:  # this look has swallowed the news, as a send may
                self.look_again()
            if events & _WRITABLE:
                return
            self._writable = asyncio.get_running_loop().create_future()
            await self._writable

    def look_again(self) -> None:
        """To be called after each send."""
        if self._loop is not None and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._take_due)

    def _take_due(self) -> None:
        self._is_due = False
        self._take_all()

    def _take_all(self) -> None:
        if self._loop is None or self._ended is None or self._ended.done():
            return
        try:
            self._receive()
        except Exception as error:  # noqa: BLE001 - raised where `run` is awaited
            self._ended.set_exception(error)
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def _receive(self) -> None:
        socket, on_frames = self._socket, self._on_frames
        for _ in range(BURST):
            if not self._events() & _READABLE:
                return
            on_frames(receive_frames(socket))
        self.look_again()

    def _events(self) -> int:
        events = self._socket.getsockopt(_EVENTS)
        assert isinstance(events, int), "the option is a number"
        return events
