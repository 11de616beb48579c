"""What can happen to an engine, and what its state machine asks for in return: plain values."""

from dataclasses import dataclass
from typing import Literal

# ---------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class StartRequested:
    """The appliance begins."""


@dataclass(frozen=True, slots=True)
class Spawned:
    """A process of a new epoch runs."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Hello:
    """The engine's first message: it imports its libraries."""


@dataclass(frozen=True, slots=True)
class Progressed:
    """A start or a wake got further."""

    phase: str
    done: int
    total: int
    unit: str = "bytes"


@dataclass(frozen=True, slots=True)
class BecameReady:
    """The engine can serve; `desired_sleep_level` is what it should be doing instead."""

    desired_sleep_level: int = 0


@dataclass(frozen=True, slots=True)
class Died:
    """The process is gone, confirmed by its exit status."""

    exit: str
    """Readable: `exit code 78`, `SIGKILL`."""
    delay_s: float | None
    """Wait before the next start; None: the restart policy says stay down."""
    is_config_error: bool = False
    detail: str | None = None
    """The engine's last words or last line of output."""


@dataclass(frozen=True, slots=True)
class HeartbeatMissed:
    """The engine hangs."""

    complaint: str


@dataclass(frozen=True, slots=True)
class SleepRequested:
    """Go to sleep."""


@dataclass(frozen=True, slots=True)
class SleepEnded:
    """The engine sleeps at `level`, or refused (`error`) and serves on."""

    level: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class WakeRequested:
    """Wake up."""


@dataclass(frozen=True, slots=True)
class WakeEnded:
    """The engine serves again, or could not wake (`error`)."""

    error: str | None = None


@dataclass(frozen=True, slots=True)
class RestartRequested:
    """An operator wants a new process, whatever the state."""


@dataclass(frozen=True, slots=True)
class BackoffOver:
    """The wait after a death has passed."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The appliance ends."""


Event = (
    StartRequested
    | Spawned
    | Hello
    | Progressed
    | BecameReady
    | Died
    | HeartbeatMissed
    | SleepRequested
    | SleepEnded
    | WakeRequested
    | WakeEnded
    | RestartRequested
    | BackoffOver
    | StopRequested
)

# --------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Spawn:
    """Issue an epoch and start a process."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """End the process: politely first, or after dumping its stacks because it hangs."""

    manner: Literal["polite", "hung"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Wait, then report `BackoffOver`."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class ReplaySleep:
    """The engine should sleep by desired state: put it back to sleep."""

    level: int


Effect = Spawn | Terminate | Backoff | ReplaySleep
