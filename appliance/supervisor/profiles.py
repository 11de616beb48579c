"""Takes profiles of engines, each as an operation: record, merge, keep."""

import asyncio
import logging
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from appliance.supervisor.admin.ports import ConflictError, NotFoundError, RefusedError
from appliance.supervisor.admin.schemas import (
    Operation,
    ProfileRow,
    RequestRow,
    StartProfileBody,
    Trace,
)
from appliance.supervisor.flight_files import FlightFiles
from appliance.supervisor.lifecycle import EngineState
from appliance.supervisor.managed_engine import ManagedEngine
from appliance.supervisor.operations import OperationRegistry
from appliance.supervisor.profile_events import request_events, step_events
from appliance.supervisor.profile_merge import MergeError, merge
from appliance.supervisor.profile_store import ProfileStore
from engine.client.core_client import AsyncEngineCoreClient, EngineClientError
from engine.wire.calls import Ping, ProfileReport, StartProfile, StopProfile
from engine.wire.flight import STEP_CAPACITY, FlightError, RecordedStep

logger = logging.getLogger(__name__)

KIND = "profile"
RECORDING = "recording"
"""Phase of the operation once the engine's profiler runs."""
MAX_HEAVY_STEPS = 50
"""With stacks or memory; as in the engine."""
WRITE_S = 300.0
"""Longest time that an engine may take to write what it recorded."""
CALL_S = 60.0
MAX_REQUESTS = 64
"""Whose spans are merged."""
TRACES_S = 10.0
"""Longest wait for their traces."""
_LOOKED_AT = 500


class Requests(Protocol):
    """What the hub knows of requests."""

    def requests(self, state: str | None, limit: int) -> list[RequestRow]:
        """Live ones first, then ended, newest first."""
        ...

    async def trace(self, request_id: str) -> Trace:
        """All spans of one. Raises NotFoundError."""
        ...

    @property
    def unix_offset_ns(self) -> int:
        """Unix time of its spans minus clock reading."""
        ...


class Profiles:
    """Owns the running profiles.

    Args:
        client: Speaks to the engines.
        registry: Of operations.
        store: Keeps what comes out.
        flights: Tells of the steps.
        hub: Tells of the requests.
    """

    def __init__(
        self,
        client: AsyncEngineCoreClient,
        registry: OperationRegistry,
        store: ProfileStore,
        flights: FlightFiles,
        hub: Requests,
    ) -> None:
        self.store = store
        self._client = client
        self._registry = registry
        self._flights = flights
        self._hub = hub
        self._running: dict[str, str] = {}
        """Id of the profile that is taken of each engine."""

    @property
    def running(self) -> Mapping[str, str]:
        """Engine id to profile id, of those that are being taken."""
        return self._running

    def start(
        self, engine: ManagedEngine, body: StartProfileBody, actor: str, tasks: asyncio.TaskGroup
    ) -> Operation:
        """Begin a profile. Raises ConflictError, RefusedError, OSError."""
        self._check(engine, body)
        operation = self._registry.begin(KIND, engine.engine_id, actor)
        row = ProfileRow(
            id=f"prof-{secrets.token_hex(4)}",
            engine=engine.engine_id,
            epoch=engine.life.epoch,
            state="running",
            created_at=datetime.now(UTC),
            actor=actor,
            steps=body.steps,
            operation_id=operation.id,
        )
        try:
            self.store.make_room()
            self.store.add(row)
        except OSError as error:
            self._registry.fail(operation.id, f"no place for a profile: {error}")
            raise RefusedError("no_space", f"no place for a profile: {error}") from error
        self._running[engine.engine_id] = row.id
        self._registry.update(operation.id, phase="starting")
        tasks.create_task(self._run(row, body, operation.id))
        tasks.create_task(self._note_begin(row, operation.id))
        return operation

    def stop(self, engine_id: str, tasks: asyncio.TaskGroup) -> Operation:
        """End the running profile of an engine; its operation ends when its files are there."""
        row = self.store.row(self._running[engine_id])
        assert row.operation_id is not None
        tasks.create_task(self._stop(engine_id, row.operation_id))
        return self._registry.get(row.operation_id)

    def _check(self, engine: ManagedEngine, body: StartProfileBody) -> None:
        life = engine.life
        running = self._running.get(engine.engine_id)
        if running is not None:
            message = f"{engine.engine_id} is being profiled already ({running})"
            raise ConflictError(message, life.state, [], "Stop it, or wait for its end.")
        if life.state is not EngineState.READY:
            message = f"{engine.engine_id} is {life.state}: there is nothing to profile"
            raise ConflictError(message, life.state, life.allowed_actions)
        is_heavy = body.with_stacks or body.with_memory
        if is_heavy and body.steps is not None and body.steps > MAX_HEAVY_STEPS:
            message = f"with stacks or memory at most {MAX_HEAVY_STEPS} steps, got {body.steps}"
            raise RefusedError("too_many_steps", message)

    # ------------------------------------------------------------ one profile

    async def _run(self, row: ProfileRow, body: StartProfileBody, operation_id: str) -> None:
        try:
            report = await self._record(row, body, operation_id)
            self._registry.update(operation_id, phase="merging")
            await self._merge(row, report)
            ended = self.store.end(
                row.id, state="done", first_step=report.first_step, last_step=report.last_step
            )
            self._registry.finish(operation_id, _result(ended))
        except (EngineClientError, MergeError, OSError) as error:
            self._fail(row, operation_id, str(error))
        except Exception as error:
            logger.exception("profile %s failed", row.id)
            self._fail(row, operation_id, f"internal error ({type(error).__name__})")
        finally:
            self._running.pop(row.engine, None)

    async def _record(
        self, row: ProfileRow, body: StartProfileBody, operation_id: str
    ) -> ProfileReport:
        call = StartProfile(
            profile_id=row.id,
            directory=str(self.store.directory_of(row.id)),
            steps=body.steps,
            max_s=body.duration_s,
            with_stacks=body.with_stacks,
            with_memory=body.with_memory,
        )
        return await self._client.call(
            row.engine,
            call,
            timeout_s=body.duration_s + WRITE_S,
            context=self._registry.context(operation_id),
        )

    async def _note_begin(self, row: ProfileRow, operation_id: str) -> None:
        """Calls are taken in order: when this one is answered, the profiler has been started."""
        context = self._registry.context(operation_id)
        try:
            await self._client.call(row.engine, Ping(deep=False), timeout_s=CALL_S, context=context)
        except EngineClientError as error:
            logger.debug("nobody says whether %s records: %s", row.id, error)
            return
        if self._registry.get(operation_id).phase == "starting":
            self._registry.update(operation_id, phase=RECORDING)

    async def _stop(self, engine_id: str, operation_id: str) -> None:
        context = self._registry.context(operation_id)
        try:
            await self._client.call(engine_id, StopProfile(), timeout_s=WRITE_S, context=context)
        except EngineClientError as error:
            logger.warning("the profile of %s could not be stopped: %s", engine_id, error)

    def _fail(self, row: ProfileRow, operation_id: str, error: str) -> None:
        try:
            self.store.end(row.id, state="failed", error=error)
        except NotFoundError:
            logger.debug("profile %s is gone already", row.id)
        self._registry.fail(operation_id, error)

    # ------------------------------------------------------------ steps and requests

    async def _merge(self, row: ProfileRow, report: ProfileReport) -> None:
        """Write one more file: the profile with the steps and the requests of its time."""
        if not report.files:
            return
        directory = self.store.directory_of(row.id)
        steps = await asyncio.to_thread(self._steps, row, report)
        traces = await self._traces(row.engine, report)
        offset_ns = self._hub.unix_offset_ns
        source: Path = directory / report.files[0]
        target = directory / f"{row.id}-{row.engine}-merged.json.gz"
        await asyncio.to_thread(
            merge,
            source,
            target,
            lambda axis: [
                *step_events(row.engine, steps, axis),
                *request_events(traces, offset_ns, axis),
            ],
        )

    def _steps(self, row: ProfileRow, report: ProfileReport) -> list[RecordedStep]:
        first, last = report.first_step, report.last_step
        if first is None or last is None:
            return []
        try:
            flight = self._flights.read(row.engine, row.epoch, STEP_CAPACITY, 0)
        except FlightError as error:
            logger.warning("profile %s is merged without steps: %s", row.id, error)
            return []
        return [step for step in reversed(flight.steps) if first <= step.step <= last]

    async def _traces(self, engine_id: str, report: ProfileReport) -> list[Trace]:
        """Return the traces of requests that ran on the engine meanwhile, as far as they come."""
        offset_ns = self._hub.unix_offset_ns
        since_s = (report.started_ns + offset_ns) / 1e9
        until_s = (report.ended_ns + offset_ns) / 1e9
        ids = [
            row.id
            for row in self._hub.requests(None, _LOOKED_AT)
            if row.engine == engine_id
            and row.received_at.timestamp() < until_s
            and (row.ended_at is None or row.ended_at.timestamp() > since_s)
        ]
        traces: list[Trace] = []
        try:
            async with asyncio.timeout(TRACES_S):
                for request_id in ids[:MAX_REQUESTS]:
                    traces += await self._trace(request_id)
        except TimeoutError:
            logger.info("%d of %d requests are merged", len(traces), len(ids))
        return traces

    async def _trace(self, request_id: str) -> list[Trace]:
        try:
            return [await self._hub.trace(request_id)]
        except NotFoundError:
            return []


def _result(row: ProfileRow) -> dict[str, object]:
    return {
        "profile_id": row.id,
        "first_step": row.first_step,
        "last_step": row.last_step,
        "files": [file.model_dump() for file in row.files],
    }
