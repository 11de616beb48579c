"""The supervisor's part for LoRA adapters: verbs, and engines that have what they should have.

An engine is settled after a start, a wake, or a call that went astray. Busy ones are also asked now
and then who uses which adapter, for those who watch.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from appliance.supervisor.adapter_sync import AdapterHooks, AdapterSync
from appliance.supervisor.adapter_verbs import AdapterVerbs
from appliance.supervisor.adapters import is_known
from appliance.supervisor.admin.ports import ConflictError
from appliance.supervisor.admin.schemas import AdapterRow, LoadAdapterBody, Operation
from appliance.supervisor.fleet import Fleet
from appliance.supervisor.lifecycle import EngineState
from appliance.supervisor.managed_engine import ManagedEngine
from appliance.supervisor.operations import OperationRegistry
from appliance.telemetry.hub import Hub
from engine.wire.header import new_context

logger = logging.getLogger(__name__)

REFRESH_S = 5.0
"""Between two looks at what busy engines have."""


class AdapterControl:
    """What the admin API can do with adapters, and what keeps them right.

    Args:
        fleet: Has the engines and the desired adapters.
        hub: Is told of each changed row.
        registry: Of operations.
        tell_gateways: Awaited before an operation ends.
    """

    def __init__(
        self,
        fleet: Fleet,
        hub: Hub,
        registry: OperationRegistry,
        tell_gateways: Callable[[], Awaitable[None]],
    ) -> None:
        self._fleet = fleet
        self._hub = hub
        self._registry = registry
        hooks = AdapterHooks(fleet.journal, fleet.dirty.set, tell_gateways)
        roots = fleet.plan.adapter_roots
        self._sync = AdapterSync(fleet.adapters, fleet.client, roots, hooks)
        self._tasks: asyncio.TaskGroup | None = None
        self._verbs: AdapterVerbs | None = None
        self._settling: set[str] = set()
        self._published: dict[str, AdapterRow] = {}

    def open(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to take orders; `tasks` holds what runs."""
        self._tasks = tasks
        self._verbs = AdapterVerbs(self._sync, self._registry, tasks, self._look)

    async def run(self) -> None:
        """Look after the engines until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_S)
            self._look()

    def engine_changed(self, engine: ManagedEngine) -> None:
        """Begin to settle an engine if it is ready and needs it; it is cheap to ask too often."""
        is_ready = engine.life.state is EngineState.READY and not self._fleet.is_draining
        if self._tasks is None or not is_ready or engine.engine_id in self._settling:
            return
        if not is_known(engine) or self._may_have_moved(engine):
            self._settling.add(engine.engine_id)
            self._tasks.create_task(self._settle(engine))

    def _look(self) -> None:
        for engine in self._fleet.engines.values():
            self.engine_changed(engine)

    def _may_have_moved(self, engine: ManagedEngine) -> bool:
        """Whether it lacks something, or requests may have begun or ended to use an adapter."""
        facts, stats = engine.facts.adapters, engine.facts.stats
        if self._fleet.adapters.differences(engine):
            return True
        if any(state.running_requests for state in facts.held.values()):
            return True  # an abort ends them without a step
        return bool(facts.held) and stats is not None and stats.step != facts.listed_step

    async def _settle(self, engine: ManagedEngine) -> None:
        try:
            async with self._sync.alone_on([engine]):
                if engine.life.state is EngineState.READY:
                    await self._sync.settle(engine, new_context())
        except Exception:
            logger.exception("the adapters of %s could not be settled", engine.engine_id)
        finally:
            self._settling.discard(engine.engine_id)

    def rows(self) -> list[AdapterRow]:
        """All adapters, by name."""
        return self._fleet.adapters.rows()

    async def load(self, name: str, body: LoadAdapterBody, actor: str) -> Operation:
        """Check an adapter, then begin to load it; see `FleetControl`."""
        return await self._open_verbs().load(name, body, actor)

    def unload(self, name: str, actor: str) -> Operation:
        """Begin to unload an adapter; see `FleetControl`."""
        return self._open_verbs().unload(name, actor)

    def pin(self, name: str, actor: str, *, pinned: bool) -> Operation:
        """Begin to pin or unpin an adapter; see `FleetControl`."""
        return self._open_verbs().pin(name, actor, pinned=pinned)

    def _open_verbs(self) -> AdapterVerbs:
        if self._verbs is None or self._fleet.is_draining:
            raise ConflictError("the appliance is shutting down", "draining", [])
        return self._verbs

    def publish(self) -> None:
        """Tell the event stream which rows are others than before."""
        before = self._published
        self._published = {row.name: row for row in self.rows()}
        for name, row in self._published.items():
            if before.get(name) != row:
                self._hub.publish_adapter(row)
        for name in before.keys() - self._published.keys():
            self._hub.publish_adapter(before[name].model_copy(update={"state": "removed"}))
