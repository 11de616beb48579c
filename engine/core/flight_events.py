"""What the flight recorder says of requests that did not end well. Never a word of their text."""

from collections.abc import Mapping

from engine.core.request import Produced
from engine.wire.messages import FinishReason

_KINDS: Mapping[FinishReason, str] = {
    FinishReason.ABORT: "request.aborted",
    FinishReason.ERROR: "request.failed",
    FinishReason.REJECTED: "request.refused",
}


def ending_event(item: Produced) -> tuple[str, str] | None:
    """Return kind and text of the event that an output is, or None when it is none."""
    reason = item.output.finish_reason
    kind = None if reason is None else _KINDS.get(reason)
    if kind is None:
        return None
    request, error = item.request, item.output.error
    code = f": {error.code}" if error is not None else ""
    client = request.owner.name if request.owner is not None else "engine"
    tokens = f"{request.num_prompt_tokens}+{request.num_output_tokens} tokens"
    return kind, f"{request.request_id} of {client}, {tokens}{code}"
