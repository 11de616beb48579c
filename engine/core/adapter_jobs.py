"""Reads adapters in a thread of its own, one after the other, so that no step waits for a disk."""

import logging
import queue
import threading
from collections.abc import Callable
from pathlib import Path

from engine.core.adapter_config import AdapterError
from engine.core.adapter_reader import ReadAdapter, ReadCancelledError

logger = logging.getLogger(__name__)

Read = Callable[[Path, Callable[[], bool]], ReadAdapter]
"""Reads a directory until the second argument says to stop; see `AdapterReader.read`."""


class ReadJob:
    """One directory to read. The loop's thread looks at it, the reading thread fills it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.adapter: ReadAdapter | None = None
        self.error: str | None = None
        self.is_done = False
        """Set last: what came of it does not change any more."""
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Nobody waits for it: stop at the next tensor, or do not begin."""
        self._cancelled.set()

    def run(self, read: Read) -> None:
        """Read; whatever goes wrong is its `error`."""
        try:
            if not self._cancelled.is_set():
                self.adapter = read(self.path, self._cancelled.is_set)
        except ReadCancelledError:
            pass
        except AdapterError as error:
            self.error = str(error)
        except Exception as error:
            logger.exception("the adapter in %s could not be read", self.path)
            self.error = f"the adapter could not be read: {error}"
        finally:
            if self.adapter is None and self.error is None:
                self.error = "nobody waits for it"
            self.is_done = True


class AdapterJobs:
    """The reading thread. It starts with the first job and dies with the process.

    Args:
        read: Does the work.
        on_ready: Called in the reading thread after each job.
    """

    def __init__(self, read: Read, on_ready: Callable[[], None]) -> None:
        self._read = read
        self._on_ready = on_ready
        self._jobs: queue.SimpleQueue[ReadJob | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, path: Path) -> ReadJob:
        """Queue a directory; returns at once."""
        if self._thread is None:
            # a daemon: a read from a disk that hangs may not hold up the engine's end
            self._thread = threading.Thread(target=self._work, name="adapters", daemon=True)
            self._thread.start()
        job = ReadJob(path)
        self._jobs.put(job)
        return job

    def close(self) -> None:
        """Let the thread end when it is through with what it has."""
        self._jobs.put(None)

    def _work(self) -> None:
        while self._run_next():
            self._on_ready()

    def _run_next(self) -> bool:
        # a function of its own: while the thread waits, no variable may hold the last adapter
        job = self._jobs.get()
        if job is not None:
            job.run(self._read)
        return job is not None
