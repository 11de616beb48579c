"""Forgets an engine's cached prefixes, as an operation."""

import asyncio

import msgspec

from appliance.supervisor.admin.ports import ConflictError
from appliance.supervisor.admin.schemas import Operation
from appliance.supervisor.lifecycle import EngineState
from appliance.supervisor.managed_engine import ManagedEngine
from appliance.supervisor.operations import OperationRegistry
from engine.client.core_client import AsyncEngineCoreClient, EngineClientError
from engine.wire.calls import ResetPrefixCache

KIND = "reset-prefix-cache"
TIMEOUT_S = 30.0


class CacheVerbs:
    """Carries out the verb; owned by the supervisor, whose TaskGroup holds what runs."""

    def __init__(
        self, client: AsyncEngineCoreClient, registry: OperationRegistry, tasks: asyncio.TaskGroup
    ) -> None:
        self._client = client
        self._registry = registry
        self._tasks = tasks

    def reset(self, engine: ManagedEngine, actor: str) -> Operation:
        """Begin to forget the cached prefixes of an engine. Raises ConflictError."""
        running = self._registry.running(engine.engine_id, KIND)
        if running is not None:
            return running
        life = engine.life
        if life.state is EngineState.ASLEEP:
            return self._registry.already_done(KIND, engine.engine_id, actor, "asleep")
        if life.state is not EngineState.READY:
            message = f"{engine.engine_id} is {life.state}: it has no prefix cache to reset now"
            raise ConflictError(message, life.state, life.allowed_actions)
        operation = self._registry.begin(KIND, engine.engine_id, actor)
        self._tasks.create_task(self._run(engine, operation.id))
        return operation

    async def _run(self, engine: ManagedEngine, operation_id: str) -> None:
        context = self._registry.context(operation_id)
        try:
            report = await self._client.call(
                engine.engine_id, ResetPrefixCache(), timeout_s=TIMEOUT_S, context=context
            )
        except EngineClientError as error:
            self._registry.fail(operation_id, str(error))
            return
        self._registry.finish(operation_id, msgspec.to_builtins(report))
