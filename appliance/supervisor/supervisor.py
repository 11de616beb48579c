"""The supervisor: makes the running fleet equal to the desired one, and answers the admin API.

One TaskGroup on one event loop owns all that runs. It imports no torch and holds no model.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from appliance.supervisor.adapter_control import AdapterControl
from appliance.supervisor.admin.ports import ConflictError, NotFoundError
from appliance.supervisor.admin.schemas import (
    AbortAnswer,
    AdapterRow,
    EngineRow,
    GatewayRow,
    LoadAdapterBody,
    Operation,
    SleepBody,
    SystemInfo,
)
from appliance.supervisor.cache_verbs import CacheVerbs
from appliance.supervisor.deep_probe import probe_engines
from appliance.supervisor.desired_state import StateDatabase
from appliance.supervisor.diagnostics import EngineDiagnostics
from appliance.supervisor.engine_verbs import EngineVerbs
from appliance.supervisor.fleet import Fleet, FleetOrders, FleetPlan
from appliance.supervisor.flight_texts import Crash
from appliance.supervisor.key_store import KeyRing
from appliance.supervisor.launcher.launcher import Launcher
from appliance.supervisor.lifecycle import Intent
from appliance.supervisor.managed_engine import ManagedEngine
from appliance.supervisor.operations import OperationRegistry
from appliance.supervisor.rows import gateway_row
from appliance.telemetry.hub import Hub
from engine.clock import now_ns
from engine.config import EngineConfig

logger = logging.getLogger(__name__)

WATCH_S = 0.25
"""Between two looks at the engines' health."""
PAUSED_S = 1.0
"""A look that comes this late means that the supervisor itself was stopped."""
PUBLISH_PAUSE_S = 0.05
"""Changes that follow each other within it reach gateways and watchers as one."""
ABORT_TIMEOUT_S = 10.0
TOLD_TIMEOUT_S = 5.0
"""Longest wait for gateways to work from a new state."""
GATEWAY_HANG_S = 30.0


class Supervisor:
    """Implements `appliance.supervisor.admin.ports.FleetControl`.

    Args:
        plan: What shall run.
        state: The open state database.
        keys: Keys that gateways are told of.
        hub: Gets all telemetry; run and closed by the supervisor.
        launcher: Starts the processes.
        system: Facts of this instance, for `GET /system`.
    """

    def __init__(
        self,
        plan: FleetPlan,
        state: StateDatabase,
        keys: KeyRing,
        hub: Hub,
        *,
        launcher: Launcher,
        system: SystemInfo,
    ) -> None:
        self.on_progress: Callable[[EngineRow], None] | None = None
        """Called at each change of an engine, for the terminal."""
        self._keys = keys
        self._hub = hub
        self._system = system
        self._registry = OperationRegistry(self._publish_operation)
        self._verbs: EngineVerbs | None = None
        self._cache_verbs: CacheVerbs | None = None
        self.stopping = asyncio.Event()
        """Set once the processes are being ended."""
        orders = FleetOrders(
            self._wake_for_request,
            self._replay_sleep,
            self._engine_changed,
            self._configure,
            self._look_into,
        )
        self._fleet = Fleet(plan, Path(system.run_dir), state, launcher, hub, orders)
        self.diagnostics = EngineDiagnostics(
            Path(system.state_dir),
            plan.profile_store_bytes,
            self._fleet.engines,
            self._fleet.client,
            self._registry,
            hub,
        )
        self._adapters = AdapterControl(self._fleet, hub, self._registry, self._tell_gateways)
        hub.set_fleet(self.engines, self.gateways, self.operations, self.adapters)
        hub.on_recording = lambda recording, content: self._fleet.recording.set(
            recording=recording, content=content
        )
        self._fleet.recording.set(recording=hub.settings.recording, content=hub.settings.content)
        keys.on_change = self._fleet.dirty.set

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """Run the fleet until `stop` has ended it; then everything is closed."""
        try:
            async with asyncio.TaskGroup() as lasting:
                services = [
                    lasting.create_task(service)
                    for service in (
                        self._fleet.client.run(),
                        self._fleet.link.run(),
                        self._run_hub(),
                        self._publish_states(),
                        self._watch(),
                        self._adapters.run(),
                        self._fleet.recording.run(),
                        probe_engines(self._fleet.client, self._fleet.engines.values()),
                    )
                ]
                await self._run_fleet()
                for service in services:
                    service.cancel()
        finally:
            self._fleet.kill()
            self._fleet.close()
            await self._hub.close()

    def begin_drain(self, drain_s: float) -> None:
        """Tell everybody that the appliance ends: no new requests, at once."""
        fleet = self._fleet
        fleet.is_draining = True
        fleet.link.publish(fleet.state(self._keys.records()))
        fleet.link.shutdown(drain_s)
        for gateway in fleet.gateways.values():
            gateway.stop()
        fleet.journal("appliance.draining", "info", "appliance", f"at most {drain_s:g} s")
        for engine in fleet.engines.values():
            self._hub.publish_engine(self._row(engine))

    async def drained(self, timeout_s: float) -> bool:
        """Wait until all gateways have gone; false after `timeout_s`."""
        children = [g.child for g in self._fleet.gateways.values() if g.child is not None]
        try:
            async with asyncio.timeout(timeout_s):
                for child in children:
                    await child.wait()
        except TimeoutError:
            return False
        return True

    def stop(self) -> None:
        """End the processes in order; `run` returns when it is over."""
        self._fleet.is_draining = True
        self.stopping.set()

    def kill(self) -> None:
        """End every child at once, without a word."""
        self._fleet.kill()

    async def _run_fleet(self) -> None:
        """Gateways first: their ports answer while the engines load."""
        self._fleet.dirty.set()
        async with asyncio.TaskGroup() as tasks:
            self._verbs = EngineVerbs(self._fleet.client, self._registry, tasks)
            self._cache_verbs = CacheVerbs(self._fleet.client, self._registry, tasks)
            self._adapters.open(tasks)
            self.diagnostics.open(tasks)
            for gateway in self._fleet.gateways.values():
                tasks.create_task(gateway.run())
            for engine in self._fleet.engines.values():
                tasks.create_task(engine.run(tasks))
            tasks.create_task(self._stop_on_request())

    async def _stop_on_request(self) -> None:
        await self.stopping.wait()
        for engine in self._fleet.engines.values():
            engine.stop()
        async with asyncio.TaskGroup() as ends:
            for gateway in self._fleet.gateways.values():
                ends.create_task(gateway.end())

    async def _run_hub(self) -> None:
        """Telemetry cannot stop work: without a hub the fleet runs on."""
        try:
            await self._hub.run()
        except Exception:
            logger.exception("the telemetry hub failed; the fleet runs on without it")

    async def _tell_gateways(self) -> None:
        """Return once the gateways work from the fleet as it is now, or do not say so in time."""
        self._fleet.link.publish(self._fleet.state(self._keys.records()))
        await self._fleet.link.await_acks(TOLD_TIMEOUT_S)

    async def _publish_states(self) -> None:
        fleet = self._fleet
        while True:
            await fleet.dirty.wait()
            fleet.dirty.clear()
            fleet.link.publish(fleet.state(self._keys.records()))
            self._adapters.publish()
            await asyncio.sleep(PUBLISH_PAUSE_S)

    async def _watch(self) -> None:
        last_ns = now_ns()
        async with asyncio.TaskGroup() as replacements:
            while True:
                await asyncio.sleep(WATCH_S)
                late_s = (now_ns() - last_ns) / 1e9 - WATCH_S
                last_ns = now_ns()
                pause_s = late_s if late_s > PAUSED_S else 0.0
                for engine in self._fleet.engines.values():
                    engine.check_health(last_ns / 1e9, pause_s)
                self._replace_hung_gateways(replacements)
                self._fleet.count_messages()

    def _replace_hung_gateways(self, tasks: asyncio.TaskGroup) -> None:
        for gateway in self._fleet.gateways.values():
            if self._fleet.link.unacked_s(gateway.name) > GATEWAY_HANG_S:
                self._fleet.link.forget(gateway.name)
                tasks.create_task(gateway.replace_hung())

    # ------------------------------------------------------------ FleetControl

    def engines(self) -> list[EngineRow]:
        """All engines, in order."""
        return [self._row(engine) for engine in self._fleet.engines.values()]

    def gateways(self) -> list[GatewayRow]:
        """All gateways, in order."""
        return [gateway_row(gateway) for gateway in self._fleet.gateways.values()]

    def sleep(self, engine_id: str, body: SleepBody, actor: str) -> Operation:
        """Begin to put an engine to sleep; see `FleetControl`."""
        return self._open_verbs().sleep(self._engine(engine_id), body, actor)

    def wake(self, engine_id: str, actor: str) -> Operation:
        """Begin to wake an engine; see `FleetControl`."""
        return self._open_verbs().wake(self._engine(engine_id), actor)

    def restart(self, engine_id: str, actor: str) -> Operation:
        """Begin to restart an engine; see `FleetControl`."""
        return self._open_verbs().restart(self._engine(engine_id), actor)

    def reset_prefix_cache(self, engine_id: str, actor: str) -> Operation:
        """Begin to forget an engine's cached prefixes; see `FleetControl`."""
        self._open_verbs()
        assert self._cache_verbs is not None
        return self._cache_verbs.reset(self._engine(engine_id), actor)

    def adapters(self) -> list[AdapterRow]:
        """All LoRA adapters, by name."""
        return self._adapters.rows()

    async def load_adapter(self, name: str, body: LoadAdapterBody, actor: str) -> Operation:
        """Check an adapter, then begin to load it; see `FleetControl`."""
        return await self._adapters.load(name, body, actor)

    def unload_adapter(self, name: str, actor: str) -> Operation:
        """Begin to unload an adapter; see `FleetControl`."""
        return self._adapters.unload(name, actor)

    def pin_adapter(self, name: str, actor: str, *, pinned: bool) -> Operation:
        """Begin to pin or unpin an adapter; see `FleetControl`."""
        return self._adapters.pin(name, actor, pinned=pinned)

    def operations(self) -> list[Operation]:
        """Newest first."""
        return self._registry.all()

    async def operation(self, operation_id: str, wait_s: float) -> Operation:
        """One operation, at its end or after `wait_s`. Raises NotFoundError."""
        return await self._registry.wait(operation_id, wait_s)

    async def abort(self, request_id: str, actor: str) -> AbortAnswer:
        """End a live request, confirmed. Raises NotFoundError, ConflictError."""
        result = await self._fleet.link.abort(request_id, "operator", ABORT_TIMEOUT_S)
        if result is None:
            row = self._hub.request(request_id)  # raises NotFoundError
            raise ConflictError(f"{request_id} has ended", row.state, [])
        self._fleet.journal("request.aborted", "info", request_id, f"by {actor}")
        return AbortAnswer(
            id=request_id, state="aborted", completion_tokens=result.completion_tokens
        )

    def system(self) -> SystemInfo:
        """Facts of this instance."""
        return self._system

    def startup(self) -> tuple[bool, list[EngineRow]]:
        """Whether every engine has been ready once, and the rows."""
        return len(self._fleet.have_been_ready) == len(self._fleet.engines), self.engines()

    def _row(self, engine: ManagedEngine) -> EngineRow:
        row = self._fleet.row(engine)
        if self._fleet.is_draining and row.state == "ready":
            return row.model_copy(update={"state": "draining", "allowed_actions": []})
        return row

    def _engine(self, engine_id: str) -> ManagedEngine:
        engine = self._fleet.engines.get(engine_id)
        if engine is None:
            raise NotFoundError(f"there is no engine {engine_id}")
        return engine

    def _open_verbs(self) -> EngineVerbs:
        if self._verbs is None or self._fleet.is_draining:
            raise ConflictError("the appliance is shutting down", "draining", [])
        return self._verbs

    # ------------------------------------------------------------ orders of the fleet

    def _wake_for_request(self, engine: ManagedEngine, request_id: str) -> None:
        self._open_verbs().wake_for_request(engine, request_id)

    def _replay_sleep(self, engine: ManagedEngine, level: int) -> None:
        if not self._fleet.is_draining:
            self._open_verbs().replay_sleep(engine, level)

    def _configure(self, config: EngineConfig) -> EngineConfig:
        """Fill in what a new process of an engine starts with."""
        recording = self._fleet.recording.spawned(config.engine_id, config.epoch)
        flight_path = self.diagnostics.flight_path(config.engine_id, config.epoch)
        return msgspec.structs.replace(config, recording=recording, flight_path=flight_path)

    def _look_into(self, engine: ManagedEngine, epoch: int, reason: str) -> Crash | None:
        is_wanted = engine.life.intent is not Intent.RUN
        return self.diagnostics.died(engine, epoch, reason, wanted=is_wanted)

    def _engine_changed(self, engine: ManagedEngine, row: EngineRow) -> None:
        self._fleet.recording.engine_changed()
        if self._verbs is not None:
            self._verbs.note_change(engine)
        self._adapters.engine_changed(engine)
        if self.on_progress is not None:
            self.on_progress(row)

    def _publish_operation(self, operation: Operation) -> None:
        self._hub.publish_operation(operation)
        if operation.state in ("done", "failed"):
            level = "info" if operation.state == "done" else "error"
            text = f"{operation.kind} by {operation.actor}: {operation.error or operation.state}"
            self._fleet.journal(f"operation.{operation.state}", level, operation.target, text)
