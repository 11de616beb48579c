"""The one place where monotonic readings become wall-clock time.

The offset is taken once, so a step of the system's clock cannot tear a trace apart.
"""

import time
from datetime import UTC, datetime

from engine.clock import now_ns


class WallClock:
    """Turns `engine.clock` readings into Unix time and back.

    Args:
        offset_ns: Unix time minus the monotonic reading; None: as it is now.
    """

    def __init__(self, offset_ns: int | None = None) -> None:
        self.offset_ns = time.time_ns() - now_ns() if offset_ns is None else offset_ns

    def unix_ns(self, reading_ns: int) -> int:
        """Return a reading as nanoseconds since 1970."""
        return reading_ns + self.offset_ns

    def at(self, reading_ns: int) -> datetime:
        """Return a reading as a UTC time."""
        return datetime.fromtimestamp(self.unix_ns(reading_ns) / 1e9, UTC)

    def from_unix(self, unix_ns: int) -> datetime:
        """Return nanoseconds since 1970 as a UTC time."""
        return datetime.fromtimestamp(unix_ns / 1e9, UTC)

    def reading_ns(self, at: datetime) -> int:
        """Return a UTC time as a reading, to the microsecond."""
        return int(at.timestamp() * 1_000_000) * 1000 - self.offset_ns

    def now(self) -> datetime:
        """Return the present as the readings see it."""
        return self.at(now_ns())
