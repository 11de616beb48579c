"""Periodic work of one process at the same moments: an idle process wakes once for all of it.

To wake costs more than most of what is done then, and takes a core from who computes.
"""

import time


def until_tick(interval_s: float) -> float:
    """Return the seconds to a whole multiple of `interval_s` on the monotonic clock.

    It is the one that is nearest to an interval from now: timers fire a little early or late.
    """
    left_s = interval_s - time.monotonic() % interval_s
    return left_s if left_s > interval_s / 2 else left_s + interval_s
