"""The gateway's end of the control link: takes the fleet's state, sends what happened here.

Its socket never blocks the loop: what it does not take is counted, and records are lost, not
requests.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import zmq

from appliance.control_link.messages import (
    TYPE_BYTES,
    AbortHeld,
    FleetState,
    FromGateway,
    GatewayHello,
    Shutdown,
    StateAck,
    ToGateway,
)
from engine.client.resources import BackgroundResources
from engine.client.socket_reader import SocketReader
from engine.wire.addresses import control_address, engine_identity
from engine.wire.codec import Codec, UndecodableError
from engine.wire.header import new_context
from engine.wire.messages import Body
from engine.wire.sockets import (
    HeaderMaker,
    Incoming,
    MessageCounts,
    connect_dealer,
    send_frames,
    split,
)

logger = logging.getLogger(__name__)

SUPERVISOR: Final = "supervisor"
LAST_WORDS_LINGER_MS: Final = 2000
CONTROL_CODEC = Codec(TYPE_BYTES)

OnLinkMessage = Callable[[ToGateway], None]
"""Called with every message; a `FleetState` is acknowledged when the call returns."""


class GatewayLink:
    """A DEALER that is connected to the supervisor's ROUTER; belongs to one event loop.

    Args:
        name: `gateway-0`, ...
        epoch: Epoch of this process.
        run_dir: Directory of the ipc sockets.
        on_message: Gets what the supervisor says.
    """

    def __init__(self, name: str, epoch: int, run_dir: Path, *, on_message: OnLinkMessage) -> None:
        self.counts = MessageCounts()
        self.sequence = 0
        """Of the state that the gateway works from."""
        self._is_full = False
        self._is_introduced = False
        """It has said hello: nothing may go out before."""
        self._on_message = on_message
        self._headers = HeaderMaker(name, epoch)
        self._resources: BackgroundResources[zmq.Socket[bytes]] = BackgroundResources(zmq.Context())
        self._dealer = self._resources.own(
            connect_dealer(
                self._resources.context, control_address(run_dir), engine_identity(name, epoch)
            )
        )
        self._reader = SocketReader(self._dealer, self._receive)

    async def run(self, hello: GatewayHello) -> None:
        """Say hello, then receive until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reader.run())
            tasks.create_task(self._say_hello(hello))

    async def _say_hello(self, hello: GatewayHello) -> None:
        while not self._put(hello):
            await self._reader.writable()
        self._is_introduced = True

    def send(self, body: FromGateway) -> bool:
        """Send without blocking; false when the socket did not take it."""
        if self._is_introduced and self._put(body):
            self._is_full = False
            return True
        if not self._is_full:
            logger.warning("the control link takes nothing: first a %s", type(body).__name__)
        self._is_full = True
        return False

    def _put(self, body: FromGateway) -> bool:
        try:
            send_frames(self._dealer, self._encode(body))
        except zmq.Again:
            return False
        finally:
            self._reader.look_again()
        self.counts.sent[type(body).__name__] += 1
        return True

    def close(self) -> None:
        """Close the socket once its last messages are out, or after a while."""
        self._dealer.close(linger=LAST_WORDS_LINGER_MS)
        self._resources.context.term()

    def _receive(self, frames: list[bytes]) -> None:
        try:
            incoming = split(frames, CONTROL_CODEC)
        except UndecodableError as error:
            self.counts.undecodable += 1
            logger.warning("dropped frames that are not a message: %s", error)
            return
        self._take(incoming)

    def _encode(self, body: Body) -> list[bytes]:
        return CONTROL_CODEC.encode(self._headers.make(new_context(), 0), body)

    def _take(self, incoming: Incoming) -> None:
        body = incoming.body
        self.counts.received[type(body).__name__] += 1
        match body:
            case FleetState(sequence=sequence):
                if sequence > self.sequence:
                    self._on_message(body)
                    self.sequence = sequence
                self.send(StateAck(sequence=self.sequence))
            case AbortHeld() | Shutdown():
                self._on_message(body)
            case _:
                self.counts.unknown += 1
