"""The bounded buffer of trace records between the engine's threads and the supervisor."""

import threading
from collections import deque
from typing import Generic, TypeVar

from engine.wire.hops import HopRecord, StepRecord
from engine.wire.messages import EngineRecords

CAPACITY = 8192
BATCH = 512

RecordT = TypeVar("RecordT")


class _Bounded(Generic[RecordT]):
    """A queue that takes no more than `capacity` records."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._records: deque[RecordT] = deque()

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: RecordT) -> bool:
        if len(self._records) >= self._capacity:
            return False
        self._records.append(record)
        return True

    def take(self, count: int) -> tuple[RecordT, ...]:
        return tuple(self._records.popleft() for _ in range(min(count, len(self._records))))


class RecordBuffer:
    """Holds hop and step records until the loop sends them; full: drops and counts.

    Any thread may add. `capacity` and `batch` bound hops and steps each.
    """

    def __init__(self, capacity: int = CAPACITY, batch: int = BATCH) -> None:
        self.enabled = True
        """False: nothing is kept. Whoever makes records asks first, to save the work."""
        self.dropped = 0
        self._batch = batch
        self._lock = threading.Lock()
        self._hops: _Bounded[HopRecord] = _Bounded(capacity)
        self._steps: _Bounded[StepRecord] = _Bounded(capacity)

    def __len__(self) -> int:
        return len(self._hops) + len(self._steps)

    def add(self, record: HopRecord | StepRecord) -> None:
        """Keep a record, or drop it when the buffer is full."""
        if not self.enabled:
            return
        with self._lock:
            if isinstance(record, StepRecord):
                kept = self._steps.add(record)
            else:
                kept = self._hops.add(record)
            self.dropped += not kept

    def take(self) -> EngineRecords | None:
        """Remove and return the oldest records, one message's worth; None when there are none."""
        with self._lock:
            hops = self._hops.take(self._batch)
            steps = self._steps.take(self._batch)
            if not hops and not steps:
                return None
            return EngineRecords(hops=hops, steps=steps, dropped=self.dropped)
