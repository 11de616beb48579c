"""What an operator can ask of an engine: sleep, wake, restart, each as an operation.

A repeated verb joins the operation that runs already, or finds that nothing is to do. A verb that
does not fit the engine's state raises `ConflictError` with the actions that do.
"""

import asyncio
import logging
from typing import Literal

import msgspec

from appliance.supervisor.admin.ports import ConflictError
from appliance.supervisor.admin.schemas import Operation, Progress, SleepBody
from appliance.supervisor.lifecycle import EngineState, Intent, Lifecycle
from appliance.supervisor.lifecycle_events import (
    HeartbeatMissed,
    SleepEnded,
    SleepRequested,
    WakeEnded,
    WakeRequested,
)
from appliance.supervisor.managed_engine import ManagedEngine
from appliance.supervisor.operations import OperationRegistry
from engine.client.core_client import (
    AsyncEngineCoreClient,
    EngineClientError,
    EngineDeadError,
    UtilityTimeoutError,
)
from engine.wire.calls import Sleep, Wake

logger = logging.getLogger(__name__)

TRANSITION_S = 60.0
"""Time that a sleep may take after the last request has ended."""
WAKE_TIMEOUT_S = 600.0
"""A wake that makes no progress is ended by the hang rule long before."""
REPLAY_ACTOR = "desired-state"

_SETTLED = frozenset(
    {
        EngineState.READY,
        EngineState.ASLEEP,
        EngineState.BACKOFF,
        EngineState.CRASH_LOOP,
        EngineState.FAILED,
        EngineState.STOPPED,
    }
)


class EngineVerbs:
    """Carries out the verbs; owned by the supervisor, whose TaskGroup holds what runs."""

    def __init__(
        self, client: AsyncEngineCoreClient, registry: OperationRegistry, tasks: asyncio.TaskGroup
    ) -> None:
        self._client = client
        self._registry = registry
        self._tasks = tasks
        self._wake_wanted: dict[str, str] = {}
        """Engines that are going to sleep while a request waits for them, and its actor."""
        self._sleeping: dict[str, tuple[int, str]] = {}
        """Level and mode of each engine's newest sleep."""

    def sleep(self, engine: ManagedEngine, body: SleepBody, actor: str) -> Operation:
        """Begin to put an engine to sleep. Raises ConflictError."""
        life = engine.life
        running = self._registry.running(engine.engine_id, "sleep")
        if running is not None and life.state is EngineState.DRAINING:
            if self._sleeping.get(engine.engine_id) == (body.level, body.mode):
                return running
            raise ConflictError(
                "another sleep is under way: wait for it, or abort the requests that it waits for",
                life.state,
                life.allowed_actions,
            )
        if life.state is EngineState.ASLEEP and life.sleep_level == body.level:
            return self._registry.already_done("sleep", engine.engine_id, actor, "asleep")
        if "sleep" not in life.allowed_actions:
            raise _conflict(engine, "sleep")
        engine.desired_sleep_level = body.level
        return self._begin_sleep(engine, body, actor)

    def wake(self, engine: ManagedEngine, actor: str) -> Operation:
        """Begin to wake an engine. Raises ConflictError."""
        running = self._registry.running(engine.engine_id, "wake")
        if running is not None:
            return running
        if engine.life.state is EngineState.READY:
            engine.desired_sleep_level = 0
            return self._registry.already_done("wake", engine.engine_id, actor, "ready")
        if "wake" not in engine.life.allowed_actions:
            raise _conflict(engine, "wake")
        return self._begin_wake(engine, actor)

    def restart(self, engine: ManagedEngine, actor: str) -> Operation:
        """Begin to restart an engine; `crash_loop` and `failed` end too. Raises ConflictError."""
        running = self._registry.running(engine.engine_id, "restart")
        if running is not None:
            return running
        if "restart" not in engine.life.allowed_actions:
            raise _conflict(engine, "restart")
        operation = self._registry.begin("restart", engine.engine_id, actor)
        old_epoch = engine.life.epoch
        engine.restart()
        self._tasks.create_task(self._follow_restart(engine, operation.id, old_epoch))
        return operation

    def wake_for_request(self, engine: ManagedEngine, request_id: str) -> None:
        """A request waits for this engine: wake it, or keep it from going back to sleep.

        Never refused: an engine that is about to sleep wakes right after, and one that starts or
        is down will not be put to sleep by desired state.
        """
        actor = f"request:{request_id}"
        if engine.life.state is EngineState.ASLEEP:
            self.wake(engine, actor)
        elif engine.life.state is EngineState.DRAINING and engine.life.intent is Intent.RUN:
            self._wake_wanted.setdefault(engine.engine_id, actor)
        elif engine.life.state is not EngineState.READY:
            engine.desired_sleep_level = 0

    def replay_sleep(self, engine: ManagedEngine, level: int) -> None:
        """Put a restarted engine back to sleep, as desired state says."""
        deep: Literal[1, 2] = 2 if level == 2 else 1  # noqa: PLR2004
        self._begin_sleep(engine, SleepBody(level=deep, timeout_s=TRANSITION_S), REPLAY_ACTOR)

    def note_change(self, engine: ManagedEngine) -> None:
        """Show the engine's progress in its running operation."""
        operation = self._registry.running(engine.engine_id)
        if operation is not None and not operation.kind.startswith(("lora.", "profile")):
            life = engine.life
            self._registry.update(operation.id, phase=life.phase, progress=progress_of(life))

    # ------------------------------------------------------------ sleep

    def _begin_sleep(self, engine: ManagedEngine, body: SleepBody, actor: str) -> Operation:
        operation = self._registry.begin("sleep", engine.engine_id, actor)
        self._sleeping[engine.engine_id] = (body.level, body.mode)
        engine.apply(SleepRequested())
        self._tasks.create_task(self._run_sleep(engine, body, operation.id))
        return operation

    async def _run_sleep(self, engine: ManagedEngine, body: SleepBody, operation_id: str) -> None:
        call = Sleep(level=body.level, mode=body.mode, timeout_s=body.timeout_s)
        try:
            report = await self._client.call(
                engine.engine_id,
                call,
                timeout_s=body.timeout_s + TRANSITION_S,
                context=self._registry.context(operation_id),
            )
        except UtilityTimeoutError as error:
            engine.desired_sleep_level = 0  # else its successor would try the same again
            self._lost_track(engine, operation_id, str(error))
            return
        except EngineDeadError as error:
            self._died_asleep(engine, operation_id, str(error))
            return
        except EngineClientError as error:
            self._sleep_failed(engine, operation_id, str(error))
            return
        engine.apply(SleepEnded(report.level))
        self._registry.finish(operation_id, msgspec.to_builtins(report))
        self._wake_if_wanted(engine)

    def _sleep_failed(self, engine: ManagedEngine, operation_id: str, error: str) -> None:
        """It said no and serves on."""
        engine.desired_sleep_level = 0
        engine.apply(SleepEnded(0, error))
        self._wake_wanted.pop(engine.engine_id, None)
        self._registry.fail(operation_id, error)

    def _died_asleep(self, engine: ManagedEngine, operation_id: str, error: str) -> None:
        """The wish outlives the process, unless a request waits for it."""
        if self._wake_wanted.pop(engine.engine_id, None) is not None:
            engine.desired_sleep_level = 0
        self._registry.fail(operation_id, error)

    def _wake_if_wanted(self, engine: ManagedEngine) -> None:
        actor = self._wake_wanted.pop(engine.engine_id, None)
        if actor is not None and engine.life.state is EngineState.ASLEEP:
            self.wake(engine, actor)

    # ------------------------------------------------------------ wake

    def _begin_wake(self, engine: ManagedEngine, actor: str) -> Operation:
        engine.desired_sleep_level = 0
        operation = self._registry.begin("wake", engine.engine_id, actor)
        engine.apply(WakeRequested())
        self._tasks.create_task(self._run_wake(engine, operation.id))
        return operation

    async def _run_wake(self, engine: ManagedEngine, operation_id: str) -> None:
        context = self._registry.context(operation_id)
        try:
            report = await self._client.call(
                engine.engine_id, Wake(), timeout_s=WAKE_TIMEOUT_S, context=context
            )
        except UtilityTimeoutError as error:
            self._lost_track(engine, operation_id, str(error))
            return
        except EngineClientError as error:
            if not isinstance(error, EngineDeadError):
                engine.apply(WakeEnded(str(error)))
            self._registry.fail(operation_id, str(error))
            return
        if not report.canary_ok:
            self._registry.fail(operation_id, "its first token is another than at the start")
            engine.restart()
            return
        engine.apply(WakeEnded())
        self._registry.finish(operation_id, msgspec.to_builtins(report))

    # ------------------------------------------------------------ restart

    async def _follow_restart(
        self, engine: ManagedEngine, operation_id: str, old_epoch: int
    ) -> None:
        def has_settled(life: Lifecycle) -> bool:
            is_new = life.epoch > old_epoch or life.state is EngineState.STOPPED
            return is_new and life.state in _SETTLED

        life = await engine.until(has_settled)
        if life.state in (EngineState.READY, EngineState.ASLEEP):
            self._registry.finish(operation_id, {"epoch": life.epoch})
        else:
            self._registry.fail(operation_id, f"{life.state}: {life.reason or life.last_exit}")

    def _lost_track(self, engine: ManagedEngine, operation_id: str, error: str) -> None:
        """After a time-out nobody knows what the engine did: only a new process is certain."""
        self._registry.fail(operation_id, error)
        engine.apply(HeartbeatMissed(error))


def progress_of(life: Lifecycle) -> Progress | None:
    """Return how far a start or wake is, None when there is nothing to measure."""
    if life.total <= 0:
        return None
    return Progress(done=life.done, total=life.total, unit=life.unit)


def _conflict(engine: ManagedEngine, verb: str) -> ConflictError:
    life = engine.life
    detail = f" at level {life.sleep_level}" if life.state is EngineState.ASLEEP else ""
    message = f"{engine.engine_id} is {life.state}{detail}: it cannot {verb} now"
    return ConflictError(message, life.state, life.allowed_actions)
