"""A client's halves of the hops: what it sent, and what it received."""

from typing import Literal

from engine.clock import now_ns
from engine.wire.header import Header, TraceContext
from engine.wire.hops import HopLink, HopReceived, HopSent
from engine.wire.sockets import Incoming

ReceivedOutcome = Literal["ok", "fenced", "undecodable", "unknown"]


def sent_half(  # noqa: PLR0913 (one argument for each fact of the record)
    header: Header,
    message: str,
    destination: str,
    parent: TraceContext,
    *,
    start_ns: int,
    size_bytes: int,
    links: tuple[HopLink, ...] = (),
    call: str | None = None,
    error: str | None = None,
) -> HopSent:
    """Return the sender's half of a hop."""
    return HopSent(
        sender=header.sender,
        sender_epoch=header.sender_epoch,
        sequence=header.sequence,
        message=message,
        destination=destination,
        trace_id=header.trace_id,
        span_id=header.span_id,
        parent_id=parent.span_id,
        flags=header.flags,
        start_ns=start_ns,
        sent_ns=header.sent_ns,
        size_bytes=size_bytes,
        links=links,
        call=call,
        error=error,
    )


def received_half(
    incoming: Incoming, receiver: str, dequeued_ns: int, outcome: ReceivedOutcome
) -> HopReceived:
    """Return the receiver's half of a hop, which is done now."""
    header = incoming.header
    return HopReceived(
        sender=header.sender,
        sender_epoch=header.sender_epoch,
        sequence=header.sequence,
        message=type(incoming.body).__name__,
        receiver=receiver,
        received_ns=incoming.received_ns,
        dequeued_ns=dequeued_ns,
        done_ns=now_ns(),
        sent_ns=header.sent_ns,
        outcome=outcome,
    )
