"""The one clock of all processes: CLOCK_MONOTONIC in nanoseconds.

On Linux its readings are comparable between processes of one host, so a hop's duration is a
plain difference. Only the telemetry hub turns them into wall-clock time, with one offset.
"""

import time


def now_ns() -> int:
    """Return the current CLOCK_MONOTONIC reading, nanoseconds."""
    return time.monotonic_ns()
