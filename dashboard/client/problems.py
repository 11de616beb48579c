"""What can go wrong when talking to the control plane."""

from typing import Final

import httpx
from pydantic import ValidationError

from appliance.supervisor.admin.schemas import Problem

_ABSENT_STATUS: Final = frozenset({404, 405, 501})
_ABSENT_CODES: Final = frozenset(
    {"no_such_route", "http_error", "http_404", "http_405", "http_501", "method_not_allowed"}
)


class ApiProblem(Exception):  # noqa: N818 - an RFC 9457 "problem", answered by a server that works
    """The control plane refused, and says why and what to do."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail or problem.title)
        self.problem = problem

    @property
    def status(self) -> int:
        """HTTP status."""
        return self.problem.status

    @property
    def code(self) -> str:
        """Stable name of the problem."""
        return self.problem.code

    @property
    def hint(self) -> str | None:
        """What to do about it."""
        return self.problem.hint

    @property
    def is_absent_route(self) -> bool:
        """Whether the server has no such route at all: it is older than this dashboard."""
        return self.status in _ABSENT_STATUS and self.code in _ABSENT_CODES

    @property
    def allowed_actions(self) -> list[str]:
        """The verbs that would be taken instead."""
        return self.problem.allowed_actions or []


class UnreachableError(Exception):
    """Nobody answers, or the answer makes no sense."""


def problem_of(response: httpx.Response) -> ApiProblem:
    """Read the problem out of a refusal; one is made up if the body holds none."""
    try:
        return ApiProblem(Problem.model_validate_json(response.content))
    except ValidationError:
        return ApiProblem(_made_up(response))


def _made_up(response: httpx.Response) -> Problem:
    return Problem(
        title=response.reason_phrase or "refused",
        status=response.status_code,
        code=f"http_{response.status_code}",
        hint="is the address that of the control plane?",
    )
