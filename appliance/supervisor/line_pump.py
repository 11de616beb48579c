"""Writes lines from a thread of its own: no slow disk and no stuck terminal holds anybody up."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

MAX_WAITING = 20_000
MAX_BATCH = 512
PAUSE_S = 0.02


class LinePump:
    """A bounded queue of lines and the thread that writes them.

    Args:
        name: Of the thread.
        write: Writes lines, each without its end; returns how many of them were lost. Must not
            raise, and must not log through what feeds this pump.
        limit: Most lines that wait; more are lost.
        settle: Called when all that waited is written; returns in how many seconds it wants to be
            called again, None for not before more is written. Must not raise.
        pause_s: Lines that follow each other within it are written together.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[Sequence[str]], int],
        limit: int = MAX_WAITING,
        settle: Callable[[], float | None] = lambda: None,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._write = write
        self._limit = limit
        self._settle = settle
        self._pause_s = pause_s
        self._waiting: deque[str] = deque()
        self._lock = threading.Lock()
        self._work = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._is_closed = False
        self._lost = 0
        self._taken = self._done = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called: then `settle` is called for the last time."""
        return self._is_closed

    def put(self, line: str) -> None:
        """Take a line, from any thread; never waits."""
        with self._lock:
            if self._is_closed or len(self._waiting) >= self._limit:
                self._lost += 1
                return
            self._waiting.append(line)
            self._taken += 1
            self._idle.clear()
        self._work.set()

    @property
    def num_taken(self) -> int:
        """How many lines it ever took."""
        return self._taken

    @property
    def num_done(self) -> int:
        """How many of them, the first ones, were handed to `write`."""
        return self._done

    def take_lost(self) -> int:
        """Return how many lines were lost since the last call."""
        with self._lock:
            lost, self._lost = self._lost, 0
        return lost

    def drain(self, timeout_s: float) -> bool:
        """Wait until all lines are written; false when that takes longer."""
        return self._idle.wait(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write what waits, for a bounded time, and end the thread."""
        with self._lock:
            self._is_closed = True
        self._work.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        again_s: float | None = None
        while True:
            self._work.wait(again_s)
            self._work.clear()
            while batch := self._take():
                lost = self._write(batch)
                with self._lock:
                    self._lost += lost
                    self._done += len(batch)
            is_last = self._is_closed
            again_s = self._settle()
            if self._finish(is_last):
                return
            time.sleep(self._pause_s)

    def _take(self) -> list[str]:
        with self._lock:
            count = min(len(self._waiting), MAX_BATCH)
            return [self._waiting.popleft() for _ in range(count)]

    def _finish(self, is_last: bool) -> bool:
        """Say that all is written, and whether that was the end."""
        with self._lock:
            if self._waiting:
                self._work.set()
                return False
            self._idle.set()
            return is_last
