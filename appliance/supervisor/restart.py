"""When a dead engine may start again: exponential backoff that gives up on one that keeps dying."""

from collections.abc import Callable
from dataclasses import dataclass

CONFIG_ERROR_EXIT = 78
"""EX_CONFIG of sysexits.h: the process can never start like this, so it is not started again."""


@dataclass
class RestartPolicy:
    """Counts deaths in a row and gives the wait before the next start.

    The row ends when an epoch was ready for `stable_s` and made a real token: an engine that loads
    well and dies at its first request must not restart for ever.

    Args:
        random: Uniform in [0, 1); spreads the starts of engines that died together.
    """

    random: Callable[[], float]
    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    max_deaths: int = 5
    stable_s: float = 60.0
    deaths: int = 0
    _ready_s: float | None = None
    _made_token: bool = False

    def ready(self, now_s: float) -> None:
        """The current epoch can serve."""
        if self._ready_s is None:
            self._ready_s = now_s

    def made_token(self) -> None:
        """The current epoch generated a token."""
        self._made_token = True

    def died(self, now_s: float) -> float | None:
        """Count a death; return the wait before the next start, None for "stay down"."""
        if self._is_stable(now_s):
            self.deaths = 0
        self._begin_epoch()
        self.deaths += 1
        if self.deaths >= self.max_deaths:
            return None
        longest_s = min(self.first_delay_s * 2.0 ** (self.deaths - 1), self.max_delay_s)
        return longest_s * (0.5 + 0.5 * self.random())

    def forgive(self) -> None:
        """An operator wants another try: start the row anew."""
        self.deaths = 0
        self._begin_epoch()

    def _is_stable(self, now_s: float) -> bool:
        if self._ready_s is None or not self._made_token:
            return False
        return now_s - self._ready_s >= self.stable_s

    def _begin_epoch(self) -> None:
        self._ready_s = None
        self._made_token = False
