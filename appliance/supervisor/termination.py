"""How a child process is ended: politely, or with its stacks dumped first because it hangs.

Every way ends with a confirmed exit status: no successor starts before that.
"""

import asyncio
import signal
from collections.abc import Sequence

from appliance.supervisor.launcher.launcher import Child

Step = tuple[signal.Signals, float]
"""A signal, and how long to wait for the exit after it, seconds."""

POLITE: Sequence[Step] = ((signal.SIGTERM, 3.0), (signal.SIGKILL, 5.0))
"""Short enough that a frozen process and a dead collector together stay below the ceiling."""
HUNG: Sequence[Step] = ((signal.SIGUSR1, 2.0), (signal.SIGABRT, 2.0), (signal.SIGKILL, 5.0))
"""SIGUSR1 makes `faulthandler` write all stacks, SIGABRT may leave a core."""


async def terminate(child: Child, steps: Sequence[Step]) -> int:
    """End a process with these signals and return its exit status.

    SIGKILL cannot be refused, but a process in an uninterruptible call ends only after it: then
    this waits on, because a successor must not meet its predecessor.
    """
    for number, patience_s in steps:
        if not child.signal(number):
            break
        try:
            async with asyncio.timeout(patience_s):
                return await child.wait()
        except TimeoutError:
            continue
    return await child.wait()


def describe_exit(status: int) -> str:
    """Say an exit status: `exit code 1`, `SIGKILL`."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
