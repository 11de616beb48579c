"""The event stream: each reader gets a snapshot, then every change, in order, with an id.

A reader that comes back with the last id it saw gets what it missed. One that falls behind is told
so (`gap`) and starts over with a snapshot; it never slows the others down.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

RING = 2048
"""Changes that a returning reader can still get."""
READER_LIMIT = 512
"""Changes that wait for one reader."""

Event = tuple[int, str, str]
"""Id, event name, JSON."""


class _Reader:
    def __init__(self, limit: int, seen_id: int) -> None:
        self._limit = limit
        self.seen_id = seen_id
        self._waiting: deque[Event] = deque()
        self._wake = asyncio.Event()
        self.missed = 0

    def put(self, event: Event) -> None:
        if self.missed or len(self._waiting) >= self._limit:
            self.missed += 1
        else:
            self._waiting.append(event)
        self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    def restart(self) -> None:
        self.missed = 0
        self._waiting.clear()

    async def wait(self) -> None:
        if not self._waiting and not self.missed:
            self._wake.clear()
            await self._wake.wait()

    def take(self) -> Event | None:
        if not self._waiting:
            return None
        event = self._waiting.popleft()
        self.seen_id = event[0]
        return event


class EventStream:
    """Hands changes to any number of readers.

    Args:
        snapshot: Makes the JSON of the snapshot.
        first_id: Ids grow from here; it must be above those of an earlier run, so that a reader's
            id from then is not taken for one of now.
        reader_limit: Changes that may wait for one reader.
    """

    def __init__(
        self, snapshot: Callable[[], str], first_id: int, reader_limit: int = READER_LIMIT
    ) -> None:
        self._snapshot = snapshot
        self._last_id = first_id
        self._ring: deque[Event] = deque(maxlen=RING)
        self._readers: set[_Reader] = set()
        self._reader_limit = reader_limit
        self._closed = False

    def publish(self, name: str, text: str) -> None:
        """Send one change to all readers."""
        self._last_id += 1
        event = (self._last_id, name, text)
        self._ring.append(event)
        for reader in self._readers:
            reader.put(event)

    def close(self) -> None:
        """Let all readers end."""
        self._closed = True
        for reader in self._readers:
            reader.wake()

    async def subscribe(self, after_id: int | None) -> AsyncIterator[Event]:
        """Yield events until the stream is closed; see the module."""
        reader = _Reader(self._reader_limit, self._last_id)
        missed = self._after(after_id)
        self._readers.add(reader)
        try:
            if missed is None:
                yield self._first()
            for event in missed or ():
                yield event
            while not self._closed:
                if reader.missed:
                    # the gap has the last id that was delivered: who leaves now can still resume
                    yield (reader.seen_id, "gap", f'{{"missed":{reader.missed}}}')
                    reader.restart()
                    yield self._first()
                event = reader.take()
                if event is None:
                    await reader.wait()
                else:
                    yield event
        finally:
            self._readers.discard(reader)

    def _first(self) -> Event:
        return (self._last_id, "snapshot", self._snapshot())

    def _after(self, after_id: int | None) -> list[Event] | None:
        """Return what came after an id; None when that is not known any more."""
        if after_id is None or after_id > self._last_id:
            return None
        if after_id == self._last_id:
            return []
        if not self._ring or after_id < self._ring[0][0] - 1:
            return None
        return [event for event in self._ring if event[0] > after_id]
