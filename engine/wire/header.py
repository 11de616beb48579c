"""The header that every message carries: who sent it, in which epoch, in whose trace, when.

The header *is* the hop: its span id is the id of the sender's send span. No message body has a
trace field, and no logic reads one.
"""

import os
import random
import re

import msgspec

PROTOCOL_VERSION = 1
SAMPLED = 0x01

_random = random.Random()  # noqa: S311 - ids, no secrets: a call into the kernel for each costs more
os.register_at_fork(after_in_child=_random.seed)
_TRACEPARENT = re.compile(r"^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$")


class TraceContext(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A position in a trace: what new spans take as their parent.

    Source: W3C Trace Context, https://www.w3.org/TR/trace-context/
    """

    trace_id: str
    """32 lower-case hex digits, never all zero."""
    span_id: str
    """16 lower-case hex digits, never all zero."""
    flags: int = 0
    """Bit 0: sampled upstream."""


class Header(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """First msgpack frame of every message. Append-only: new fields go to the end."""

    version: int
    engine_epoch: int
    """Epoch of the engine at either end; 0 on links that have no engine. Others are fenced."""
    sender: str
    """`supervisor`, `gateway-0`, `e0`, ..."""
    sender_epoch: int
    """Epoch of the sending process; equals `engine_epoch` when an engine sends."""
    sequence: int
    """Grows by one per message of this sender and epoch: (sender, sender_epoch, sequence) is the
    key by which the hub joins both halves of a hop."""
    trace_id: str
    span_id: str
    """Id of the send span; the sender makes it."""
    flags: int
    sent_ns: int
    """`engine.clock.now_ns()` just before the socket took the message."""

    @property
    def context(self) -> TraceContext:
        """The context that the receiver's spans are children of."""
        return TraceContext(self.trace_id, self.span_id, self.flags)


def new_trace_id() -> str:
    """Return 128 random bits as 32 hex digits."""
    return f"{_random.getrandbits(128) or 1:032x}"


def new_span_id() -> str:
    """Return 64 random bits as 16 hex digits."""
    return f"{_random.getrandbits(64) or 1:016x}"


def new_context(flags: int = 0) -> TraceContext:
    """Start a trace: a context whose span id is that of the future root span."""
    return TraceContext(new_trace_id(), new_span_id(), flags)


def child_context(parent: TraceContext) -> TraceContext:
    """Return the context of a new child span of `parent`."""
    return TraceContext(parent.trace_id, new_span_id(), parent.flags)


def parse_traceparent(value: str | None) -> TraceContext | None:
    """Read a W3C `traceparent` header; None when it is absent or malformed."""
    match = _TRACEPARENT.match(value.strip()) if value else None
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if (
        version == "ff"
        or (version == "00" and rest)
        or not int(trace_id, 16)
        or not int(span_id, 16)
    ):
        return None
    return TraceContext(trace_id, span_id, int(flags, 16))


def format_traceparent(context: TraceContext) -> str:
    """Write a context as a W3C `traceparent` header."""
    return f"00-{context.trace_id}-{context.span_id}-{context.flags & 0xFF:02x}"
