"""Profiles, stacks and flight recordings of engines, for the admin API and the journal."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from appliance.supervisor.admin.ports import ConflictError, NotFoundError
from appliance.supervisor.admin.schemas import (
    FlightReport,
    Operation,
    ProfileRow,
    RequestRow,
    StackDump,
    StartProfileBody,
    Trace,
)
from appliance.supervisor.flight_files import DIRECTORY as FLIGHT_DIRECTORY
from appliance.supervisor.flight_files import Ending, FlightFiles
from appliance.supervisor.flight_texts import Crash, crash_of
from appliance.supervisor.managed_engine import ManagedEngine
from appliance.supervisor.operations import OperationRegistry
from appliance.supervisor.profile_store import DIRECTORY as PROFILE_DIRECTORY
from appliance.supervisor.profile_store import ProfileStore
from appliance.supervisor.profiles import KIND, Profiles
from appliance.supervisor.stacks import StacksError, dump_stacks
from appliance.telemetry.hub import Hub
from engine.client.core_client import AsyncEngineCoreClient

logger = logging.getLogger(__name__)

CRASH_STEPS = 3
"""Steps that are read when an engine has died: the last one is told of."""


class HubRequests:
    """What profiles ask the hub; see `profiles.Requests`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    @property
    def unix_offset_ns(self) -> int:
        """Unix time of its spans minus clock reading."""
        return self._hub.parts.clock.offset_ns

    def requests(self, state: str | None, limit: int) -> list[RequestRow]:
        """Live requests first, then ended, newest first."""
        return self._hub.requests(state, limit)

    async def trace(self, request_id: str) -> Trace:
        """All spans of one request. Raises NotFoundError."""
        return await self._hub.trace(request_id)


class EngineDiagnostics:
    """Implements `appliance.supervisor.admin.ports.Diagnostics`.

    Args:
        state_dir: Where recordings and profiles are kept.
        profile_bytes: Of all profiles together.
        engines: By id.
        client: Speaks to them.
        registry: Of operations.
        hub: Tells of requests.
    """

    def __init__(
        self,
        state_dir: Path,
        profile_bytes: int,
        engines: Mapping[str, ManagedEngine],
        client: AsyncEngineCoreClient,
        registry: OperationRegistry,
        hub: Hub,
    ) -> None:
        self._engines = engines
        self._registry = registry
        self._flights = FlightFiles(state_dir / FLIGHT_DIRECTORY)
        store = ProfileStore(state_dir / PROFILE_DIRECTORY, profile_bytes)
        self._profiles = Profiles(client, registry, store, self._flights, HubRequests(hub))
        self._tasks: asyncio.TaskGroup | None = None

    def open(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to take orders; `tasks` holds what runs."""
        self._tasks = tasks

    # ------------------------------------------------------------ profiles

    def profiles(self) -> list[ProfileRow]:
        """Newest first."""
        return self._profiles.store.rows()

    def profile(self, profile_id: str) -> ProfileRow:
        """One profile. Raises NotFoundError."""
        return self._profiles.store.row(profile_id)

    def start_profile(self, body: StartProfileBody, actor: str) -> Operation:
        """Begin a profile. Raises NotFoundError, ConflictError, RefusedError."""
        return self._profiles.start(self._engine(body.engine), body, actor, self._open_tasks())

    def stop_profile(self, profile_id: str | None, actor: str) -> list[Operation]:
        """End a running profile, None: all of them. Ended already: nothing to do.

        Raises:
            NotFoundError: there is no such profile.
        """
        running, tasks = self._profiles.running, self._open_tasks()
        if profile_id is None:
            return [self._profiles.stop(engine_id, tasks) for engine_id in list(running)]
        row = self.profile(profile_id)
        if running.get(row.engine) == profile_id:
            return [self._profiles.stop(row.engine, tasks)]
        return [self._registry.already_done(KIND, row.engine, actor, row.state)]

    def delete_profile(self, profile_id: str, actor: str) -> None:
        """Remove a profile's files. Raises NotFoundError, ConflictError."""
        row = self.profile(profile_id)
        if row.id in self._profiles.running.values():
            raise ConflictError(f"{row.id} is being taken", row.state, [], "Stop it first.")
        self._profiles.store.remove(row.id)
        logger.info("profile %s was deleted by %s", row.id, actor)

    def profile_file(self, profile_id: str, name: str) -> Path:
        """Where a file of a profile lies. Raises NotFoundError."""
        return self._profiles.store.file(profile_id, name)

    # ------------------------------------------------------------ flight and stacks

    async def flight(self, engine_id: str, steps: int, epoch: int | None = None) -> FlightReport:
        """The last steps of an engine. Raises NotFoundError.

        Args:
            engine_id: Which engine.
            steps: At most so many.
            epoch: None: the newest that ended unasked, else the newest.
        """
        engine = self._engine(engine_id)
        report = await asyncio.to_thread(self._flights.report, engine_id, steps, epoch)
        is_current = engine.life.is_alive and engine.life.epoch == report.epoch
        return report.model_copy(update={"alive": is_current})

    async def stacks(self, engine_id: str) -> StackDump:
        """Where every thread of an engine is. Raises NotFoundError, ConflictError."""
        engine = self._engine(engine_id)
        life = engine.life
        if engine.child is None:
            message = f"{engine_id} is {life.state}: it has no process"
            raise ConflictError(message, life.state, life.allowed_actions)
        try:
            return await dump_stacks(engine_id, engine.child)
        except StacksError as error:
            raise ConflictError(str(error), life.state, life.allowed_actions) from error

    def flight_path(self, engine_id: str, epoch: int) -> str:
        """Return where a new epoch of an engine shall record."""
        return self._flights.new_path(engine_id, epoch)

    def died(self, engine: ManagedEngine, epoch: int, reason: str, *, wanted: bool) -> Crash | None:
        """Keep how an epoch ended; return what its recording tells, None when there is none."""
        ending = Ending(reason=reason, wanted=wanted, log_tail=engine.last_lines)
        try:
            self._flights.bury(engine.engine_id, epoch, ending)
            return crash_of(self._flights.report(engine.engine_id, CRASH_STEPS, epoch))
        except NotFoundError as error:
            logger.debug("no flight recording: %s", error)
        except Exception:
            logger.exception("the end of %s could not be looked into", engine.engine_id)
        return None

    def _engine(self, engine_id: str) -> ManagedEngine:
        engine = self._engines.get(engine_id)
        if engine is None:
            raise NotFoundError(f"there is no engine {engine_id}")
        return engine

    def _open_tasks(self) -> asyncio.TaskGroup:
        if self._tasks is None:
            raise ConflictError("the appliance is not up", "starting", [])
        return self._tasks
