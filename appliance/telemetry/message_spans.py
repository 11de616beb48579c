"""Builds the send and process spans of a message, and the span of an engine's step.

Messaging conventions: the send span is the one whose context the header carries (PRODUCER), the
process span (CONSUMER) is its child, as each message is processed alone.
"""

from collections.abc import Sequence

from appliance.telemetry import names
from appliance.telemetry.hop_join import Hop
from appliance.telemetry.span_data import Attributes, AttributeValue, SpanData, present
from appliance.telemetry.span_ids import derived_span_id, derived_trace_id
from engine.wire.hops import HopLink, HopReceived, HopSent, StepRecord

MAX_LINKS = 128
"""Of one span, as in OpenTelemetry's SDKs; what is cut is told in an attribute."""


def message_spans(hop: Hop) -> list[SpanData]:
    """Build what is known of a hop: its send span, its process span, or both, in this order."""
    spans: list[SpanData] = []
    if hop.sent is not None:
        spans.append(_send(hop, hop.sent))
    if hop.received is not None:
        spans.append(_process(hop.sent, hop.received))
    return spans


def step_span(step: StepRecord, links: Sequence[HopLink] = ()) -> SpanData:
    """Build the span of a step: the root of its own trace, linked to the requests it served."""
    attributes: Attributes = {
        names.ENGINE_ID: step.engine_id,
        names.ENGINE_EPOCH: step.epoch,
        names.STEP: step.step,
        names.STEP_SCHEDULE: step.scheduled_ns - step.start_ns,
        names.STEP_EXECUTE: step.executed_ns - step.scheduled_ns,
        **_split(step),
        names.STEP_PREFILL_TOKENS: step.prefill_tokens,
        names.STEP_DECODE_TOKENS: step.decode_tokens,
        names.STEP_CACHED_TOKENS: step.cached_tokens,
        names.STEP_REQUESTS: step.requests,
        names.STEP_WAITING: step.waiting,
        names.STEP_ROWS: step.rows,
        names.STEP_USED_BLOCKS: step.used_blocks,
        names.STEP_PREEMPTED: step.preempted,
    }
    return SpanData(
        trace_id=step.trace_id,
        span_id=step.span_id,
        parent_id=None,
        name="engine.step",
        kind="internal",
        process=step.engine_id,
        start_ns=step.start_ns,
        end_ns=step.end_ns,
        attributes=attributes,
        links=_capped(links, attributes),
    )


def _split(step: StepRecord) -> Attributes:
    """Return what the runner and the loop said of the parts of a step."""
    split: Attributes = {}
    if step.built_ns and step.forwarded_ns:
        split[names.STEP_BUILD] = step.built_ns - step.scheduled_ns
        split[names.STEP_FORWARD] = step.forwarded_ns - step.built_ns
        split[names.STEP_SAMPLE] = step.executed_ns - step.forwarded_ns
    updated_ns = step.updated_ns or step.end_ns
    split[names.STEP_UPDATE] = updated_ns - step.executed_ns
    if step.updated_ns:
        split[names.STEP_SEND] = step.end_ns - step.updated_ns
    return split


def _send(hop: Hop, sent: HopSent) -> SpanData:
    attributes: dict[str, AttributeValue | None] = {
        names.MESSAGING: names.MESSAGING_SYSTEM,
        names.MESSAGING_OPERATION: "send",
        names.MESSAGING_OPERATION_TYPE: "send",
        names.MESSAGING_DESTINATION: sent.destination,
        names.MESSAGING_TEMPLATE: sent.message,
        names.MESSAGING_MESSAGE_ID: f"{sent.sender}-{sent.sender_epoch}-{sent.sequence}",
        names.MESSAGING_SIZE: sent.size_bytes,
        names.MESSAGING_CONVERSATION: _conversation(sent),
        names.RPC_METHOD: sent.call,
        names.ERROR_TYPE: hop.lost,
    }
    told = present(attributes)
    return SpanData(
        trace_id=sent.trace_id,
        span_id=sent.span_id,
        parent_id=sent.parent_id,
        name=f"send {sent.message}",
        kind="producer",
        process=sent.sender,
        start_ns=sent.start_ns,
        end_ns=max(sent.start_ns, sent.sent_ns),
        attributes=told,
        error=hop.lost,
        links=_capped(_foreign(sent), told),
        flags=sent.flags,
    )


def _process(sent: HopSent | None, received: HopReceived) -> SpanData:
    """Build the process span; without the sender's half it is a root in a trace of its own."""
    message_id = f"{received.sender}-{received.sender_epoch}-{received.sequence}"
    failed = None if received.outcome in ("ok", "unknown") else received.outcome
    attributes: dict[str, AttributeValue | None] = {
        names.MESSAGING: names.MESSAGING_SYSTEM,
        names.MESSAGING_OPERATION: "process",
        names.MESSAGING_OPERATION_TYPE: "process",
        names.MESSAGING_DESTINATION: received.receiver,
        names.MESSAGING_TEMPLATE: received.message,
        names.MESSAGING_MESSAGE_ID: message_id,
        names.MESSAGING_CONVERSATION: _conversation(sent) if sent is not None else None,
        names.HOP_TRANSIT: received.received_ns - received.sent_ns,
        names.HOP_QUEUED: received.dequeued_ns - received.received_ns,
        names.HOP_OUTCOME: None if received.outcome == "ok" else received.outcome,
        names.ERROR_TYPE: failed,
    }
    told = present(attributes)
    alone = (message_id, received.message)
    return SpanData(
        trace_id=sent.trace_id if sent is not None else derived_trace_id(*alone),
        span_id=process_span_id(sent) if sent is not None else derived_span_id(*alone),
        parent_id=sent.span_id if sent is not None else None,
        name=f"process {received.message}",
        kind="consumer",
        process=received.receiver,
        start_ns=received.received_ns,
        end_ns=max(received.received_ns, received.done_ns),
        attributes=told,
        error=failed,
        links=_capped(_foreign(sent), told) if sent is not None else (),
        flags=sent.flags if sent is not None else 0,
    )


def process_span_id(sent: HopSent) -> str:
    """Return the id of the process span of a message."""
    return derived_span_id(sent.span_id, "process")


def _conversation(sent: HopSent) -> str | None:
    return sent.links[0].request_id if len(sent.links) == 1 else None


def _foreign(sent: HopSent) -> tuple[HopLink, ...]:
    """Return the links that lead out of the message's own trace."""
    return tuple(link for link in sent.links if link.context.trace_id != sent.trace_id)


def _capped(links: Sequence[HopLink], attributes: Attributes) -> tuple[HopLink, ...]:
    """Return the links that a span may have; note in its attributes how many were left out."""
    if len(links) > MAX_LINKS:
        attributes[names.LINKS_DROPPED] = len(links) - MAX_LINKS
    return tuple(links[:MAX_LINKS])
