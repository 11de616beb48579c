"""What the supervisor needs of a place where processes run; `local` is one, others may follow."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

OnLine = Callable[[str, str], None]
"""Called with (process name, line) for each line a child writes."""
OnStart = Callable[[str, int], None]
"""Called with (process name, epoch) before a child can write anything."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process to start: `python -m MODULE --config-fd N --parent-fd M`."""

    name: str
    """`e0`, `gateway-0`, ...; prefixes its log lines."""
    module: str
    config: bytes = field(repr=False)
    """JSON, written to the configuration descriptor."""
    inherited_fds: tuple[int, ...] = ()
    """Kept open in the child under the same numbers, for example listening sockets."""
    epoch: int = 0
    """Which start of it; what it writes is attributed to it."""


class Child(Protocol):
    """A process that was started and, until `wait` has returned, not yet reaped."""

    @property
    def name(self) -> str:
        """Name of its specification."""
        ...

    @property
    def pid(self) -> int:
        """Process id."""
        ...

    @property
    def returncode(self) -> int | None:
        """Exit code, -signal, or None while it runs."""
        ...

    def signal(self, number: int) -> bool:
        """Send a signal to exactly this process; false when it is gone."""
        ...

    async def wait(self) -> int:
        """Return the confirmed exit status; several may wait."""
        ...

    def tail(self, lines: int) -> list[str]:
        """Return what it said in its last lines, without secrets."""
        ...

    def close(self) -> None:
        """Give its descriptors back; only after `wait`."""
        ...


class Launcher(Protocol):
    """Starts processes."""

    def spawn(self, spec: ProcessSpec) -> Child:
        """Start a process. Raises OSError."""
        ...
