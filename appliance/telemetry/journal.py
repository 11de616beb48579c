"""The event journal: what happened to engines, gateways, keys and operations; bounded."""

from collections import deque
from itertools import islice
from typing import Literal

from appliance.supervisor.admin.schemas import JournalEvent
from appliance.telemetry.wall_clock import WallClock

CAPACITY = 1000
Severity = Literal["info", "warning", "error"]


class Journal:
    """Keeps the last events."""

    def __init__(self, clock: WallClock, capacity: int = CAPACITY) -> None:
        self._clock = clock
        self._events: deque[JournalEvent] = deque(maxlen=capacity)
        self._last_id = 0

    def add(self, kind: str, level: Severity, subject: str, text: str) -> JournalEvent:
        """Enter an event."""
        self._last_id += 1
        event = JournalEvent(
            id=self._last_id,
            at=self._clock.now(),
            kind=kind,
            level=level,
            subject=subject,
            text=text,
        )
        self._events.append(event)
        return event

    def latest(self, limit: int) -> list[JournalEvent]:
        """Return events, newest first."""
        return list(islice(reversed(self._events), max(0, limit)))
