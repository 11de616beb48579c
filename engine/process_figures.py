"""What this process costs, as the kernel and the interpreter tell it. Standard library only.

A read takes tens of microseconds: CPU from getrusage (microseconds exact), memory and threads from
`/proc/self`, descriptors counted at most once a second. Garbage collections are timed where they
happen, by one hook for the whole process.
"""

import gc
import os
import resource
from pathlib import Path
from typing import Final

from engine.clock import now_ns
from engine.wire.stats import ProcessFigures

FDS_NS: Final = 1_000_000_000
NS_PER_S: Final = 1e9
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_FDS: Final = Path("/proc/self/fd")
_READ_BYTES: Final = 4096
_NUM_THREADS: Final = 17
"""Index of the field among those after the command's name; see proc(5)."""


class GcPauses:
    """Counts and times the collections of this process. They hold up every thread."""

    def __init__(self) -> None:
        self.count = 0
        self.total_ns = 0
        self.max_ns = 0
        self._start_ns: int | None = None

    def watch(self) -> None:
        """Begin to count; a second call changes nothing."""
        if self._note not in gc.callbacks:
            gc.callbacks.append(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        """Called by the collector, with the interpreter lock held."""
        del info
        if phase == "start":
            self._start_ns = now_ns()
        elif self._start_ns is not None:
            took_ns = now_ns() - self._start_ns
            self._start_ns = None
            self.count += 1
            self.total_ns += took_ns
            self.max_ns = max(self.max_ns, took_ns)


PAUSES: Final = GcPauses()
"""Of this process, since its first `FigureReader`."""


class FigureReader:
    """Reads the figures of the process that made it; a fork needs its own.

    Its files stay open, so that it still works when the process has run out of descriptors.
    """

    def __init__(self) -> None:
        PAUSES.watch()
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._stat = os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._open_fds = 0
        self._counted_ns: int | None = None

    def read(self) -> ProcessFigures:
        """Return the figures as they are now."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        max_fds = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        resident_pages = os.pread(self._statm, _READ_BYTES, 0).split()[1]
        after_name = os.pread(self._stat, _READ_BYTES, 0).rpartition(b")")[2]
        return ProcessFigures(
            cpu_user_seconds=usage.ru_utime,
            cpu_system_seconds=usage.ru_stime,
            resident_bytes=int(resident_pages) * _PAGE_BYTES,
            open_fds=self._fds(max_fds),
            max_fds=max_fds,
            threads=int(after_name.split()[_NUM_THREADS]),
            gc_pauses=PAUSES.count,
            gc_seconds=PAUSES.total_ns / NS_PER_S,
            gc_max_seconds=PAUSES.max_ns / NS_PER_S,
        )

    def close(self) -> None:
        """Give the files back."""
        os.close(self._statm)
        os.close(self._stat)

    def _fds(self, max_fds: int) -> int:
        """Return the number of open descriptors, as it was at most a second ago."""
        at_ns = now_ns()
        if self._counted_ns is None or at_ns - self._counted_ns >= FDS_NS:
            self._counted_ns = at_ns
            self._open_fds = _count_fds(max_fds)
        return self._open_fds


def _count_fds(max_fds: int) -> int:
    try:
        return sum(1 for _ in _FDS.iterdir()) - 1  # one is the listing's own
    except OSError:  # there is none left to list them with
        return max_fds
