"""RFC 9457 problems: how every error of the control plane looks."""

from collections.abc import Mapping, Sequence

from starlette.types import Send

from appliance.supervisor.admin.schemas import Problem

MEDIA_TYPE = b"application/problem+json"

TITLES: Mapping[int, str] = {
    400: "Bad request",
    401: "No valid key",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    408: "Request timeout",
    409: "Conflict",
    413: "Body too large",
    415: "Unsupported media type",
    422: "Invalid request",
    500: "Internal error",
    502: "The operation failed",
    503: "Not available now",
    504: "The operation takes longer",
}


class ProblemError(Exception):
    """An answer that is a problem."""

    def __init__(self, problem: Problem, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(problem.detail or problem.title)
        self.problem = problem
        self.headers = tuple(headers)


def problem(status: int, code: str, detail: str | None = None, hint: str | None = None) -> Problem:
    """Return a problem with the title of its status."""
    title = TITLES.get(status, "Error")
    return Problem(title=title, status=status, code=code, detail=detail, hint=hint)


async def send_problem(
    send: Send, found: Problem, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Answer with a problem."""
    body = found.model_dump_json(exclude_none=True).encode()
    fixed = [
        (b"content-type", MEDIA_TYPE),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    start = {"type": "http.response.start", "status": found.status, "headers": [*fixed, *headers]}
    await send(start)
    await send({"type": "http.response.body", "body": body})
