"""Turns what the routes raise into problems."""

import logging
import sqlite3
from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from appliance.supervisor.admin.ports import ConflictError, NotFoundError, RefusedError
from appliance.supervisor.admin.problems import MEDIA_TYPE, ProblemError, problem
from appliance.supervisor.admin.schemas import Problem

logger = logging.getLogger(__name__)

_MOST_ERRORS = 8


def install(app: FastAPI) -> None:
    """Register a handler for every kind of error."""
    expected = (ProblemError, NotFoundError, ConflictError, RefusedError)
    for kind in (*expected, RequestValidationError, sqlite3.Error):
        app.add_exception_handler(kind, _handle)
    app.add_exception_handler(HTTPException, _handle)
    app.add_exception_handler(Exception, _handle)


async def _handle(request: Request, error: Exception) -> Response:
    found = _problem_of(error)
    found = found.model_copy(update={"request_id": request.state.request_id})
    headers: Mapping[str, str] = {"cache-control": "no-store"}
    if isinstance(error, ProblemError):
        headers = {**headers, **{k.decode(): v.decode() for k, v in error.headers}}
    return Response(
        found.model_dump_json(exclude_none=True),
        status_code=found.status,
        media_type=MEDIA_TYPE.decode(),
        headers=headers,
    )


def _problem_of(error: Exception) -> Problem:
    match error:
        case ProblemError():
            return error.problem
        case ConflictError():
            return _conflict(error)
        case RequestValidationError():
            return _invalid(error)
        case HTTPException():
            return problem(error.status_code, "http_error", str(error.detail))
        case _:
            return _other(error)


def _other(error: Exception) -> Problem:
    if isinstance(error, NotFoundError):
        return problem(404, "not_found", str(error))
    if isinstance(error, RefusedError):
        return problem(422, error.code, str(error), error.hint)
    if isinstance(error, sqlite3.Error):
        logger.error("the state directory cannot be used: %s", error)
        hint = "Is the disk of the state directory full or read-only? Serving goes on without it."
        return problem(503, "storage_unavailable", str(error), hint)
    return problem(500, "internal_error", hint="The log has the details.")


def _conflict(error: ConflictError) -> Problem:
    actions = error.allowed_actions
    hint = f"Possible now: {', '.join(actions)}." if actions else error.hint
    found = problem(409, "conflict", str(error), hint)
    return found.model_copy(
        update={"current_state": error.current_state, "allowed_actions": actions}
    )


def _invalid(error: RequestValidationError) -> Problem:
    """Name each wrong field; its value stays out, it could be a secret in the wrong place."""
    lines = [
        f"{'.'.join(str(part) for part in found['loc'])}: {found['msg']}"
        for found in error.errors()[:_MOST_ERRORS]
    ]
    return problem(422, "invalid_request", "; ".join(lines))
