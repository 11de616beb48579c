"""A rate from a cumulative count, over a short sliding window."""

from collections import deque


class Throughput:
    """Tokens per second over the last `window_s`."""

    def __init__(self, window_s: float = 3.0) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, int]] = deque()

    def observe(self, now_s: float, count: int) -> None:
        """Take a reading of the cumulative count."""
        self._samples.append((now_s, count))
        while len(self._samples) > 2 and now_s - self._samples[1][0] >= self._window_s:  # noqa: PLR2004
            self._samples.popleft()

    def per_second(self, now_s: float) -> float:
        """Return the rate; it falls to zero when readings stop changing."""
        if not self._samples or now_s - self._samples[-1][0] > self._window_s:
            return 0.0
        first_s, first = self._samples[0]
        last_s, last = self._samples[-1]
        return max(0.0, (last - first) / (last_s - first_s)) if last_s > first_s else 0.0
