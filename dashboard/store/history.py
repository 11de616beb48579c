"""Short histories for sparklines: one sample a second, bounded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

Series = tuple[float | None, ...]

KEEP: Final = 300
_BRIDGED_S: Final = 3
"""A hole this short is a late frame, not an outage: it is drawn as the last value."""


@dataclass(frozen=True, slots=True)
class Trends:
    """Named series that share one time axis; the last sample of each is at `second`."""

    second: int | None = None
    series: Mapping[str, Series] = field(default_factory=dict[str, Series])

    def of(self, name: str) -> Series:
        """The series called `name`, oldest first; empty if it never had a sample."""
        return self.series.get(name, ())


def push(trends: Trends, at: datetime, sample: Mapping[str, float | None]) -> Trends:
    """Add a sample taken at `at`. In the same second it replaces; a clock set back starts over."""
    second = int(at.timestamp())
    if trends.second is None or second < trends.second:
        return Trends(second, {name: (value,) for name, value in sample.items()})
    passed = second - trends.second
    names = trends.series.keys() | sample.keys()
    series = {name: _extend(trends.of(name), passed, sample.get(name)) for name in names}
    return Trends(second, series)


def _extend(series: Series, passed: int, value: float | None) -> Series:
    if passed == 0:
        return (*series[:-1], value)
    filler = series[-1] if series and passed <= _BRIDGED_S else None
    missing = min(passed - 1, KEEP)
    return (*series, *(filler,) * missing, value)[-KEEP:]
