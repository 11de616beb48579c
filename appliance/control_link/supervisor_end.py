"""The supervisor's end of the control link: one ROUTER, any number of gateways.

The fleet's state is published as a whole with a sequence number and sent again until a gateway
says that it works from it. Messages of an epoch that is not expected are dropped and counted.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
import zmq

from appliance.control_link.messages import (
    TYPE_BYTES,
    AbortHeld,
    AbortResult,
    FleetState,
    GatewayHello,
    Shutdown,
    StateAck,
)
from engine.client.resources import BackgroundResources
from engine.client.socket_reader import SocketReader
from engine.clock import now_ns
from engine.wire.addresses import control_address, engine_identity, parse_identity
from engine.wire.codec import Codec, UndecodableError
from engine.wire.header import child_context, new_context
from engine.wire.hops import HopReceived, HopRecord, HopSent
from engine.wire.messages import Body
from engine.wire.sockets import (
    HeaderMaker,
    Incoming,
    MessageCounts,
    bind_router,
    is_probe,
    send_frames,
    split,
)

logger = logging.getLogger(__name__)

SENDER = "supervisor"
RESEND_S = 1.0
CONTROL_CODEC = Codec(TYPE_BYTES)

OnGatewayMessage = Callable[[str, int, Body], None]
"""Called with (gateway name, epoch, message) for everything but acknowledgements and results."""


@dataclass(slots=True)
class _Peer:
    """One expected gateway epoch."""

    epoch: int
    is_connected: bool = False
    acked: int = 0
    unacked_since_ns: int | None = None
    calls: dict[str, asyncio.Future[AbortResult | None]] = field(
        default_factory=dict[str, "asyncio.Future[AbortResult | None]"]
    )


class SupervisorLink:
    """Talks to the gateways; belongs to one event loop.

    Args:
        run_dir: Directory of the ipc sockets.
        epoch: Epoch of the supervisor's process.
        on_message: Gets what gateways say.
        on_hop: Gets this end's half of every hop.
    """

    def __init__(
        self,
        run_dir: Path,
        epoch: int,
        *,
        on_message: OnGatewayMessage,
        on_hop: Callable[[HopRecord], None],
    ) -> None:
        self.counts = MessageCounts()
        self._on_message = on_message
        self._on_hop = on_hop
        self._headers = HeaderMaker(SENDER, epoch)
        self._peers: dict[str, _Peer] = {}
        self._state: FleetState | None = None
        self._ack_came = asyncio.Event()
        self._resources: BackgroundResources[zmq.Socket[bytes]] = BackgroundResources(zmq.Context())
        self._router = self._resources.own(
            bind_router(self._resources.context, control_address(run_dir))
        )
        self._reader = SocketReader(self._router, self._receive)

    async def run(self) -> None:
        """Receive, and send states again, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reader.run())
            tasks.create_task(self._send_again())

    def close(self) -> None:
        """Close the socket."""
        self._resources()

    # ------------------------------------------------------------ gateways

    def expect(self, name: str, epoch: int) -> None:
        """Accept only this epoch of this gateway from now on."""
        self.forget(name)
        self._peers[name] = _Peer(epoch)

    def forget(self, name: str) -> None:
        """The gateway's process is gone: nothing it was asked will be answered."""
        peer = self._peers.pop(name, None)
        self._ack_came.set()
        for answer in peer.calls.values() if peer else ():
            if not answer.done():
                answer.set_result(None)

    def unacked_s(self, name: str) -> float:
        """How long a gateway has owed the acknowledgement of a state; 0 if it does not."""
        peer = self._peers.get(name)
        if peer is None or peer.unacked_since_ns is None:
            return 0.0
        return (now_ns() - peer.unacked_since_ns) / 1e9

    def acked(self, name: str) -> int:
        """Return the sequence number of the state that a gateway works from, 0 for none."""
        peer = self._peers.get(name)
        return peer.acked if peer else 0

    async def await_acks(self, timeout_s: float) -> bool:
        """Wait until every connected gateway works from the newest state; false after the time."""
        try:
            async with asyncio.timeout(timeout_s):
                while any(self._owes_ack(peer) for peer in self._peers.values()):
                    self._ack_came.clear()
                    await self._ack_came.wait()
        except TimeoutError:
            return False
        return True

    def _owes_ack(self, peer: _Peer) -> bool:
        newest = self._state.sequence if self._state else 0
        return peer.is_connected and peer.acked < newest

    # ------------------------------------------------------------ downward

    def publish(self, state: FleetState) -> int:
        """Make this the state that all gateways work from; return its sequence number."""
        sequence = self._state.sequence + 1 if self._state else 1
        self._state = msgspec.structs.replace(state, sequence=sequence)
        for name, peer in self._peers.items():
            self._send_state(name, peer)
        return sequence

    def shutdown(self, drain_s: float) -> None:
        """Ask all gateways to finish what runs and exit."""
        for name, peer in self._peers.items():
            if peer.is_connected:
                self._send(name, peer, Shutdown(drain_s=drain_s))

    async def abort(self, request_id: str, reason: str, timeout_s: float) -> AbortResult | None:
        """End a request wherever it is; None when no gateway holds it."""
        call_id = uuid.uuid4().hex
        body = AbortHeld(call_id=call_id, request_id=request_id, reason=reason)
        answers = [self._ask(name, peer, body) for name, peer in self._peers.items()]
        try:
            async with asyncio.timeout(timeout_s):
                for answer in asyncio.as_completed(answers):
                    result = await answer
                    if result is not None and result.found:
                        return result
        except TimeoutError:
            logger.warning("a gateway did not answer the abort of %s", request_id)
        finally:
            for peer in self._peers.values():
                peer.calls.pop(call_id, None)
        return None

    def _ask(self, name: str, peer: _Peer, body: AbortHeld) -> "asyncio.Future[AbortResult | None]":
        answer: asyncio.Future[AbortResult | None] = asyncio.get_running_loop().create_future()
        if peer.is_connected and self._send(name, peer, body):
            peer.calls[body.call_id] = answer
        else:
            answer.set_result(None)
        return answer

    def _send_state(self, name: str, peer: _Peer) -> None:
        if self._state is None or not peer.is_connected:
            return
        if peer.unacked_since_ns is None:
            peer.unacked_since_ns = now_ns()
        self._send(name, peer, self._state)

    async def _send_again(self) -> None:
        while True:
            await asyncio.sleep(RESEND_S)
            for name, peer in self._peers.items():
                if self._state is not None and peer.acked < self._state.sequence:
                    self._send_state(name, peer)

    def _send(self, name: str, peer: _Peer, body: Body) -> bool:
        """Send one message and report its half of the hop; false when the socket refused it."""
        start_ns = now_ns()
        parent = new_context()
        context = child_context(parent)
        header = self._headers.make(context, 0)
        frames = CONTROL_CODEC.encode(header, body)
        error = self._send_frames(engine_identity(name, peer.epoch), frames)
        if error is None:
            self.counts.sent[type(body).__name__] += 1
        self._on_hop(
            HopSent(
                sender=SENDER,
                sender_epoch=header.sender_epoch,
                sequence=header.sequence,
                message=type(body).__name__,
                destination=name,
                trace_id=context.trace_id,
                span_id=context.span_id,
                parent_id=None,
                flags=0,
                start_ns=start_ns,
                sent_ns=header.sent_ns,
                size_bytes=sum(map(len, frames)),
                error=error,
            )
        )
        return error is None

    def _send_frames(self, identity: bytes, frames: list[bytes]) -> str | None:
        try:
            send_frames(self._router, [identity, *frames])
        except zmq.Again:
            return "its queue is full"
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return "no route"
        finally:
            self._reader.look_again()
        return None

    # ------------------------------------------------------------ upward

    def _receive(self, frames: list[bytes]) -> None:
        if is_probe(frames):
            return
        try:
            incoming = split(frames, CONTROL_CODEC, identified=True)
        except UndecodableError as error:
            self.counts.undecodable += 1
            logger.warning("dropped frames that are not a message: %s", error)
            return
        self._take(incoming)

    def _take(self, incoming: Incoming) -> None:
        self.counts.received[type(incoming.body).__name__] += 1
        dequeued_ns = now_ns()
        sender = self._sender_of(incoming)
        if sender is None:
            self.counts.fenced += 1
            self._report(incoming, dequeued_ns, "fenced")
            return
        name, peer = sender
        try:
            self._dispatch(name, peer, incoming.body)
        except Exception:
            logger.exception("handling %s of %s failed", type(incoming.body).__name__, name)
        self._report(incoming, dequeued_ns, "ok")

    def _sender_of(self, incoming: Incoming) -> tuple[str, _Peer] | None:
        try:
            name, epoch = parse_identity(incoming.identity or b"")
        except ValueError:
            return None
        peer = self._peers.get(name)
        if peer is None or peer.epoch != epoch or incoming.header.sender_epoch != epoch:
            return None
        return name, peer

    def _dispatch(self, name: str, peer: _Peer, body: Body) -> None:
        match body:
            case StateAck(sequence=sequence):
                peer.acked = max(peer.acked, sequence)
                self._ack_came.set()
                if self._state is None or peer.acked >= self._state.sequence:
                    peer.unacked_since_ns = None
            case AbortResult(call_id=call_id):
                answer = peer.calls.pop(call_id, None)
                if answer is None:
                    self.counts.unknown += 1
                elif not answer.done():
                    answer.set_result(body)
            case GatewayHello():
                peer.is_connected = True
                self._send_state(name, peer)
                self._on_message(name, peer.epoch, body)
            case _:
                self._on_message(name, peer.epoch, body)

    def _report(
        self, incoming: Incoming, dequeued_ns: int, outcome: Literal["ok", "fenced"]
    ) -> None:
        header = incoming.header
        self._on_hop(
            HopReceived(
                sender=header.sender,
                sender_epoch=header.sender_epoch,
                sequence=header.sequence,
                message=type(incoming.body).__name__,
                receiver=SENDER,
                received_ns=incoming.received_ns,
                dequeued_ns=dequeued_ns,
                done_ns=now_ns(),
                sent_ns=header.sent_ns,
                outcome=outcome,
            )
        )
