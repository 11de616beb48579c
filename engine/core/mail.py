"""What passes between the engine's threads, and what its loop needs of the process around it."""

from dataclasses import dataclass
from typing import Literal, Protocol

from msgspec import Struct

from engine.core.batch import Progress
from engine.wire.header import Header, TraceContext, child_context
from engine.wire.hops import HopLink, HopReceived, HopRecord, StepRecord
from engine.wire.messages import FromEngine, ToEngine


class Received(Struct, frozen=True):
    """A message of a client, from the input thread to the loop."""

    client: int
    """Index of the client whose socket gave it."""
    header: Header
    body: ToEngine
    received_ns: int


@dataclass(slots=True, frozen=True)
class CutOff:
    """A client does not read: the output thread gave it up."""

    client: int


@dataclass(slots=True, frozen=True)
class StopRequested:
    """A signal asks the loop to end."""


@dataclass(slots=True, frozen=True)
class WakeUp:
    """Something that was prepared in the background is there: look again."""


Mail = Received | CutOff | StopRequested | WakeUp
Outcome = Literal["ok", "fenced", "undecodable", "unknown"]


class Outgoing(Struct, frozen=True, gc=False):
    """A message for a client, from the loop to the socket."""

    client: int
    body: FromEngine
    context: TraceContext
    """Of the send span."""
    parent_id: str | None
    start_ns: int
    links: tuple[HopLink, ...] = ()
    call: str | None = None
    """Name of the utility call that this answers."""


class StepStamps(Struct, frozen=True, gc=False):
    """When the parts of a step ended that are not the scheduler's business."""

    scheduled_ns: int
    updated_ns: int
    end_ns: int


class Shell(Protocol):
    """What the loop's logic needs of the process around it."""

    progress: Progress

    @property
    def recording(self) -> bool:
        """Whether hops and steps are recorded."""
        ...

    def set_recording(self, *, recording: bool) -> None:
        """Record from now on, or stop doing so."""
        ...

    def post(self, outgoing: Outgoing) -> None:
        """Send a message; never blocks."""
        ...

    def record(self, record: HopRecord | StepRecord) -> None:
        """Keep a record for the supervisor; never blocks."""
        ...

    def beat(self, phase: str) -> None:
        """Send a heartbeat now: something long begins."""
        ...

    def wake(self) -> None:
        """Make the loop look again; any thread may call it."""
        ...


def under(
    parent: TraceContext,
    client: int,
    body: FromEngine,
    now_ns: int,
    *,
    links: tuple[HopLink, ...] = (),
    call: str | None = None,
) -> Outgoing:
    """Return a message whose send span is a child of `parent`."""
    context = child_context(parent)
    return Outgoing(client, body, context, parent.span_id, now_ns, links, call)


def received_half(
    received: Received,
    receiver: str,
    dequeued_ns: int,
    done_ns: int,
    outcome: Outcome = "ok",
) -> HopReceived:
    """Return the receiver's half of a hop."""
    header = received.header
    return HopReceived(
        sender=header.sender,
        sender_epoch=header.sender_epoch,
        sequence=header.sequence,
        message=type(received.body).__name__,
        receiver=receiver,
        received_ns=received.received_ns,
        dequeued_ns=dequeued_ns,
        done_ns=done_ns,
        sent_ns=header.sent_ns,
        outcome=outcome,
    )
