"""The two halves of a hop and the record of a step, as the processes report them to the hub.

Plain structs of facts: which span they become is the hub's business.
"""

from typing import Literal

import msgspec

from engine.wire.header import TraceContext


class HopLink(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request that a message carries something for."""

    request_id: str
    context: TraceContext


class HopSent(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="s"):
    """The sender's half."""

    sender: str
    sender_epoch: int
    sequence: int
    message: str
    """Type name, for example `AddRequest`."""
    destination: str
    trace_id: str
    span_id: str
    parent_id: str | None
    flags: int
    start_ns: int
    """When the sender's logic handed the message over."""
    sent_ns: int
    size_bytes: int
    links: tuple[HopLink, ...] = ()
    call: str | None = None
    """Name of the utility call (`Sleep`, ...), for calls and replies."""
    error: str | None = None
    """Set when the socket refused the message."""


class HopReceived(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="r"):
    """The receiver's half; (sender, sender_epoch, sequence) names the message."""

    sender: str
    sender_epoch: int
    sequence: int
    message: str
    receiver: str
    received_ns: int
    """The socket gave it."""
    dequeued_ns: int
    """The logic took it from the queue."""
    done_ns: int
    """The logic was done with it."""
    sent_ns: int
    """From the header: the hop histogram needs no join."""
    outcome: Literal["ok", "fenced", "undecodable", "unknown"] = "ok"


HopRecord = HopSent | HopReceived


class StepRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One scheduler step of an engine."""

    engine_id: str
    epoch: int
    step: int
    trace_id: str
    span_id: str
    start_ns: int
    scheduled_ns: int
    """Scheduling ended, the forward pass began."""
    executed_ns: int
    """The forward pass and sampling ended."""
    end_ns: int
    prefill_tokens: int
    decode_tokens: int
    requests: int
    used_blocks: int
    preempted: int
    built_ns: int = 0
    """The batch was packed; 0 where the runner does not say. Building began at `scheduled_ns`."""
    forwarded_ns: int = 0
    """The forward pass ended and sampling began; `executed_ns` ends it."""
    updated_ns: int = 0
    """The scheduler had taken the result; encoding and handing over to the output thread follow."""
    rows: int = 0
    """Rows that were computed, padding included."""
    waiting: int = 0
    """Requests that held no KV blocks when it ended."""
    cached_tokens: int = 0
    """Prompt tokens that newcomers of this step found in the prefix cache."""
    links: tuple[HopLink, ...] = ()
    """Requests of the batch that got no output from it; those that did are linked by the step's
    `EngineOutputs`."""
