"""How late an event loop's timers fire: what everything else in the loop has to wait as well."""

import asyncio
from bisect import bisect_left
from typing import Final

from appliance.telemetry.accounts import Histogram
from engine.clock import now_ns
from engine.shared_ticks import until_tick
from engine.wire.stats import LAG_EDGES

INTERVAL_S: Final = 0.05
TRIVIAL_NS: Final = 2_000_000
MAX_LATE: Final = 10_000
NS_PER_S: Final = 1e9


class LoopLag:
    """Sets itself a timer every 50 ms and notes how late it is.

    It measures from when the timer was due, so a loop that is blocked for a second shows one lag of
    a second, not twenty: timers that could not be set are not made up.

    Args:
        histogram: Where lags are counted, in seconds; its edges are `LAG_EDGES`.
    """

    def __init__(self, histogram: Histogram | None = None) -> None:
        self._histogram = Histogram(LAG_EDGES) if histogram is None else histogram
        self._late_at_ns: list[int] = []
        self._late_ns: list[int] = [0]
        """Running sum of the lags before each entry of `_late_at_ns`, and after the last."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin, in the running loop; a second call changes nothing."""
        if self._timer is None:
            self._set(asyncio.get_running_loop())

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def since_ns(self, reading_ns: int) -> int:
        """Return how late timers fired since then, summed up: how long the loop was elsewhere.

        Lags that every timer has (`TRIVIAL_NS`) do not count. It reaches back for at least the last
        `MAX_LATE` late timers.
        """
        return self._late_ns[-1] - self._late_ns[bisect_left(self._late_at_ns, reading_ns)]

    def note(self, at_ns: int, lag_ns: int) -> None:
        """A timer fired at `at_ns`, this late."""
        self._histogram.observe(lag_ns / NS_PER_S)
        if lag_ns < TRIVIAL_NS:
            return
        self._late_at_ns.append(at_ns)
        self._late_ns.append(self._late_ns[-1] + lag_ns)
        if len(self._late_at_ns) > 2 * MAX_LATE:
            del self._late_at_ns[:MAX_LATE], self._late_ns[:MAX_LATE]

    def _set(self, loop: asyncio.AbstractEventLoop) -> None:
        delay_s = until_tick(INTERVAL_S)
        due_ns = now_ns() + int(delay_s * NS_PER_S)
        self._timer = loop.call_later(delay_s, self._fired, loop, due_ns)

    def _fired(self, loop: asyncio.AbstractEventLoop, due_ns: int) -> None:
        at_ns = now_ns()
        self.note(at_ns, max(0, at_ns - due_ns))
        self._set(loop)
