"""The event journal: what happened to engines, gateways, keys and operations; bounded.

This is what memory keeps; the trace store has what came before.
"""

from collections import deque
from itertools import islice
from typing import Literal, get_args

from appliance.supervisor.admin.ports import EventQuery
from appliance.supervisor.admin.schemas import JournalEvent
from appliance.telemetry.wall_clock import WallClock

CAPACITY = 1000
Severity = Literal["info", "warning", "error"]


def at_least(level: str | None) -> tuple[str, ...]:
    """Return the levels from this one on; None: all."""
    levels: tuple[str, ...] = get_args(Severity)
    return levels if level is None else levels[levels.index(level) :]


class Journal:
    """Keeps the last events.

    Args:
        clock: Of the hub.
        first_id: Ids grow from here; above those of an earlier run, whose events are in the store.
        capacity: Events to keep.
    """

    def __init__(self, clock: WallClock, first_id: int = 0, capacity: int = CAPACITY) -> None:
        self._clock = clock
        self._events: deque[JournalEvent] = deque(maxlen=capacity)
        self._last_id = first_id

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

    def find(self, query: EventQuery) -> list[JournalEvent]:
        """Return the events that fit, newest first."""
        fitting = (event for event in reversed(self._events) if _fits(event, query))
        return list(islice(fitting, max(0, query.limit)))


def _fits(event: JournalEvent, query: EventQuery) -> bool:
    return (
        (query.since is None or event.at >= query.since)
        and (query.until is None or event.at <= query.until)
        and event.level in at_least(query.min_level)
        and (query.kind is None or event.kind.startswith(query.kind))
        and query.subject in (None, event.subject)
    )
