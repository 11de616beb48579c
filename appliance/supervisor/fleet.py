"""The running fleet: engines, gateways and the two connections to them, and who tells whom what.

Messages of engines and gateways come in here and go to the managed process and to the telemetry
hub; what happens to a process goes to its clients, to the hub and to the gateways.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from appliance.control_link.messages import (
    FleetState,
    GatewayAccounts,
    GatewayHello,
    GatewayRecords,
    GatewayStopped,
    KeyRecord,
    Limits,
    SloTargets,
    WakeEngine,
)
from appliance.control_link.supervisor_end import SupervisorLink
from appliance.supervisor.adapters import Adapters
from appliance.supervisor.admin.schemas import EngineRow
from appliance.supervisor.desired_state import StateDatabase
from appliance.supervisor.flight_texts import Crash
from appliance.supervisor.health import HealthLimits
from appliance.supervisor.journal_texts import engine_text, gateway_text
from appliance.supervisor.launcher.launcher import Launcher
from appliance.supervisor.lifecycle import EngineState, Intent
from appliance.supervisor.managed_engine import EngineHooks, EnginePlan, ManagedEngine
from appliance.supervisor.managed_gateway import GatewayHooks, GatewayPlan, ManagedGateway
from appliance.supervisor.recording import RecordingSwitch
from appliance.supervisor.rows import engine_route, engine_row
from appliance.telemetry.hub import Hub
from engine.client.async_mp import AsyncMPClient
from engine.client.core_client import EngineClientError
from engine.clock import now_ns
from engine.config import EngineConfig
from engine.wire.header import new_context
from engine.wire.hops import HopRecord
from engine.wire.messages import (
    Body,
    EngineProgress,
    EngineReady,
    EngineRecords,
    EngineStats,
    FromEngine,
    Heartbeat,
)

logger = logging.getLogger(__name__)

CLIENT_NAME = "supervisor"

Level = Literal["info", "warning", "error"]

_LEVELS: dict[EngineState, Level] = {
    EngineState.BACKOFF: "warning",
    EngineState.CRASH_LOOP: "error",
    EngineState.FAILED: "error",
}


class NeverStopsWork:
    """A `with` around telemetry: what it raises is logged and goes no further."""

    def __enter__(self) -> None:
        """Nothing to begin."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Log an error and go on."""
        if not isinstance(error, Exception):
            return False
        logger.error("the telemetry hub failed", exc_info=error)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """The desired fleet and its rules."""

    engines: Sequence[EnginePlan]
    gateways: Sequence[GatewayPlan]
    limits: Limits
    """Per gateway."""
    health: HealthLimits
    on_asleep: Literal["wake", "reject"]
    auth_required: bool
    adapter_roots: Sequence[Path] = ()
    """Directories that LoRA adapters may be loaded from."""
    slo: SloTargets | None = None
    """What is promised to clients."""
    profile_store_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class FleetOrders:
    """What the fleet asks of its owner."""

    wake_for_request: Callable[[ManagedEngine, str], None]
    replay_sleep: Callable[[ManagedEngine, int], None]
    changed: Callable[[ManagedEngine, EngineRow], None]
    configure: Callable[[EngineConfig], EngineConfig]
    look_into: Callable[[ManagedEngine, int, str], Crash | None]
    """An engine's epoch has ended, for this reason: return what its last steps tell."""


class Fleet:
    """Owns the managed processes, the engine client and the control link.

    Args:
        plan: What shall run.
        run_dir: Directory of the ipc sockets; mode 0700.
        state: Issues the epochs.
        launcher: Starts the processes.
        hub: Gets all telemetry.
        orders: What the fleet asks of its owner.
    """

    def __init__(
        self,
        plan: FleetPlan,
        run_dir: Path,
        state: StateDatabase,
        launcher: Launcher,
        hub: Hub,
        orders: FleetOrders,
    ) -> None:
        self.plan = plan
        self.dirty = asyncio.Event()
        """Set: gateways work from a state that is no longer true."""
        self.is_draining = False
        self.have_been_ready: set[str] = set()
        self._hub = hub
        self._telemetry = NeverStopsWork()
        self._orders = orders
        self._journaled: dict[str, EngineState] = {}
        epoch = state.next_epoch(CLIENT_NAME)
        self.client = AsyncMPClient(
            CLIENT_NAME, epoch, run_dir, on_message=self._hear_engine, on_hop=self._hop
        )
        try:
            self.link = SupervisorLink(
                run_dir, epoch, on_message=self._hear_gateway, on_hop=self._hop
            )
        except BaseException:
            self.client.close()
            raise
        engine_hooks = EngineHooks(
            self.client.expect,
            self._engine_died,
            self._engine_changed,
            orders.replay_sleep,
            self._configure,
        )
        self.engines = {
            engine.engine_id: ManagedEngine(engine, launcher, state, plan.health, engine_hooks)
            for engine in plan.engines
        }
        self.adapters = Adapters(state, self.engines)
        self.recording = RecordingSwitch(self.client, self.engines, self.dirty.set)
        gateway_hooks = GatewayHooks(self.link.expect, self._gateway_died, self._gateway_changed)
        self.gateways = {
            gateway.name: ManagedGateway(gateway, launcher, state, gateway_hooks)
            for gateway in plan.gateways
        }

    def close(self) -> None:
        """Close both connections."""
        self.link.close()
        self.client.close()

    def kill(self) -> None:
        """End every child at once, without a word."""
        for managed in (*self.gateways.values(), *self.engines.values()):
            managed.kill()

    def state(self, keys: tuple[KeyRecord, ...]) -> FleetState:
        """Return what gateways shall work from; the link numbers it."""
        return FleetState(
            sequence=0,
            engines=tuple(
                engine_route(engine, self.adapters.usable(engine))
                for engine in self.engines.values()
            ),
            keys=keys,
            limits=self.plan.limits,
            on_asleep=self.plan.on_asleep,
            draining=self.is_draining,
            auth_required=self.plan.auth_required,
            adapters=self.adapters.routes(),
            recording=self.recording.state,
            slo=self.plan.slo,
        )

    def row(self, engine: ManagedEngine) -> EngineRow:
        """Return one engine as the admin API shows it."""
        return engine_row(engine, self.adapters.usable(engine))

    def count_messages(self) -> None:
        """Tell the hub what the supervisor's own sockets took and gave."""
        client, link = self.client.counts, self.link.counts
        with self._telemetry:
            self._hub.count_supervisor(
                client.sent + link.sent,
                client.received + link.received,
                client.fenced + link.fenced,
                client.undecodable + link.undecodable,
            )

    def _hop(self, record: HopRecord) -> None:
        with self._telemetry:
            self._hub.hop(record)

    def journal(self, kind: str, level: Level, subject: str, text: str) -> None:
        """Enter an event into the journal."""
        with self._telemetry:
            self._hub.journal(kind, level, subject, text)

    # ------------------------------------------------------------ engines

    def _configure(self, config: EngineConfig) -> EngineConfig:
        """A process is about to be spawned: its start is a trace from here on."""
        with self._telemetry:
            self._hub.engine_spawned(config.engine_id, config.epoch, now_ns(), new_context())
        return self._orders.configure(config)

    def _hear_engine(self, engine_id: str, epoch: int, message: FromEngine) -> None:
        if isinstance(message, EngineReady):
            self.have_been_ready.add(engine_id)
        self.engines[engine_id].hear(epoch, message)
        match message:
            case EngineStats() | EngineRecords() | Heartbeat() | EngineReady() | EngineProgress():
                self._hub.engine_message(engine_id, epoch, message)
            case _:
                pass

    def _engine_died(self, engine_id: str, epoch: int, reason: str) -> None:
        self.client.fail_engine(engine_id, epoch, reason)
        with self._telemetry:
            self._hub.engine_died(engine_id, epoch, reason)
        engine = self.engines[engine_id]
        crash = self._orders.look_into(engine, epoch, reason)
        if engine.life.intent is Intent.RUN:
            where = f"; {crash.moment}" if crash is not None and crash.moment else ""
            logger.warning("%s (epoch %d) died: %s%s", engine_id, epoch, reason, where)
            text = f"died (epoch {epoch}): {reason}{where}"
            self.journal("engine.died", "warning", engine_id, text)
            if crash is not None:
                self.journal("engine.postmortem", "warning", engine_id, crash.text)
        else:
            self.journal("engine.ended", "info", engine_id, f"ended (epoch {epoch}): {reason}")

    def _engine_changed(self, engine: ManagedEngine) -> None:
        self.dirty.set()
        row = self.row(engine)
        with self._telemetry:
            self._hub.publish_engine(row)
        self._journal_state(engine)
        self._orders.changed(engine, row)

    def _journal_state(self, engine: ManagedEngine) -> None:
        state, before = engine.life.state, self._journaled.get(engine.engine_id)
        if before is state:
            return
        self._journaled[engine.engine_id] = state
        level = _LEVELS.get(state, "info")
        self.journal(f"engine.{state}", level, engine.engine_id, engine_text(engine, before))

    # ------------------------------------------------------------ gateways

    def _hear_gateway(self, name: str, epoch: int, message: Body) -> None:
        match message:
            case GatewayHello(pid=pid):
                self.gateways[name].greeted(epoch, pid)
            case WakeEngine(engine_id=engine_id, request_id=request_id):
                self._wake(engine_id, request_id)
            case GatewayRecords():
                self._hub.gateway_records(message, name)
            case GatewayAccounts(live=live):
                self.gateways[name].live_requests = len(live)
                self._hub.gateway_accounts(message)
            case GatewayStopped():
                logger.info("%s has finished", name)
            case _:
                self.link.counts.unknown += 1

    def _wake(self, engine_id: str, request_id: str) -> None:
        engine = self.engines.get(engine_id)
        if engine is not None and self.plan.on_asleep == "wake" and not self.is_draining:
            self._orders.wake_for_request(engine, request_id)

    def _gateway_died(self, name: str, epoch: int, reason: str) -> None:
        self.link.forget(name)
        with self._telemetry:
            self._hub.gateway_died(name, epoch)
        if self.is_draining:  # the engines end too
            return
        for engine_id in self.engines:
            try:
                self.client.abort_client(engine_id, name, epoch + 1, new_context())
            except EngineClientError as error:
                logger.debug("no requests of %s to abort: %s", name, error)
        self.journal("gateway.died", "warning", name, f"died (epoch {epoch}): {reason}")

    def _gateway_changed(self, gateway: ManagedGateway) -> None:
        self.journal(f"gateway.{gateway.state}", "info", gateway.name, gateway_text(gateway))
