"""Whether a living engine hangs: a pure rule over its heartbeats, its steps and its progress.

Liveness (the process exists) is the pidfd's business; this is about a process that exists and does
nothing.
"""

from dataclasses import dataclass

from appliance.supervisor.lifecycle import EngineState

STEP_MULTIPLE = 20.0
"""A step may take this many times the slowest one seen before it counts as stuck."""
PROFILE_PHASE = "profile"
"""An engine that computes a profile's end stands still for long; it says so beforehand."""


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """How long silence may last, seconds."""

    hang_s: float = 10.0
    start_timeout_s: float = 600.0
    """Between two signs of progress while the engine starts."""
    transition_s: float = 60.0
    """Between two signs of life while it goes to sleep or wakes."""


class HealthWatch:
    """Remembers the signs of life of one epoch and says when they have been missing too long."""

    def __init__(self, limits: HealthLimits, now_s: float) -> None:
        self._limits = limits
        self._sign_s = now_s
        self._progress_s = now_s
        self._heard_s = now_s
        self._phase: str | None = None
        self._step = -1
        self._step_s = now_s
        self._has_work = False
        self._slowest_step_s = 0.0
        self._last_steps = (0, 0.0)

    @property
    def heard_s(self) -> float:
        """When the last heartbeat or progress came."""
        return self._heard_s

    def progressed(self, now_s: float) -> None:
        """A start or wake got further."""
        self._sign_s = self._progress_s = self._heard_s = now_s

    def ticked(self, step: int, phase: str, *, has_work: bool, now_s: float) -> None:
        """A heartbeat of the engine's loop came."""
        self._sign_s = self._heard_s = now_s
        if phase != self._phase:
            self._progress_s = now_s
        if step != self._step or phase != self._phase or not (has_work and self._has_work):
            self._step_s = now_s
        self._step, self._phase, self._has_work = step, phase, has_work

    def stepped(self, steps: int, step_seconds: float) -> None:
        """Cumulative steps and the time spent in them, from the engine's statistics."""
        last_steps, last_seconds = self._last_steps
        if steps > last_steps:
            mean_s = (step_seconds - last_seconds) / (steps - last_steps)
            self._slowest_step_s = max(self._slowest_step_s, mean_s)
        self._last_steps = (steps, step_seconds)

    def entered(self, now_s: float) -> None:
        """The engine's state changed: its new budget begins."""
        self._sign_s = self._progress_s = self._step_s = now_s

    def excuse(self, pause_s: float) -> None:
        """The watcher itself was not running for `pause_s`: that silence is not the engine's."""
        self._sign_s += pause_s
        self._progress_s += pause_s
        self._step_s += pause_s

    def complaint(self, state: EngineState, now_s: float) -> str | None:
        """Say why the engine counts as hanging in this state, or None."""
        silence_s = now_s - self._sign_s
        match state:
            case EngineState.STARTING:
                stuck_s = now_s - self._progress_s  # a tick alone is no progress
                return _over(stuck_s, self._limits.start_timeout_s, "no progress of its start")
            case EngineState.WAKING | EngineState.DRAINING:
                return _over(silence_s, self._limits.transition_s, "no sign of life")
            case EngineState.READY | EngineState.ASLEEP:
                return self._complaint_of_loop(silence_s, now_s)
            case _:
                return None

    def _complaint_of_loop(self, silence_s: float, now_s: float) -> str | None:
        limit_s = max(self._limits.hang_s, STEP_MULTIPLE * self._slowest_step_s)
        if self._phase == PROFILE_PHASE:
            limit_s = max(limit_s, self._limits.transition_s)
        silent = _over(silence_s, limit_s, "no tick of its loop")
        if silent or not self._has_work:
            return silent
        return _over(now_s - self._step_s, limit_s, "work waits and no step was made")


def _over(passed_s: float, limit_s: float, what: str) -> str | None:
    return f"{what} for {passed_s:.1f} s" if passed_s > limit_s else None
