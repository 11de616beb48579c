"""Makes engines and gateways record what the hub's switches say, after a restart too.

Gateways get it with the fleet's state; engines are told by a call, and a new epoch starts with it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from appliance.control_link.messages import Recording
from appliance.supervisor.lifecycle import EngineState
from appliance.supervisor.managed_engine import ManagedEngine
from engine.client.core_client import AsyncEngineCoreClient, EngineClientError
from engine.wire.calls import SetRecording
from engine.wire.header import new_context

logger = logging.getLogger(__name__)

CALL_TIMEOUT_S = 10.0
RETRY_S = 1.0
_LISTENING = frozenset({EngineState.READY, EngineState.ASLEEP})


class RecordingSwitch:
    """Holds what is to be recorded and sees to it.

    Args:
        client: Speaks to the engines.
        engines: All of them, by id.
        changed: Called when gateways have to be told.
    """

    def __init__(
        self,
        client: AsyncEngineCoreClient,
        engines: Mapping[str, ManagedEngine],
        changed: Callable[[], None],
    ) -> None:
        self.state = Recording()
        self._client = client
        self._engines = engines
        self._changed = changed
        self._told: dict[str, tuple[int, bool]] = {}
        self._due = asyncio.Event()

    def set(self, *, recording: bool, content: bool) -> None:
        """Record this from now on."""
        self.state = Recording(enabled=recording, content=content)
        self._changed()
        self._due.set()

    def spawned(self, engine_id: str, epoch: int) -> bool:
        """A new epoch starts; return whether it records from the start."""
        self._told[engine_id] = (epoch, self.state.enabled)
        return self.state.enabled

    def engine_changed(self) -> None:
        """An engine may have become able to listen."""
        self._due.set()

    async def run(self) -> None:
        """Tell engines what they do not know yet, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            behind = [engine for engine in self._engines.values() if self._is_behind(engine)]
            told = [await self._tell(engine) for engine in behind]
            if not all(told):
                await asyncio.sleep(RETRY_S)
                self._due.set()

    def _is_behind(self, engine: ManagedEngine) -> bool:
        wanted = (engine.life.epoch, self.state.enabled)
        return engine.life.state in _LISTENING and self._told.get(engine.engine_id) != wanted

    async def _tell(self, engine: ManagedEngine) -> bool:
        epoch, call = engine.life.epoch, SetRecording(recording=self.state.enabled)
        try:
            answer = await self._client.call(
                engine.engine_id, call, timeout_s=CALL_TIMEOUT_S, context=new_context()
            )
        except EngineClientError as error:
            logger.warning("%s was not told what to record: %s", engine.engine_id, error)
            return False
        self._told[engine.engine_id] = (epoch, answer.recording)
        return True
