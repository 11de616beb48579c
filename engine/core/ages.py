"""Counts how long something lasted, by the edges that the stats have."""

from bisect import bisect_left

from engine.wire.stats import AGE_EDGES

_EDGES_NS = tuple(int(edge * 1e9) for edge in AGE_EDGES)


class Ages:
    """A cumulative histogram of durations."""

    __slots__ = ("_counts", "_total_ns")

    def __init__(self) -> None:
        self._counts = [0] * (len(_EDGES_NS) + 1)
        self._total_ns = 0

    @property
    def counts(self) -> tuple[int, ...]:
        """Durations by `AGE_EDGES`, and longer ones."""
        return tuple(self._counts)

    @property
    def seconds(self) -> float:
        """Sum of all durations."""
        return self._total_ns / 1e9

    def add(self, duration_ns: int) -> None:
        """Count one."""
        self._counts[bisect_left(_EDGES_NS, duration_ns)] += 1
        self._total_ns += duration_ns
