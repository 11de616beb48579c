"""What a client must give back, even when its construction fails half-way.

`close` runs from `weakref.finalize`, so it must not refer to the client itself.
"""

import logging
import os
import threading
from collections.abc import Callable
from typing import Generic

import zmq

from engine.wire.sockets import SocketT

logger = logging.getLogger(__name__)


class BackgroundResources(Generic[SocketT]):
    """Child processes, threads, sockets, then their context: closed in that order and only once.

    What was registered last is closed first. A forked process inherits the client, but none of its
    threads and engines: nothing is closed there.
    """

    def __init__(self, context: "zmq.Context[SocketT]") -> None:
        self.context = context
        self._sockets: list[SocketT] = []
        self._callbacks: list[Callable[[], object]] = []
        self._closing = threading.Lock()
        self._pid = os.getpid()

    def own(self, socket: SocketT) -> SocketT:
        """Close this socket before the context."""
        self._sockets.append(socket)
        return socket

    def hand_over(self, socket: SocketT) -> None:
        """Leave this socket to its thread, which closes it from now on."""
        self._sockets.remove(socket)

    def on_close(self, callback: Callable[[], object]) -> None:
        """Run `callback` before anything registered earlier, and before any socket is closed."""
        self._callbacks.append(callback)

    def run_callbacks(self) -> None:
        """Do the part of closing that blocks and touches no socket."""
        while self._callbacks:
            callback = self._callbacks.pop()
            try:
                callback()
            except Exception:
                logger.exception("a part of a client could not be closed")

    def __call__(self) -> None:
        """Close everything; a part that fails does not keep the others."""
        if os.getpid() != self._pid:
            return
        with self._closing:
            self.run_callbacks()
            while self._sockets:
                self._sockets.pop().close(0)
            self.context.destroy(0)
