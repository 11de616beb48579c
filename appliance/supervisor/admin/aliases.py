"""Routes that tools made for vLLM call, over all engines: sleep, wake, reset of the prefix cache.

They wait until all is done, as vLLM's do, and answer 200 without a body.
Source: https://docs.vllm.ai/en/latest/features/sleep_mode/
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from appliance.supervisor.admin.access import API
from appliance.supervisor.admin.fleet_routes import caller_of
from appliance.supervisor.admin.ports import FleetControl
from appliance.supervisor.admin.problems import ProblemError, problem
from appliance.supervisor.admin.schemas import Operation, SleepBody

_DEADLINE_S = 600.0
_ASLEEP_LEVELS = (1, 2)

Tags = Annotated[list[str] | None, Query()]


def alias_routes(fleet: FleetControl) -> APIRouter:
    """Return the routes that have to do with engines."""
    router = APIRouter(tags=["vllm"])

    @router.post("/sleep")
    async def sleep(
        request: Request,
        level: int = 1,
        mode: Literal["wait", "abort"] = "abort",
        tags: Tags = None,
    ) -> Response:
        """Put every engine to sleep; `mode=abort` ends what runs, as in vLLM."""
        _refuse_tags(tags)
        if level not in _ASLEEP_LEVELS:
            raise ProblemError(problem(422, "invalid_request", "level is 1 or 2"))
        body = SleepBody.model_validate({"level": level, "mode": mode})
        actor = caller_of(request).actor
        begun = [fleet.sleep(row.id, body, actor) for row in fleet.engines()]
        return await _finished(fleet, begun, "sleep")

    @router.post("/wake_up")
    async def wake_up(request: Request, tags: Tags = None) -> Response:
        """Wake every engine."""
        _refuse_tags(tags)
        actor = caller_of(request).actor
        begun = [fleet.wake(row.id, actor) for row in fleet.engines()]
        return await _finished(fleet, begun, "wake")

    @router.post("/reset_prefix_cache")
    async def reset_prefix_cache(request: Request) -> Response:
        """Forget the cached prefixes of every engine."""
        actor = caller_of(request).actor
        begun = [fleet.reset_prefix_cache(row.id, actor) for row in fleet.engines()]
        return await _finished(fleet, begun, "reset-prefix-cache")

    @router.get("/is_sleeping")
    async def is_sleeping() -> dict[str, bool]:
        """Whether every engine sleeps."""
        return {"is_sleeping": all(row.state == "asleep" for row in fleet.engines())}

    return router


async def _finished(fleet: FleetControl, begun: Sequence[Operation], verb: str) -> Response:
    ended = [await fleet.operation(operation.id, _DEADLINE_S) for operation in begun]
    for operation in ended:
        _check_done(operation)
    return Response(
        headers={
            "x-operation-id": ", ".join(operation.id for operation in ended),
            "deprecation": "true",
            "link": f'<{API}/engines/{{engine_id}}/{verb}>; rel="successor-version"',
        }
    )


def _check_done(operation: Operation) -> None:
    name = f"{operation.kind} of {operation.target} ({operation.id})"
    match operation.state:
        case "done":
            return
        case "queued" | "running":
            hint = f"It goes on; follow it at {API}/operations/{operation.id}."
            raise ProblemError(problem(504, "operation_timeout", f"{name} still runs", hint))
        case "failed" | "canceled":
            detail = f"{name} {operation.state}: {operation.error or 'no reason given'}"
            raise ProblemError(problem(502, "operation_failed", detail))


def _refuse_tags(tags: Sequence[str] | None) -> None:
    if tags:
        detail = "tags are not supported: an engine sleeps and wakes as a whole"
        raise ProblemError(problem(422, "unsupported_parameter", detail))
