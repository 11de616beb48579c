"""Profiles, stacks and flight recordings, and the two routes that vLLM has for profiles."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse

from appliance.supervisor.admin.access import API
from appliance.supervisor.admin.fleet_routes import Wait, accepted, caller_of
from appliance.supervisor.admin.ports import Diagnostics, FleetControl
from appliance.supervisor.admin.problems import ProblemError, problem
from appliance.supervisor.admin.schemas import (
    Collection,
    FlightReport,
    Operation,
    ProfileRow,
    StackDump,
    StartProfileBody,
)

MAX_STEPS = 4096
ALIAS_DURATION_S = 600.0
ALIAS_START_S = 10.0
"""Longest wait for the profilers to run."""
ALIAS_END_S = 600.0
_POLL_S = 0.02


def profile_routes(diagnostics: Diagnostics, fleet: FleetControl) -> APIRouter:
    """Return the routes below `/profiles`."""
    router = APIRouter(prefix=API, tags=["diagnostics"])

    @router.get("/profiles")
    async def profiles() -> Collection[ProfileRow]:
        """Newest first."""
        return Collection(items=diagnostics.profiles())

    @router.post("/profiles", status_code=202)
    async def start(
        body: StartProfileBody, request: Request, response: Response, wait: Wait = 0
    ) -> Operation:
        """Profile an engine; the operation ends when the files are there."""
        operation = diagnostics.start_profile(body, caller_of(request).actor)
        return await accepted(fleet, operation, wait, response)

    @router.get("/profiles/{profile_id}")
    async def profile(profile_id: str) -> ProfileRow:
        """One profile and its files."""
        return diagnostics.profile(profile_id)

    @router.post("/profiles/{profile_id}/stop", status_code=202)
    async def stop(
        profile_id: str, request: Request, response: Response, wait: Wait = 0
    ) -> Operation:
        """End a running profile; one that has ended stays as it is."""
        (operation,) = diagnostics.stop_profile(profile_id, caller_of(request).actor)
        return await accepted(fleet, operation, wait, response)

    @router.delete("/profiles/{profile_id}")
    async def delete(profile_id: str, request: Request) -> ProfileRow:
        """Delete a profile with its files; answers with what is gone."""
        row = diagnostics.profile(profile_id)
        diagnostics.delete_profile(profile_id, caller_of(request).actor)
        return row

    @router.get("/profiles/{profile_id}/files/{name}", response_class=FileResponse)
    async def file(profile_id: str, name: str) -> FileResponse:
        """One file of a profile, as it is on disk."""
        path = diagnostics.profile_file(profile_id, name)
        return FileResponse(path, media_type="application/gzip", filename=name)

    return router


def diagnostic_routes(diagnostics: Diagnostics) -> APIRouter:
    """Return what there is of diagnostics below `/engines`."""
    router = APIRouter(prefix=API, tags=["diagnostics"])

    @router.get("/engines/{engine_id}/flight")
    async def flight(
        engine_id: str,
        steps: Annotated[int, Query(ge=1, le=MAX_STEPS)] = 20,
        epoch: Annotated[int | None, Query(ge=0)] = None,
    ) -> FlightReport:
        """The last steps of an engine; without `epoch`, of the newest one that crashed."""
        return await diagnostics.flight(engine_id, steps, epoch)

    @router.post("/engines/{engine_id}/stacks")
    async def stacks(engine_id: str) -> StackDump:
        """Where every thread of an engine is, stuck or not."""
        return await diagnostics.stacks(engine_id)

    return router


def profile_alias_routes(diagnostics: Diagnostics, fleet: FleetControl) -> APIRouter:
    """Return vLLM's two routes, over all engines.

    Source: https://docs.vllm.ai/en/latest/contributing/profiling/
    """
    router = APIRouter(tags=["vllm"])

    @router.post("/start_profile")
    async def start_profile(request: Request) -> Response:
        """Profile every engine that serves; answers when the profilers run. Again: a no-op."""
        busy = {row.engine for row in diagnostics.profiles() if row.state == "running"}
        bodies = [
            StartProfileBody.model_validate({"engine": row.id, "duration_s": ALIAS_DURATION_S})
            for row in fleet.engines()
            if row.state == "ready" and row.id not in busy
        ]
        actor = caller_of(request).actor
        begun = [diagnostics.start_profile(body, actor) for body in bodies]
        await _until_recording(fleet, begun)
        return _answer(begun)

    @router.post("/stop_profile")
    async def stop_profile(request: Request) -> Response:
        """End all profiles; answers when their files are there. Again: a no-op."""
        ending = diagnostics.stop_profile(None, caller_of(request).actor)
        ended = [await fleet.operation(operation.id, ALIAS_END_S) for operation in ending]
        for operation in ended:
            _check_done(operation)
        return _answer(ended)

    return router


async def _until_recording(fleet: FleetControl, begun: Sequence[Operation]) -> None:
    try:
        async with asyncio.timeout(ALIAS_START_S):
            for operation in begun:
                while _starts(await fleet.operation(operation.id, 0)):  # noqa: ASYNC110 - a port
                    await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        hint = f"They go on; see {API}/profiles."
        raise ProblemError(
            problem(504, "operation_timeout", "a profiler does not start", hint)
        ) from error


def _starts(operation: Operation) -> bool:
    _check_done(operation)
    return operation.state == "running" and operation.phase == "starting"


def _check_done(operation: Operation) -> None:
    if operation.state == "failed":
        detail = f"the profile of {operation.target} failed: {operation.error}"
        raise ProblemError(problem(502, "operation_failed", detail))


def _answer(operations: Sequence[Operation]) -> Response:
    return Response(
        headers={
            "x-operation-id": ", ".join(operation.id for operation in operations),
            "deprecation": "true",
            "link": f'<{API}/profiles>; rel="successor-version"',
        }
    )
