"""The output thread: encodes messages and sends each to its client, never waiting for one.

Outputs of a step do not need it as a rule: the loop sends them itself, at once. To wake a thread
costs more than to send, and it would want the interpreter's lock just when the next step is packed.
What a client does not take at once, and the reports, are this thread's.
"""

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from engine.clock import now_ns
from engine.config import ClientEndpoint, EngineConfig
from engine.core.mail import CutOff, Outgoing
from engine.core.outbox import Outbox, Sender
from engine.core.records import RecordBuffer
from engine.wire.sockets import HeaderMaker, MessageCounts, connect_push

logger = logging.getLogger(__name__)

RETRY_MS = 50
"""Between two looks at sockets while the thread winds down."""


class OutputThread(threading.Thread):
    """Owns the PUSH sockets, one per client, and the outboxes before them.

    Whoever holds the lock may use the sockets. The thread polls one without it, but only one with
    a message in its outbox, and nobody else sends past that.

    Args:
        context: ZeroMQ context.
        config: Clients, epoch and the bound of an outbox.
        records: Gets the hops.
        notify: Tells the loop of a client that was cut off.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        config: EngineConfig,
        records: RecordBuffer,
        notify: Callable[[CutOff], None],
    ) -> None:
        super().__init__(name="output", daemon=True)
        self.counts = MessageCounts()
        self.clients_cut_off = 0
        self.finished = False
        """Whether it ended as it should: all sent, or given up in time."""
        self._context = context
        self._config = config
        self._notify = notify
        headers = HeaderMaker(config.engine_id, config.epoch)
        self._sender = Sender(headers, self.counts, records)
        self._posted: deque[Outgoing] = deque()
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._outboxes: list[Outbox] = []
        self._lock = threading.Lock()
        self._stop_at_ns: int | None = None

    @property
    def waiting(self) -> int:
        """Messages that clients have not read yet."""
        return len(self._posted) + sum(map(len, self._outboxes))

    def send(self, outgoing: Outgoing) -> None:
        """Send a message at once if its client takes it, else `post` it."""
        if not self._send_at_once(outgoing):
            self.post(outgoing)

    def post(self, outgoing: Outgoing) -> None:
        """Hand a message over to be sent by this thread; from any thread, never blocks."""
        self._posted.append(outgoing)
        os.eventfd_write(self._wakeup, 1)

    def stop(self, flush_s: float) -> None:
        """End once all is sent, at the latest after `flush_s`; the sockets then linger."""
        self._stop_at_ns = now_ns() + int(flush_s * 1e9)
        os.eventfd_write(self._wakeup, 1)

    def run(self) -> None:
        """Send until stopped. An error ends the thread, and the loop sees that."""
        try:
            self._outboxes = [self._connect(client) for client in self._config.clients]
            self._serve()
            self._close()
        except Exception:
            logger.exception("the output thread died")

    def _connect(self, client: ClientEndpoint) -> Outbox:
        socket = connect_push(self._context, client.output)
        return Outbox(client.name, socket, self._config.outbox_limit)

    def _send_at_once(self, outgoing: Outgoing) -> bool:
        """Send a message unless another one has to go before it, or the socket is busy."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._posted or not self._outboxes:
                return False
            return self._outboxes[outgoing.client].send_now(outgoing, self._sender)
        finally:
            self._lock.release()

    def wind_down(self, flush_s: float) -> None:
        """Send what is left in the caller's thread: this one has died and been joined."""
        self.stop(flush_s)
        self._serve()
        self._close()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wakeup, zmq.POLLIN)
        while not self._is_done():
            poller.poll(None if self._stop_at_ns is None else RETRY_MS)
            with self._lock:
                self._distribute()
                for outbox in self._outboxes:
                    outbox.flush(self._sender)
                    _watch(poller, outbox)

    def _is_done(self) -> bool:
        if self._stop_at_ns is None:
            return False
        left = len(self._posted) + sum(len(outbox) for outbox in self._outboxes)
        return not left or now_ns() >= self._stop_at_ns

    def _distribute(self) -> None:
        """Sort what was posted into the outboxes."""
        with contextlib.suppress(BlockingIOError):  # a socket may have ended the poll
            os.eventfd_read(self._wakeup)
        while self._posted:
            outgoing = self._posted.popleft()
            if not self._outboxes[outgoing.client].push(outgoing):
                self.clients_cut_off += 1
                self._notify(CutOff(outgoing.client))

    def _close(self) -> None:
        for outbox in self._outboxes:
            outbox.socket.close(0 if outbox else None)  # lingering helps no client that is stuck
        self.finished = True


def _watch(poller: "zmq.Poller", outbox: Outbox) -> None:
    """Poll a socket only while something waits for it: a writable one is always ready."""
    watched: Any = outbox.socket in poller
    if outbox and not watched:
        poller.register(outbox.socket, zmq.POLLOUT)
    elif watched and not outbox:
        poller.unregister(outbox.socket)
