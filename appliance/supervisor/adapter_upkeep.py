"""Keeps the engines' adapters as they should be: after a start, a wake, or a call that went astray.

It also asks busy engines now and then who uses which adapter, for those who watch.
"""

import asyncio
import logging

from appliance.supervisor.adapter_sync import AdapterSync
from appliance.supervisor.adapters import is_known
from appliance.supervisor.lifecycle import EngineState
from appliance.supervisor.managed_engine import ManagedEngine
from engine.wire.header import new_context

logger = logging.getLogger(__name__)


class AdapterUpkeep:
    """Settles engines that may not have what they should.

    Args:
        sync: Reaches the engines.
        tasks: Holds what runs.
    """

    def __init__(self, sync: AdapterSync, tasks: asyncio.TaskGroup) -> None:
        self._sync = sync
        self._adapters = sync.adapters
        self._tasks = tasks
        self._settling: set[str] = set()

    def look(self) -> None:
        """Begin to settle every ready engine that needs it."""
        for engine in self._adapters.engines:
            self.look_at(engine)

    def look_at(self, engine: ManagedEngine) -> None:
        """Begin to settle an engine if it is ready and needs it; it is cheap to ask too often."""
        is_busy_with_it = engine.engine_id in self._settling
        if engine.life.state is not EngineState.READY or is_busy_with_it:
            return
        if not is_known(engine) or self._may_have_moved(engine):
            self._settling.add(engine.engine_id)
            self._tasks.create_task(self._settle(engine))

    def _may_have_moved(self, engine: ManagedEngine) -> bool:
        """Whether it lacks something, or requests may have begun or ended to use an adapter."""
        facts, stats = engine.facts.adapters, engine.facts.stats
        if self._adapters.differences(engine):
            return True
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
