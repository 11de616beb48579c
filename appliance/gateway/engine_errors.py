"""What an engine says about a request that failed, as the client shall see it."""

from appliance.gateway.openai.errors import ApiError
from engine.wire.messages import FinishReason, RequestOutput

ASLEEP_CODE = "engine_asleep"
RETRY_AFTER_S = 5.0
CLIENT_CODES = {
    "invalid_request": "invalid_request",
    "prompt_too_long": "context_length_exceeded",
    "deadline_exceeded": "deadline_exceeded",
    "invalid_grammar": "invalid_grammar",
    "adapter_not_loaded": "adapter_not_loaded",
}
"""Codes of `RequestError` that the client is told; their messages never hold input."""


def api_error_of(output: RequestOutput, grammar_param: str) -> ApiError | None:
    """Return the error that an output ends its request with, if it does.

    `grammar_param` is the request field that brought the grammar.
    """
    match output.finish_reason:
        case None | FinishReason.STOP | FinishReason.LENGTH:
            return None
        case FinishReason.ABORT:
            return _aborted(output)
        case FinishReason.ERROR | FinishReason.REJECTED:
            return _failed(output, grammar_param)


def _aborted(output: RequestOutput) -> ApiError:
    if output.error is not None and output.error.code == ASLEEP_CODE:
        message = "The engine went to sleep while it worked on this request."
        return ApiError("engine_asleep", message, retry_after_s=RETRY_AFTER_S)
    return request_aborted()


def _failed(output: RequestOutput, grammar_param: str) -> ApiError:
    error = output.error
    if error is None or error.code not in CLIENT_CODES:
        return ApiError("internal_error", "The engine failed on this request.")
    params = {"invalid_grammar": grammar_param, "adapter_not_loaded": "model"}
    return ApiError(CLIENT_CODES[error.code], error.message, param=params.get(error.code))


def request_aborted() -> ApiError:
    """An operator ended the request."""
    return ApiError("request_aborted", "The request was aborted by an operator.")


def engine_restarted() -> ApiError:
    """The engine died after a part of the answer had been delivered."""
    message = "The engine was restarted while it worked on this request."
    return ApiError("engine_restarted", message, retry_after_s=RETRY_AFTER_S)
