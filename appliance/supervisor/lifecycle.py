"""The life of one engine as a pure state machine: events in, the next value and effects out.

Nothing here touches a process, a socket or a clock; `managed_engine` carries the effects out.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

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
    SleepEnded,
    SleepRequested,
    Spawn,
    Spawned,
    StartRequested,
    StopRequested,
    Terminate,
    WakeEnded,
    WakeRequested,
)


class EngineState(StrEnum):
    """Where an engine is; the names are those of the admin API."""

    STARTING = "starting"
    READY = "ready"
    ASLEEP = "asleep"
    WAKING = "waking"
    DRAINING = "draining"
    """It takes no new requests: it goes to sleep, restarts or stops."""
    STOPPED = "stopped"
    BACKOFF = "backoff"
    CRASH_LOOP = "crash_loop"
    FAILED = "failed"
    """It can never start with this configuration."""


ALIVE = frozenset(
    {
        EngineState.STARTING,
        EngineState.READY,
        EngineState.ASLEEP,
        EngineState.WAKING,
        EngineState.DRAINING,
    }
)
"""States in which there is a process."""


HUNG = "hung"
"""Phase of an engine that is being ended because it hangs."""


class Intent(StrEnum):
    """What shall follow the death of the process."""

    RUN = "run"
    RESTART = "restart"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """Where one engine is; `done` of `total` are done of `phase` while it starts or wakes."""

    state: EngineState = EngineState.STOPPED
    intent: Intent = Intent.RUN
    phase: str | None = None
    done: int = 0
    total: int = 0
    unit: str = "bytes"
    reason: str | None = None
    epoch: int = 0
    sleep_level: int = 0
    starts: int = 0
    last_exit: str | None = None

    @property
    def is_alive(self) -> bool:
        """Whether there is a process."""
        return self.state in ALIVE

    @property
    def restarts(self) -> int:
        """Starts after the first."""
        return max(0, self.starts - 1)

    @property
    def allowed_actions(self) -> list[str]:
        """The verbs that this state takes."""
        if self.intent is not Intent.RUN:
            return []
        return list(_ACTIONS.get(self.state, ("restart",)))


_ACTIONS: dict[EngineState, tuple[str, ...]] = {
    EngineState.READY: ("sleep", "restart"),
    EngineState.ASLEEP: ("wake", "restart"),
}

Outcome = tuple[Lifecycle, tuple[Effect, ...]]


def advance(now: Lifecycle, event: Event) -> Outcome:
    """Return what follows from `event`. An event that does not fit the state changes nothing."""
    match event:
        case StartRequested() | BackoffOver() | Spawned():
            return _begin(now, event)
        case Hello() | Progressed() | BecameReady():
            return _hear(now, event)
        case SleepRequested() | SleepEnded() | WakeRequested() | WakeEnded():
            return _rest(now, event)
        case Died() | HeartbeatMissed():
            return _fall(now, event)
        case RestartRequested() | StopRequested():
            return _end(now, event)


def _begin(now: Lifecycle, event: StartRequested | BackoffOver | Spawned) -> Outcome:
    match event, now.state:
        case (StartRequested(), EngineState.STOPPED) | (BackoffOver(), EngineState.BACKOFF):
            return _spawn(now)
        case Spawned(epoch), EngineState.STARTING:
            return replace(now, epoch=epoch, starts=now.starts + 1, phase="spawn"), ()
        case _:
            return now, ()


def _hear(now: Lifecycle, event: Hello | Progressed | BecameReady) -> Outcome:
    match event, now.state:
        case Hello(), EngineState.STARTING:
            return replace(now, phase="import", done=0, total=0), ()
        case Progressed(phase, done, total, unit), EngineState.STARTING | EngineState.WAKING:
            return replace(now, phase=phase, done=done, total=total, unit=unit), ()
        case BecameReady(level), EngineState.STARTING:
            ready = replace(_calm(now), state=EngineState.READY, sleep_level=0)
            return ready, (ReplaySleep(level),) if level else ()
        case _:
            return now, ()


def _rest(
    now: Lifecycle, event: SleepRequested | SleepEnded | WakeRequested | WakeEnded
) -> Outcome:
    if now.intent is not Intent.RUN or now.phase == HUNG:
        return now, ()
    after = now
    match event, now.state:
        case SleepRequested(), EngineState.READY:
            after = replace(_calm(now), state=EngineState.DRAINING, phase="sleep")
        case WakeRequested(), EngineState.ASLEEP:
            after = replace(_calm(now), state=EngineState.WAKING, phase="wake")
        case SleepEnded(level, error), EngineState.DRAINING:
            after = _rested(now, 0 if error else level, error)
        case WakeEnded(error), EngineState.WAKING:
            after = _rested(now, now.sleep_level if error else 0, error)
        case _:
            pass
    return after, ()


def _rested(now: Lifecycle, level: int, error: str | None) -> Lifecycle:
    """Settle after a sleep or a wake. Only an engine that could not wake keeps the reason.

    One that could not sleep serves as before; the operation says why it did not.
    """
    state = EngineState.ASLEEP if level else EngineState.READY
    return replace(_calm(now), state=state, sleep_level=level, reason=error if level else None)


def _fall(now: Lifecycle, event: Died | HeartbeatMissed) -> Outcome:
    if not now.is_alive:
        return now, ()
    if isinstance(event, Died):
        return _die(now, event)
    if now.intent is not Intent.RUN or now.phase == HUNG:
        return now, ()  # it is being ended already
    hung = replace(_calm(now), state=EngineState.DRAINING, phase=HUNG, reason=event.complaint)
    return hung, (Terminate("hung"),)


def _die(now: Lifecycle, event: Died) -> Outcome:
    last_exit = _last_exit(now, event)
    # a configuration error is known by its words; its exit code tells nobody anything
    reason = event.detail if event.is_config_error and event.detail else last_exit
    dead = replace(_calm(now), last_exit=last_exit, reason=reason, sleep_level=0)
    if now.intent is Intent.RESTART:
        return _spawn(dead)
    if now.intent is Intent.STOP:
        return replace(dead, state=EngineState.STOPPED), ()
    if event.delay_s is not None and not event.is_config_error:
        return replace(dead, state=EngineState.BACKOFF), (Backoff(event.delay_s),)
    state = EngineState.FAILED if event.is_config_error else EngineState.CRASH_LOOP
    return replace(dead, state=state), ()


def _last_exit(now: Lifecycle, event: Died) -> str:
    if now.phase == HUNG:
        return f"hung: {now.reason}; ended by {event.exit}"
    return f"{event.exit}: {event.detail}" if event.detail else event.exit


def _end(now: Lifecycle, event: RestartRequested | StopRequested) -> Outcome:
    stops = isinstance(event, StopRequested)
    if not now.is_alive:
        return (replace(now, state=EngineState.STOPPED), ()) if stops else _spawn(now)
    intent = Intent.STOP if stops else Intent.RESTART
    if now.intent in (intent, Intent.STOP):
        return now, ()
    ends = replace(_calm(now), state=EngineState.DRAINING, intent=intent, phase=intent.value)
    return ends, (Terminate("polite"),)


def _spawn(now: Lifecycle) -> Outcome:
    starting = replace(_calm(now), state=EngineState.STARTING, intent=Intent.RUN, phase="spawn")
    return replace(starting, reason=now.reason), (Spawn(),)


def _calm(now: Lifecycle) -> Lifecycle:
    return replace(now, phase=None, done=0, total=0, unit="bytes", reason=None)
