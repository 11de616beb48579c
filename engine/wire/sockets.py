"""ZeroMQ sockets with the house's options, and messages in and out of them.

One socket belongs to one thread, or to whoever holds its lock. Sends never block: a full queue or a
missing peer raises.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import zmq

from engine.clock import now_ns
from engine.wire.codec import Codec, UndecodableError
from engine.wire.header import PROTOCOL_VERSION, Header, TraceContext
from engine.wire.messages import Body

SocketT = TypeVar("SocketT", bound="zmq.Socket[Any]")
"""A plain socket, or an asyncio one."""

HIGH_WATER_MARK = 4096
MAX_MESSAGE_BYTES = 64 << 20
ENGINE_LINGER_MS = 4000
RECONNECT_MS = 20
RECONNECT_MAX_MS = 250
NUM_FRAMES = 3
"""Type byte, header, body."""
_NOBLOCK = int(zmq.NOBLOCK)
_NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)


@dataclass(slots=True)
class MessageCounts:
    """What one process's sockets took and gave, by message type name."""

    sent: Counter[str] = field(default_factory=lambda: Counter())
    received: Counter[str] = field(default_factory=lambda: Counter())
    fenced: int = 0
    undecodable: int = 0
    unknown: int = 0
    """Messages for a request or call that nobody waits for any more."""


@dataclass(slots=True, frozen=True)
class Incoming:
    """A decoded message."""

    header: Header
    body: Body
    received_ns: int
    size_bytes: int
    identity: bytes | None = None
    """Of the peer, on a ROUTER."""


class HeaderMaker:
    """Makes the headers of one sender: its name, epoch and running sequence number."""

    def __init__(self, sender: str, sender_epoch: int) -> None:
        self.sender = sender
        self.sender_epoch = sender_epoch
        self._sequence = itertools.count(1)

    def make(self, context: TraceContext, engine_epoch: int) -> Header:
        """Return the header of the next message, stamped now; `context` is its send span's."""
        return Header(
            version=PROTOCOL_VERSION,
            engine_epoch=engine_epoch,
            sender=self.sender,
            sender_epoch=self.sender_epoch,
            sequence=next(self._sequence),
            trace_id=context.trace_id,
            span_id=context.span_id,
            flags=context.flags,
            sent_ns=now_ns(),
        )


def bind_router(context: "zmq.Context[SocketT]", address: str) -> SocketT:
    """Bind a ROUTER that refuses to send to peers it does not know."""
    socket = _socket(context, zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.bind(address)
    return socket


def bind_pull(context: "zmq.Context[SocketT]", address: str) -> SocketT:
    """Bind a PULL."""
    socket = _socket(context, zmq.PULL)
    socket.bind(address)
    return socket


def connect_dealer(context: "zmq.Context[SocketT]", address: str, identity: bytes) -> SocketT:
    """Connect a DEALER; at each connection the ROUTER gets an empty first message from it."""
    socket = _socket(context, zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, identity)
    socket.setsockopt(zmq.PROBE_ROUTER, 1)
    _reconnect_fast(socket)
    socket.connect(address)
    return socket


def connect_push(
    context: "zmq.Context[SocketT]", address: str, linger_ms: int = ENGINE_LINGER_MS
) -> SocketT:
    """Connect a PUSH that lingers, so that last tokens and `EngineDead` still arrive."""
    socket = _socket(context, zmq.PUSH)
    socket.setsockopt(zmq.LINGER, linger_ms)
    _reconnect_fast(socket)
    socket.connect(address)
    return socket


def _socket(context: "zmq.Context[SocketT]", kind: int) -> SocketT:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    return socket


def _reconnect_fast(socket: "zmq.Socket[Any]") -> None:
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)


def send_frames(socket: "zmq.Socket[Any]", frames: Sequence[bytes]) -> None:
    """Send a message without blocking, as `send_multipart` does in three times the time.

    Raises:
        zmq.Again: the socket takes nothing now.
    """
    for frame in frames[:-1]:
        socket.send(frame, _NOBLOCK_MORE)
    socket.send(frames[-1], _NOBLOCK)


def receive_frames(socket: "zmq.Socket[bytes]") -> list[bytes]:
    """Take a message without blocking, as `recv_multipart` does in twice the time.

    Raises:
        zmq.Again: there is none.
    """
    frame = socket.recv(_NOBLOCK, copy=False)
    frames = [frame.bytes]
    while frame.more:
        frame = socket.recv(_NOBLOCK, copy=False)
        frames.append(frame.bytes)
    return frames


def is_probe(frames: Sequence[bytes]) -> bool:
    """Whether these frames (identity included) are the empty first message of a DEALER."""
    return len(frames) == 2 and not frames[1]  # noqa: PLR2004


def split(frames: Sequence[bytes], codec: Codec, *, identified: bool = False) -> Incoming:
    """Decode received frames; `identified` when the first one is a ROUTER's peer identity.

    Raises:
        UndecodableError: not a message.
    """
    received_ns = now_ns()
    identity = frames[0] if identified and frames else None
    rest = frames[1:] if identified else frames
    if len(rest) < NUM_FRAMES:
        raise UndecodableError(f"{len(rest)} frames, expected at least {NUM_FRAMES}")
    header = codec.decode_header(rest[1])
    if header.version != PROTOCOL_VERSION:
        raise UndecodableError(f"protocol version {header.version}, expected {PROTOCOL_VERSION}")
    body = codec.decode_body(rest[0], rest[2])
    return Incoming(header, body, received_ns, sum(map(len, rest)), identity)
