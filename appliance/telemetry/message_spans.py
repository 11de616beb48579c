"""Builds the send and process spans of a message, and the span of an engine's step.

Messaging conventions: the send span is the one whose context the header carries (PRODUCER), the
process span (CONSUMER) is its child, as each message is processed alone.
"""

from appliance.telemetry import names
from appliance.telemetry.hop_join import Hop
from appliance.telemetry.span_data import AttributeValue, SpanData, present
from engine.wire.header import new_span_id, new_trace_id
from engine.wire.hops import HopLink, HopReceived, HopSent, StepRecord


def message_spans(hop: Hop) -> list[SpanData]:
    """Build what is known of a hop: its send span, its process span, or both, in this order."""
    spans: list[SpanData] = []
    if hop.sent is not None:
        spans.append(_send(hop, hop.sent))
    if hop.received is not None:
        spans.append(_process(hop.sent, hop.received))
    return spans


def step_span(step: StepRecord) -> SpanData:
    """Build the span of a step: the root of its own trace."""
    return SpanData(
        trace_id=step.trace_id,
        span_id=step.span_id,
        parent_id=None,
        name="engine.step",
        kind="internal",
        process=step.engine_id,
        start_ns=step.start_ns,
        end_ns=step.end_ns,
        attributes={
            names.ENGINE_ID: step.engine_id,
            names.ENGINE_EPOCH: step.epoch,
            names.STEP: step.step,
            "quarterdeck.step.schedule_ns": step.scheduled_ns - step.start_ns,
            "quarterdeck.step.execute_ns": step.executed_ns - step.scheduled_ns,
            "quarterdeck.step.update_ns": step.end_ns - step.executed_ns,
            "quarterdeck.step.prefill_tokens": step.prefill_tokens,
            "quarterdeck.step.decode_tokens": step.decode_tokens,
            "quarterdeck.step.requests": step.requests,
            "quarterdeck.step.used_blocks": step.used_blocks,
            "quarterdeck.step.preempted": step.preempted,
        },
    )


def _send(hop: Hop, sent: HopSent) -> SpanData:
    links = sent.links
    return SpanData(
        trace_id=sent.trace_id,
        span_id=sent.span_id,
        parent_id=sent.parent_id,
        name=f"send {sent.message}",
        kind="producer",
        process=sent.sender,
        start_ns=sent.start_ns,
        end_ns=max(sent.start_ns, sent.sent_ns),
        attributes=present(
            {
                "messaging.system": names.MESSAGING_SYSTEM,
                "messaging.operation.name": "send",
                "messaging.operation.type": "send",
                "messaging.destination.name": sent.destination,
                "messaging.message.id": f"{sent.sender}-{sent.sender_epoch}-{sent.sequence}",
                "messaging.message.envelope.size": sent.size_bytes,
                "messaging.message.conversation_id": links[0].request_id
                if len(links) == 1
                else None,
                "rpc.method": sent.call,
                names.ERROR_TYPE: hop.lost,
            }
        ),
        error=hop.lost,
        links=_foreign(sent),
        flags=sent.flags,
    )


def _process(sent: HopSent | None, received: HopReceived) -> SpanData:
    """Build the process span; without the sender's half it is a root in a trace of its own."""
    links = sent.links if sent is not None else ()
    failed = None if received.outcome in ("ok", "unknown") else received.outcome
    attributes: dict[str, AttributeValue | None] = {
        "messaging.system": names.MESSAGING_SYSTEM,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": received.receiver,
        "messaging.message.id": f"{received.sender}-{received.sender_epoch}-{received.sequence}",
        "messaging.message.conversation_id": links[0].request_id if len(links) == 1 else None,
        names.HOP_TRANSIT: received.received_ns - received.sent_ns,
        names.HOP_QUEUED: received.dequeued_ns - received.received_ns,
        names.HOP_OUTCOME: None if received.outcome == "ok" else received.outcome,
        names.ERROR_TYPE: failed,
    }
    return SpanData(
        trace_id=sent.trace_id if sent is not None else new_trace_id(),
        span_id=new_span_id(),
        parent_id=sent.span_id if sent is not None else None,
        name=f"process {received.message}",
        kind="consumer",
        process=received.receiver,
        start_ns=received.received_ns,
        end_ns=max(received.received_ns, received.done_ns),
        attributes=present(attributes),
        error=failed,
        links=_foreign(sent) if sent is not None else (),
        flags=sent.flags if sent is not None else 0,
    )


def _foreign(sent: HopSent) -> tuple[HopLink, ...]:
    """Return the links that lead out of the message's own trace."""
    return tuple(link for link in sent.links if link.context.trace_id != sent.trace_id)
