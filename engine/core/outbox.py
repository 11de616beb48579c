"""What waits for one client, and how it is sent: without blocking, or not at all."""

from collections import deque
from collections.abc import Iterable
from typing import Any

import zmq
from msgspec.structs import replace

from engine.core.endings import CLIENT_CUT_OFF
from engine.core.mail import Outgoing
from engine.core.records import RecordBuffer
from engine.wire.codec import ENGINE_CODEC
from engine.wire.header import Header
from engine.wire.hops import HopLink, HopSent
from engine.wire.messages import (
    EngineOutputs,
    EngineProgress,
    EngineRecords,
    EngineStats,
    Heartbeat,
    RequestOutput,
)
from engine.wire.sockets import HeaderMaker, MessageCounts, send_frames

ONLY_COUNTED = (EngineRecords, Heartbeat, EngineStats, EngineProgress)
"""Messages that get no hop record: records of records would never end."""


class Outbox:
    """Messages for one client, in order, at most `limit`.

    A client that lets it overflow is cut off, and `push` says so once: tokens and reports that wait
    are thrown away, but not the ends of requests and calls, so that nobody waits for ever if the
    client comes back. Until it has read all, what does not fit any more is dropped silently.

    Args:
        name: Name of the client.
        socket: PUSH to it; only the owner of the outbox touches it.
        limit: Most messages that wait.
    """

    def __init__(self, name: str, socket: "zmq.Socket[Any]", limit: int) -> None:
        self.name = name
        self.socket = socket
        self._limit = limit
        self._waiting: deque[Outgoing] = deque()
        self._cut_off = False

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, outgoing: Outgoing) -> bool:
        """Let a message wait; false when that cut the client off."""
        if len(self._waiting) < self._limit:
            self._waiting.append(outgoing)
            return True
        if self._cut_off:
            return True
        self._cut_off = True
        self._waiting = deque(_essence(self._waiting)[: self._limit // 2])
        return False

    def send_now(self, outgoing: Outgoing, sender: "Sender") -> bool:
        """Send a message if nothing waits and the socket takes it."""
        return not self._waiting and sender.send(self.socket, self.name, outgoing)

    def flush(self, sender: "Sender") -> None:
        """Send what the socket takes now."""
        while self._waiting and int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT:
            if not sender.send(self.socket, self.name, self._waiting[0]):
                return
            self._waiting.popleft()
        if not self._waiting:
            self._cut_off = False


def _essence(waiting: Iterable[Outgoing]) -> list[Outgoing]:
    """Return what a client that was cut off must still learn."""
    essence: list[Outgoing] = []
    ends: list[tuple[RequestOutput, HopLink]] = []
    last: Outgoing | None = None
    for outgoing in waiting:
        if isinstance(outgoing.body, EngineOutputs):
            last = outgoing
            outputs = zip(outgoing.body.outputs, outgoing.links, strict=True)
            ends += [(_cut_short(end), link) for end, link in outputs if end.finish_reason]
        elif not isinstance(outgoing.body, ONLY_COUNTED):
            essence.append(outgoing)
    if last is not None and ends:
        assert isinstance(last.body, EngineOutputs), "chosen above"
        body = EngineOutputs(step=last.body.step, outputs=tuple(end for end, _ in ends))
        essence.append(replace(last, body=body, links=tuple(link for _, link in ends)))
    return essence


def _cut_short(end: RequestOutput) -> RequestOutput:
    """Return the end of a request whose tokens were thrown away."""
    return RequestOutput(
        request_id=end.request_id,
        finish_reason=CLIENT_CUT_OFF.reason,
        error=CLIENT_CUT_OFF.error,
        timeline=end.timeline,
    )


class Sender:
    """Puts headers on messages, counts what the sockets took, and records the hops.

    Args:
        headers: Of this engine.
        counts: `sent` is kept here.
        records: Gets the sender's half of each hop that has one.
    """

    def __init__(self, headers: HeaderMaker, counts: MessageCounts, records: RecordBuffer) -> None:
        self._headers = headers
        self._counts = counts
        self._records = records

    def send(self, socket: "zmq.Socket[Any]", destination: str, outgoing: Outgoing) -> bool:
        """Send a message; false when the socket takes nothing now."""
        header = self._headers.make(outgoing.context, self._headers.sender_epoch)
        frames = ENGINE_CODEC.encode(header, outgoing.body)
        try:
            send_frames(socket, frames)
        except zmq.Again:
            return False
        self._counts.sent[type(outgoing.body).__name__] += 1
        if self._records.enabled and not isinstance(outgoing.body, ONLY_COUNTED):
            size_bytes = sum(map(len, frames))
            self._records.add(_sent_half(outgoing, header, destination, size_bytes))
        return True


def _sent_half(outgoing: Outgoing, header: Header, destination: str, size_bytes: int) -> HopSent:
    return HopSent(
        sender=header.sender,
        sender_epoch=header.sender_epoch,
        sequence=header.sequence,
        message=type(outgoing.body).__name__,
        destination=destination,
        trace_id=header.trace_id,
        span_id=header.span_id,
        parent_id=outgoing.parent_id,
        flags=header.flags,
        start_ns=outgoing.start_ns,
        sent_ns=header.sent_ns,
        size_bytes=size_bytes,
        links=outgoing.links,
        call=outgoing.call,
    )
