"""Who a process is: its pid together with its start time, because pids are used again."""

import os
import signal
from pathlib import Path
from typing import NamedTuple

_STATE_FIELD = 0
_START_TIME_FIELD = 19
"""Of /proc/PID/stat, counted from the first field after the name; see proc_pid_stat(5)."""


class ProcessIdentity(NamedTuple):
    """Names one process of this boot for ever."""

    pid: int
    start_ticks: int
    """Clock ticks after boot."""


def identity_of(pid: int) -> ProcessIdentity | None:
    """Return the identity of a running or unreaped process, None when there is none."""
    fields = _stat(pid)
    return None if fields is None else ProcessIdentity(pid, int(fields[_START_TIME_FIELD]))


def is_running(identity: ProcessIdentity) -> bool:
    """Whether exactly this process still runs; one that only waits to be reaped does not."""
    fields = _stat(identity.pid)
    if fields is None or fields[_STATE_FIELD] in (b"Z", b"X"):
        return False
    return int(fields[_START_TIME_FIELD]) == identity.start_ticks


def kill_exactly(identity: ProcessIdentity, number: int = signal.SIGKILL) -> bool:
    """Signal exactly this process, without a race against a new owner of its pid."""
    try:
        pidfd = os.pidfd_open(identity.pid)
    except OSError:
        return False
    try:
        if not is_running(identity):
            return False
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


def _stat(pid: int) -> list[bytes] | None:
    """Return the fields of /proc/PID/stat after the name, which may hold blanks and brackets."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return stat[stat.rindex(b")") + 2 :].split()
