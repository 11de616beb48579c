"""Sliding windows over recent values: percentiles, counts and rates. Pure: the time is given."""

from collections import deque

from appliance.supervisor.admin.schemas import Percentiles

MAX_VALUES = 4096
"""Of a window; with more, the oldest go first and the window is shorter in effect."""
NS_PER_S = 1e9


class Window:
    """Values of the last `span_ns` nanoseconds."""

    def __init__(self, span_ns: int) -> None:
        self._span_ns = span_ns
        self._values: deque[tuple[int, float]] = deque(maxlen=MAX_VALUES)

    def add(self, at_ns: int, value: float) -> None:
        """Add a value; times do not go back by much."""
        self._values.append((at_ns, value))

    def __len__(self) -> int:
        return len(self._values)

    def percentiles(self, now_ns: int) -> Percentiles:
        """Return p50, p95 and p99 by nearest rank, None without values."""
        ordered = sorted(self._current(now_ns))
        if not ordered:
            return Percentiles()
        last = len(ordered) - 1
        p50, p95, p99 = (ordered[round(q * last)] for q in (0.50, 0.95, 0.99))
        return Percentiles(p50=round(p50, 3), p95=round(p95, 3), p99=round(p99, 3))

    def median(self, now_ns: int, at_least: int) -> float | None:
        """Return the median, None with fewer than `at_least` values."""
        ordered = sorted(self._current(now_ns))
        return ordered[len(ordered) // 2] if len(ordered) >= at_least else None

    def values(self, now_ns: int) -> list[float]:
        """Return what is in the window."""
        return self._current(now_ns)

    def reach_ns(self, now_ns: int) -> int:
        """Return how far back the values go: less than the window when they were too many."""
        is_full = len(self._current(now_ns)) == MAX_VALUES
        return now_ns - self._values[0][0] if is_full else self._span_ns

    def _current(self, now_ns: int) -> list[float]:
        while self._values and self._values[0][0] < now_ns - self._span_ns:
            self._values.popleft()
        return [value for _, value in self._values]


class Rate:
    """How fast a cumulative count grows, over the last `span_ns` nanoseconds."""

    def __init__(self, span_ns: int) -> None:
        self._span_ns = span_ns
        self._counts: deque[tuple[int, float]] = deque(maxlen=MAX_VALUES)

    def set(self, at_ns: int, count: float) -> None:
        """Note the count at a time."""
        self._counts.append((at_ns, count))

    def per_s(self, now_ns: int) -> float:
        """Return the growth per second; 0 until two counts are known, or when it stands still."""
        # one count older than the window stays: the growth is measured from there
        while len(self._counts) > 1 and self._counts[1][0] <= now_ns - self._span_ns:
            self._counts.popleft()
        if len(self._counts) < 2:  # noqa: PLR2004
            return 0.0
        (first_ns, first), (_, last) = self._counts[0], self._counts[-1]
        return max(0.0, last - first) * NS_PER_S / max(1, now_ns - first_ns)
