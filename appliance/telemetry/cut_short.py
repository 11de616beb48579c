"""The record of a request whose gateway died before it could send one."""

from appliance.telemetry.live_requests import LiveRequest
from appliance.telemetry.records import Outcome, RequestRecord
from engine.wire.header import new_span_id

GATEWAY_DIED = "gateway_died"


def cut_short(live: LiveRequest, at_ns: int) -> RequestRecord:
    """Return the record that a dead gateway could not send."""
    accepted = live.accepted
    return RequestRecord(
        request_id=accepted.request_id,
        trace_id=accepted.trace_id,
        span_id=new_span_id(),
        parent_span_id=None,
        flags=0,
        gateway=accepted.gateway,
        gateway_epoch=accepted.gateway_epoch,
        method="POST",
        route=accepted.route,
        operation="chat" if "chat" in accepted.route else "text_completion",
        status=500,
        outcome=Outcome.FAILED,
        error_code=GATEWAY_DIED,
        error_detail=None,
        model=accepted.model,
        key_id=accepted.key_id,
        stream=accepted.stream,
        prompt_tokens=accepted.prompt_tokens,
        cached_tokens=0,
        completion_tokens=live.tokens,
        max_tokens=accepted.max_tokens,
        temperature=None,
        top_p=None,
        received_ns=accepted.received_ns,
        authenticated_ns=None,
        admitted_ns=accepted.accepted_ns,
        tokenized_ns=accepted.accepted_ns,
        chat_span_id=new_span_id(),
        held_ns=0,
        first_frame_ns=live.first_token_ns,
        last_token_ns=None,
        ended_ns=at_ns,
        detokenize_ns=0,
        frames=0,
        requeues=0,
        choices=(),
    )
