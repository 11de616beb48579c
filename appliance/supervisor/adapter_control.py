"""The supervisor's part for LoRA adapters: puts it together and tells everybody of changes."""

import asyncio
from collections.abc import Awaitable, Callable

from appliance.supervisor.adapter_sync import AdapterHooks, AdapterSync
from appliance.supervisor.adapter_upkeep import AdapterUpkeep
from appliance.supervisor.adapter_verbs import AdapterRules, AdapterVerbs
from appliance.supervisor.admin.ports import ConflictError
from appliance.supervisor.admin.schemas import AdapterRow, LoadAdapterBody, Operation
from appliance.supervisor.fleet import Fleet
from appliance.supervisor.managed_engine import ManagedEngine
from appliance.supervisor.operations import OperationRegistry
from appliance.telemetry.hub import Hub

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
        hooks = AdapterHooks(fleet.journal, self._changed, tell_gateways)
        roots = fleet.plan.adapter_roots
        self._sync = AdapterSync(fleet.adapters, fleet.client, roots, hooks)
        self._verbs: AdapterVerbs | None = None
        self._upkeep: AdapterUpkeep | None = None
        self._published: dict[str, AdapterRow] = {}

    def open(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to take orders; `tasks` holds what runs."""
        rules = AdapterRules(self._fleet.plan.adapter_roots)
        self._upkeep = AdapterUpkeep(self._sync, tasks)
        self._verbs = AdapterVerbs(self._sync, self._upkeep, self._registry, tasks, rules)

    async def run(self) -> None:
        """Look after the engines until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_S)
            for engine in self._fleet.adapters.engines:
                self.engine_changed(engine)

    def engine_changed(self, engine: ManagedEngine) -> None:
        """An engine may have started, woken, slept or died."""
        if self._upkeep is not None and not self._fleet.is_draining:
            self._upkeep.look_at(engine)
        self._publish()

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

    def _changed(self) -> None:
        self._fleet.dirty.set()
        self._publish()

    def _publish(self) -> None:
        """Tell the event stream which rows are others than before."""
        before = self._published
        self._published = {row.name: row for row in self.rows()}
        for name, row in self._published.items():
            if before.get(name) != row:
                self._hub.publish_adapter(row)
        for name in before.keys() - self._published.keys():
            self._hub.publish_adapter(before[name].model_copy(update={"state": "removed"}))
