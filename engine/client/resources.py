"""What a client must give back, even when its construction fails half-way.

`close` runs from `weakref.finalize`, so it must not refer to the client itself.
"""

from collections.abc import Callable
from contextlib import ExitStack

import zmq
import zmq.asyncio


class BackgroundResources:
    """Sockets, then their context, closed in that order and only once."""

    def __init__(self) -> None:
        self.context = zmq.asyncio.Context()
        self._stack = ExitStack()
        self._stack.callback(self.context.destroy, 0)

    def own(self, socket: "zmq.asyncio.Socket") -> "zmq.asyncio.Socket":
        """Close this socket before the context."""
        self._stack.callback(socket.close, 0)
        return socket

    def on_close(self, callback: Callable[[], None]) -> None:
        """Run `callback` before anything registered earlier is closed."""
        self._stack.callback(callback)

    def __call__(self) -> None:
        """Close everything."""
        self._stack.close()
