"""The input thread: polls all clients' sockets, decodes, fences, and hands over to the loop.

Whatever comes in, it never dies: what is not a message of this engine's epoch is dropped and
counted.
"""

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import zmq

from engine.config import ClientEndpoint, EngineConfig
from engine.core.mail import Received, received_half
from engine.core.records import RecordBuffer
from engine.wire.addresses import engine_identity
from engine.wire.codec import ENGINE_CODEC, UndecodableError
from engine.wire.messages import AbortRequests, AddRequest, UtilityCall
from engine.wire.sockets import Incoming, MessageCounts, connect_dealer, receive_frames, split

logger = logging.getLogger(__name__)

BURST = 64
"""Messages taken from one client before the others get their turn."""


class InputThread(threading.Thread):
    """Owns the DEALER sockets, one per client.

    Args:
        context: ZeroMQ context.
        config: Clients and epoch.
        records: Gets the hops of fenced messages; those of others are recorded by the loop.
        deliver: Takes a message to the loop; never blocks.
        note: Writes kind and text of an event into the flight recorder.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        config: EngineConfig,
        records: RecordBuffer,
        deliver: Callable[[Received], None],
        note: Callable[[str, str], None],
    ) -> None:
        super().__init__(name="input", daemon=True)
        self.counts = MessageCounts()
        self._context = context
        self._config = config
        self._records = records
        self._deliver = deliver
        self._note = note
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC)
        self._stopping = False
        self._clients: dict[Any, int] = {}
        """Index of the client behind each socket."""

    def stop(self) -> None:
        """End soon."""
        self._stopping = True
        os.eventfd_write(self._wakeup, 1)

    def run(self) -> None:
        """Receive until stopped. A failing socket ends the thread, and the loop sees that."""
        try:
            self._serve()
        except Exception:
            logger.exception("the input thread died")
        finally:
            for socket in self._clients:
                socket.close()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wakeup, zmq.POLLIN)
        identity = engine_identity(self._config.engine_id, self._config.epoch)
        for index, client in enumerate(self._config.clients):
            socket = connect_dealer(self._context, client.input, identity)
            self._clients[socket] = index
            poller.register(socket, zmq.POLLIN)
        while not self._stopping:
            for socket, _ in poller.poll():
                if socket in self._clients:
                    self._receive(socket, self._clients[socket])

    def _receive(self, socket: "zmq.Socket[bytes]", client: int) -> None:
        for _ in range(BURST):
            try:
                frames = receive_frames(socket)
            except zmq.Again:
                return
            try:
                self._take(split(frames, ENGINE_CODEC), client)
            except UndecodableError as error:
                self._drop(client, str(error))
            except Exception:
                logger.exception("a message could not be taken")
                self._drop(client, "unexpected error")

    def _take(self, incoming: Incoming, client: int) -> None:
        endpoint = self._config.clients[client]
        body, header = incoming.body, incoming.header
        if not isinstance(body, AddRequest | AbortRequests | UtilityCall):
            raise UndecodableError(f"{type(body).__name__} is no message to an engine")
        if header.sender != endpoint.name:
            raise UndecodableError(f"sent as {header.sender[:64]!r} through {endpoint.name}")
        self.counts.received[type(body).__name__] += 1
        received = Received(client, header, body, incoming.received_ns)
        if header.engine_epoch == self._config.epoch:
            self._deliver(received)
        else:
            self._fence(received)

    def _fence(self, received: Received) -> None:
        self.counts.fenced += 1
        self._note("fenced", f"{type(received.body).__name__} for another epoch")
        at_ns = received.received_ns
        name = self._config.engine_id
        self._records.add(received_half(received, name, at_ns, at_ns, "fenced"))

    def _drop(self, client: int, why: str) -> None:
        self.counts.undecodable += 1
        if self.counts.undecodable.bit_count() == 1:  # 1, 2, 4, ...: a flood does not fill the log
            endpoint: ClientEndpoint = self._config.clients[client]
            logger.warning(
                "dropped %d undecodable messages, last from %s: %s",
                self.counts.undecodable,
                endpoint.name,
                why,
            )
