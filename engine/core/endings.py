"""When a request is over, and which tokens would end it too early."""

from engine.core.batch import RequestGrammar
from engine.core.request import Ending, EngineRequest
from engine.wire.messages import FinishReason, RequestError

ABORTED = Ending(FinishReason.ABORT)
DEADLINE_EXCEEDED = Ending(
    FinishReason.ERROR,
    error=RequestError(code="deadline_exceeded", message="the request's deadline has passed"),
)
ASLEEP = RequestError(code="engine_asleep", message="the engine is asleep")
REJECTED_ASLEEP = Ending(FinishReason.REJECTED, error=ASLEEP)
ABORTED_ASLEEP = Ending(FinishReason.ABORT, error=ASLEEP)
CLIENT_CUT_OFF = Ending(
    FinishReason.ABORT,
    error=RequestError(code="internal_error", message="the client did not read its outputs"),
)

NOTHING_LEFT = "no token satisfies the grammar, allowed_token_ids and bad_words all together"
"""The fault of a step that is the client's: what it asked for excludes itself."""


def failed(code: str, message: str) -> Ending:
    """Return the ending of a request that failed alone."""
    return Ending(FinishReason.ERROR, error=RequestError(code=code, message=message))


def failed_in_step(fault: str) -> Ending:
    """Return the ending of a request that a step could give no token."""
    return failed("invalid_request" if fault == NOTHING_LEFT else "internal_error", fault)


def banned_token_ids(request: EngineRequest) -> tuple[int, ...]:
    """Return the tokens that may not come next: end tokens, before `min_tokens`."""
    if request.num_output_tokens < request.sampling.min_tokens:
        return request.end_token_ids
    return ()


def ending_of(request: EngineRequest, max_len: int) -> Ending | None:
    """Return how the newest token ends the request, or None when it goes on.

    Args:
        request: It has at least one output token.
        max_len: Most tokens, prompt included, that a request may have.
    """
    token_id = request.token_ids[-1]
    if request.grammar is not None and _completes(request.grammar, token_id, request):
        return Ending(FinishReason.STOP, stop_token_id=token_id)
    num_output, sampling = request.num_output_tokens, request.sampling
    if token_id in request.end_token_ids and num_output > sampling.min_tokens:
        return Ending(FinishReason.STOP, stop_token_id=token_id)
    if num_output >= sampling.max_tokens:
        return Ending(FinishReason.LENGTH)
    if len(request.token_ids) >= max_len:
        return Ending(FinishReason.LENGTH)
    return None


def _completes(grammar: RequestGrammar, token_id: int, request: EngineRequest) -> bool:
    """Whether a grammar's output is complete: nothing but end tokens could follow."""
    return token_id in request.eos_token_ids and grammar.is_finished
