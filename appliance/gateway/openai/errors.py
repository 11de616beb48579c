"""Every error that the data plane answers with: one table of codes, one shape.

Messages name the rule that was broken and never repeat the input: an echo would make the answer
as large as the attack.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

Headers = list[tuple[bytes, bytes]]

INVALID = "invalid_request_error"
SERVER = "server_error"


class ErrorKind(NamedTuple):
    """What a code means in HTTP and in the body's `type`."""

    status: int
    type: str


ERRORS: dict[str, ErrorKind] = {
    # who asks
    "invalid_api_key": ErrorKind(401, INVALID),
    "insufficient_permissions": ErrorKind(403, "permission_error"),
    "host_not_allowed": ErrorKind(403, "permission_error"),
    "origin_not_allowed": ErrorKind(403, "permission_error"),
    # what is asked
    "model_not_found": ErrorKind(404, INVALID),
    "adapter_not_loaded": ErrorKind(404, INVALID),
    "unknown_url": ErrorKind(404, INVALID),
    "method_not_allowed": ErrorKind(405, INVALID),
    "invalid_host": ErrorKind(400, INVALID),
    "invalid_json": ErrorKind(400, INVALID),
    "unsupported_media_type": ErrorKind(415, INVALID),
    "request_too_large": ErrorKind(413, INVALID),
    "headers_too_large": ErrorKind(431, INVALID),
    "invalid_http": ErrorKind(400, INVALID),
    # parameters
    "missing_required_parameter": ErrorKind(400, INVALID),
    "invalid_type": ErrorKind(400, INVALID),
    "invalid_value": ErrorKind(400, INVALID),
    "unsupported_parameter": ErrorKind(400, INVALID),
    "unsupported_value": ErrorKind(400, INVALID),
    "unknown_parameter": ErrorKind(400, INVALID),
    "integer_below_min_value": ErrorKind(400, INVALID),
    "integer_above_max_value": ErrorKind(400, INVALID),
    "decimal_below_min_value": ErrorKind(400, INVALID),
    "decimal_above_max_value": ErrorKind(400, INVALID),
    "empty_array": ErrorKind(400, INVALID),
    "empty_string": ErrorKind(400, INVALID),
    "array_above_max_length": ErrorKind(400, INVALID),
    "string_above_max_length": ErrorKind(400, INVALID),
    "invalid_prompt": ErrorKind(400, INVALID),
    "invalid_grammar": ErrorKind(400, INVALID),
    "context_length_exceeded": ErrorKind(400, INVALID),
    "invalid_request": ErrorKind(400, INVALID),
    # limits and the engine's state
    "rate_limit_exceeded": ErrorKind(429, "requests"),
    "server_overloaded": ErrorKind(503, SERVER),
    "server_shutting_down": ErrorKind(503, SERVER),
    "engine_asleep": ErrorKind(503, SERVER),
    "engine_restarted": ErrorKind(503, SERVER),
    "request_crashed_engine": ErrorKind(500, SERVER),
    "request_aborted": ErrorKind(500, SERVER),
    "deadline_exceeded": ErrorKind(504, SERVER),
    "internal_error": ErrorKind(500, SERVER),
    # for accounts and records only: nobody is there to read an answer
    "client_disconnected": ErrorKind(499, INVALID),
}

WITHOUT_CODE = frozenset({"invalid_json"})
"""Their `code` is null in the body."""
NOT_TO_BE_RETRIED = frozenset({"request_crashed_engine", "request_aborted"})
"""The SDK retries every 5xx unless it is told not to."""


class ApiError(Exception):
    """A refusal or failure as the client shall see it.

    Args:
        code: A key of `ERRORS`.
        message: For a person; never holds input.
        param: Path of the parameter, such as `messages[0].content`.
        retry_after_s: When it may be worth asking again.
        kind: `tokens` or `requests`, for `rate_limit_exceeded`.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        kind: str | None = None,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.kind = kind or ERRORS[code].type
        self.extra_headers = tuple(headers)

    @property
    def status(self) -> int:
        """The HTTP status."""
        return ERRORS[self.code].status

    def body(self) -> bytes:
        """The JSON body, which is also the payload of an error frame."""
        code = None if self.code in WITHOUT_CODE else self.code
        return msgspec.json.encode(
            {
                "error": {
                    "message": self.message,
                    "type": self.kind,
                    "param": self.param,
                    "code": code,
                }
            }
        )

    def headers(self) -> Headers:
        """The headers that this error needs besides the usual ones."""
        headers: Headers = list(self.extra_headers)
        if self.status == 401:  # noqa: PLR2004
            headers.append((b"www-authenticate", b"Bearer"))
        if self.retry_after_s is not None:
            seconds = max(1, math.ceil(self.retry_after_s))
            headers.append((b"retry-after", str(seconds).encode()))
        if self.code in NOT_TO_BE_RETRIED:
            headers.append((b"x-should-retry", b"false"))
        return headers


def model_not_found() -> ApiError:
    """Nothing is served under the name, or nothing any more."""
    message = "The requested model does not exist; GET /v1/models lists what is served."
    return ApiError("model_not_found", message, param="model")


def missing(param: str) -> ApiError:
    """A required parameter is absent."""
    message = f"Missing required parameter: '{param}'."
    return ApiError("missing_required_parameter", message, param=param)


def wrong_type(param: str, expected: str) -> ApiError:
    """A parameter is of another JSON type than `expected` (`an integer`, ...)."""
    return ApiError("invalid_type", f"'{param}' must be {expected}.", param=param)


def invalid(param: str, message: str) -> ApiError:
    """A parameter's value makes no sense."""
    return ApiError("invalid_value", message, param=param)


def unsupported(param: str) -> ApiError:
    """A parameter that this server knows and cannot honour."""
    message = f"'{param}' is not supported by this server."
    return ApiError("unsupported_parameter", message, param=param)


def unsupported_value(param: str, supported: str) -> ApiError:
    """A value that this server knows and cannot honour."""
    message = f"This value of '{param}' is not supported by this server; supported: {supported}."
    return ApiError("unsupported_value", message, param=param)


def context_length_exceeded(
    limit: int, prompt_tokens: int, param: str, *, at_least: bool = False
) -> ApiError:
    """The prompt leaves no room for a token; clients parse this text for both numbers."""
    what = "messages" if param == "messages" else "prompt"
    count = f"at least {prompt_tokens}" if at_least else str(prompt_tokens)
    return ApiError(
        "context_length_exceeded",
        f"This model's maximum context length is {limit} tokens. "
        f"However, your {what} resulted in {count} tokens.",
        param=param,
    )
