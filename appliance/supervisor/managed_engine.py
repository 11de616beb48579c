"""One engine process under supervision: carries out what its state machine asks for.

It spawns, watches, ends and restarts the process; what the machine may do next is decided in
`lifecycle`, when to restart in `restart`, whether it hangs in `health`.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from appliance.supervisor.adapter_facts import AdapterFacts
from appliance.supervisor.desired_state import StateDatabase
from appliance.supervisor.health import HealthLimits, HealthWatch
from appliance.supervisor.launcher.launcher import Child, Launcher, ProcessSpec
from appliance.supervisor.lifecycle import EngineState, Intent, Lifecycle, advance
from appliance.supervisor.lifecycle_events import (
    Backoff,
    BackoffOver,
    BecameReady,
    Died,
    Effect,
    Event,
    HeartbeatMissed,
    Hello,
    Progressed,
    ReplaySleep,
    RestartRequested,
    Spawn,
    Spawned,
    StartRequested,
    StopRequested,
    Terminate,
)
from appliance.supervisor.restart import CONFIG_ERROR_EXIT, RestartPolicy
from appliance.supervisor.termination import HUNG, POLITE, describe_exit, terminate
from appliance.supervisor.throughput import Throughput
from engine.clock import now_ns
from engine.config import EngineConfig
from engine.wire.messages import (
    EngineDead,
    EngineHello,
    EngineProgress,
    EngineReady,
    EngineStats,
    FromEngine,
    Heartbeat,
)

logger = logging.getLogger(__name__)

TAIL_LINES = 5
LAST_LINES = 60
"""Kept of a process that has ended: a dump of all its stacks fits."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What one engine shall be."""

    config: EngineConfig
    """Its epoch is replaced at each start."""
    served_names: tuple[str, ...]
    module: str = "engine"

    @property
    def engine_id(self) -> str:
        """`e0`, `e1`, ..."""
        return self.config.engine_id


@dataclass(frozen=True, slots=True)
class EngineHooks:
    """Whom a managed engine tells what."""

    expect: Callable[[str, int], None]
    """(engine id, epoch): a new epoch is about to start; accept only it."""
    died: Callable[[str, int, str], None]
    """(engine id, epoch, reason): this epoch's process is gone."""
    changed: Callable[["ManagedEngine"], None]
    """Its lifecycle has another value."""
    replay_sleep: Callable[["ManagedEngine", int], None]
    """It should sleep at this level by desired state."""
    configure: Callable[[EngineConfig], EngineConfig]
    """Fills in what is decided anew at each start; called right before the process is spawned."""


@dataclass(slots=True)
class EngineFacts:
    """What the current epoch has said about itself."""

    ready: EngineReady | None = None
    stats: EngineStats | None = None
    heartbeat: Heartbeat | None = None
    last_words: EngineDead | None = None
    throughput: Throughput = field(default_factory=Throughput)
    adapters: AdapterFacts = field(default_factory=AdapterFacts)


class ManagedEngine:
    """Supervises one engine; all methods belong to the event loop's thread."""

    def __init__(
        self,
        plan: EnginePlan,
        launcher: Launcher,
        state: StateDatabase,
        limits: HealthLimits,
        hooks: EngineHooks,
    ) -> None:
        self.plan = plan
        self.life = Lifecycle()
        self.facts = EngineFacts()
        self.since_ns = now_ns()
        self.next_start_ns: int | None = None
        self.last_start_s: float | None = None
        """How long the last successful start took."""
        self.policy = RestartPolicy(random.random)
        self.child: Child | None = None
        self.last_lines: list[str] = []
        """What the last process that ended said at its end."""
        self._launcher = launcher
        self._state = state
        self._desired_sleep_level = state.desired_sleep_level(plan.engine_id)
        self._limits = limits
        self._hooks = hooks
        self._watch = HealthWatch(limits, _now_s())
        self._spawned_ns = 0
        self._waiters: list[tuple[Callable[[Lifecycle], bool], asyncio.Future[Lifecycle]]] = []
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def engine_id(self) -> str:
        """`e0`, `e1`, ..."""
        return self.plan.engine_id

    @property
    def desired_sleep_level(self) -> int:
        """How deep it should sleep; survives restarts."""
        return self._desired_sleep_level

    @desired_sleep_level.setter
    def desired_sleep_level(self, level: int) -> None:
        if level != self._desired_sleep_level:
            self._state.set_desired_sleep_level(self.engine_id, level)
            self._desired_sleep_level = level

    @property
    def heartbeat_age_s(self) -> float | None:
        """Since its last sign of life; None without a process."""
        return _now_s() - self._watch.heard_s if self.life.is_alive else None

    # ------------------------------------------------------------ life

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Start the engine and hold its tasks until it has stopped for good."""
        self._tasks = tasks
        self.apply(StartRequested())
        await self.until(lambda life: life.state is EngineState.STOPPED)

    def restart(self) -> None:
        """Replace the process, whatever the state; earlier deaths are forgiven."""
        self.policy.forgive()
        self.apply(RestartRequested())

    def stop(self) -> None:
        """End the process and start no other."""
        self.apply(StopRequested())

    def kill(self) -> None:
        """End the process at once, for an impatient shutdown."""
        if self.child is not None:
            self.child.signal(9)

    def apply(self, event: Event) -> None:
        """Advance the state machine and carry out what it asks for."""
        before = self.life
        self.life, effects = advance(before, event)
        delays_s = [effect.delay_s for effect in effects if isinstance(effect, Backoff)]
        if delays_s:
            self.next_start_ns = now_ns() + int(delays_s[0] * 1e9)
        if self.life != before:
            self._note_change(before)
        for effect in effects:
            self._carry_out(effect)

    async def until(self, holds: Callable[[Lifecycle], bool]) -> Lifecycle:
        """Wait for a value of the lifecycle for which `holds` is true, and return it.

        By then the lifecycle may have moved on.
        """
        if holds(self.life):
            return self.life
        waiter: asyncio.Future[Lifecycle] = asyncio.get_running_loop().create_future()
        self._waiters.append((holds, waiter))
        try:
            return await waiter
        finally:
            if (holds, waiter) in self._waiters:
                self._waiters.remove((holds, waiter))

    def hear(self, epoch: int, message: FromEngine) -> None:
        """Take a message of this engine's current epoch."""
        if epoch != self.life.epoch:
            return
        now_s = _now_s()
        match message:
            case EngineHello():
                self._watch.progressed(now_s)
                self.apply(Hello())
            case EngineProgress(phase=phase, done=done, total=total, unit=unit):
                self._watch.progressed(now_s)
                self.apply(Progressed(phase, done, total, unit))
            case EngineReady():
                self._become_ready(message, now_s)
            case Heartbeat():
                self._take_heartbeat(message, now_s)
            case EngineStats():
                self._take_stats(message, now_s)
            case EngineDead():
                self.facts.last_words = message
            case _:
                pass

    def check_health(self, now_s: float, pause_s: float) -> None:
        """Act if the engine hangs; `pause_s` is how long the watcher itself was not running."""
        self._watch.excuse(pause_s)
        complaint = self._watch.complaint(self.life.state, now_s)
        if complaint is not None:
            logger.error("%s hangs: %s", self.engine_id, complaint)
            self.apply(HeartbeatMissed(complaint))

    # ------------------------------------------------------------ messages

    def _become_ready(self, message: EngineReady, now_s: float) -> None:
        self.facts.ready = message
        self.policy.ready(now_s)
        if self.life.state is EngineState.STARTING:
            self.last_start_s = (now_ns() - self._spawned_ns) / 1e9
        self.apply(BecameReady(self.desired_sleep_level))

    def _take_heartbeat(self, message: Heartbeat, now_s: float) -> None:
        self.facts.heartbeat = message
        has_work = message.running + message.waiting > 0 and not message.is_blocked
        self._watch.ticked(message.step, message.phase, has_work=has_work, now_s=now_s)
        if message.last_token_ns is not None:
            self.policy.made_token()

    def _take_stats(self, message: EngineStats, now_s: float) -> None:
        self.facts.stats = message
        self.facts.throughput.observe(now_s, message.generation_tokens)
        self._watch.stepped(message.step, message.step_seconds)

    # ------------------------------------------------------------ effects

    def _carry_out(self, effect: Effect) -> None:
        assert self._tasks is not None, "run() comes first"
        match effect:
            case Spawn():
                self._spawn()
            case Terminate(manner):
                steps = HUNG if manner == "hung" else POLITE
                assert self.child is not None
                self._tasks.create_task(terminate(self.child, steps))
            case Backoff(delay_s):
                self._tasks.create_task(self._back_off(delay_s))
            case ReplaySleep(level):
                self._hooks.replay_sleep(self, level)

    def _spawn(self) -> None:
        assert self._tasks is not None
        epoch = self._state.next_epoch(self.engine_id)
        planned = msgspec.structs.replace(self.plan.config, epoch=epoch)
        config = self._hooks.configure(planned)
        self.facts = EngineFacts()
        self._watch = HealthWatch(self._limits, _now_s())
        self._spawned_ns = now_ns()
        self._hooks.expect(self.engine_id, epoch)
        spec = ProcessSpec(
            self.engine_id, self.plan.module, msgspec.json.encode(config), epoch=epoch
        )
        try:
            self.child = self._launcher.spawn(spec)
        except OSError as error:
            self.apply(Spawned(epoch))
            self._bury(epoch, f"could not start: {error}", is_config_error=False)
            return
        self.apply(Spawned(epoch))
        self._tasks.create_task(self._watch_child(self.child, epoch))

    async def _watch_child(self, child: Child, epoch: int) -> None:
        status = await child.wait()
        self.child = None
        self.last_lines = child.tail(LAST_LINES)
        child.close()
        words = self.facts.last_words
        is_config_error = status == CONFIG_ERROR_EXIT or (
            words is not None and words.reason == "config_error"
        )
        detail = words.detail if words is not None else None
        if not detail and status > 0:  # an uncaught exception ends with the line that says it
            detail = _last_line(child)
        self._bury(epoch, describe_exit(status), is_config_error=is_config_error, detail=detail)

    def _bury(
        self, epoch: int, ended: str, *, is_config_error: bool, detail: str | None = None
    ) -> None:
        self._hooks.died(self.engine_id, epoch, f"{ended}: {detail}" if detail else ended)
        is_unwanted = self.life.intent is Intent.RUN and not is_config_error
        delay_s = self.policy.died(_now_s()) if is_unwanted else None
        self.apply(Died(ended, delay_s, is_config_error=is_config_error, detail=detail))

    async def _back_off(self, delay_s: float) -> None:
        try:
            async with asyncio.timeout(delay_s):
                await self.until(lambda life: life.state is not EngineState.BACKOFF)
        except TimeoutError:
            self.apply(BackoffOver())

    def _note_change(self, before: Lifecycle) -> None:
        if self.life.state is not before.state:
            self.since_ns = now_ns()
            self._watch.entered(_now_s())
            if self.life.state is not EngineState.BACKOFF:
                self.next_start_ns = None
        self._hooks.changed(self)
        for holds, waiter in self._waiters:
            if holds(self.life) and not waiter.done():
                waiter.set_result(self.life)


def _now_s() -> float:
    return now_ns() / 1e9


def _last_line(child: Child) -> str | None:
    lines = [line for line in child.tail(TAIL_LINES) if line.strip()]
    return lines[-1] if lines else None
