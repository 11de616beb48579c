"""Puts steps and request spans into a torch profile, on its own time axis.

The profile is tens of megabytes: it is copied as a stream and never parsed, only its head is read.
Torch's times are microseconds after `baseTimeNanoseconds` (Unix time); the engine writes into the
head what a clock reading is as Unix time.
"""

import gzip
import json
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MAX_HEAD_BYTES: Final = 1 << 20
"""`traceEvents` begins before that."""
CHUNK_BYTES: Final = 1 << 20
GZIP_LEVEL: Final = 3
NS_PER_US: Final = 1000

Event = dict[str, Any]
"""One event of Chrome's trace format."""

_EVENTS = re.compile(rb'"traceEvents":\s*\[')
_BASE = re.compile(rb'"baseTimeNanoseconds":\s*(-?\d+)')
_OFFSET = re.compile(rb'"unix_offset_ns":\s*(-?\d+)')


class MergeError(Exception):
    """The file is no torch profile of an engine."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The time axis of a profile."""

    base_unix_ns: int
    unix_offset_ns: int
    """Of the engine's clock readings."""

    def us(self, reading_ns: int) -> float:
        """Return a clock reading on the axis, microseconds."""
        return round((reading_ns + self.unix_offset_ns - self.base_unix_ns) / NS_PER_US, 3)

    def reading_ns(self, us: float) -> int:
        """Return a time of the axis as a clock reading."""
        return round(us * NS_PER_US) + self.base_unix_ns - self.unix_offset_ns


def merge(source: Path, target: Path, events: Callable[[Axis], Iterable[Event]]) -> None:
    """Copy a profile with more events in it; takes seconds.

    Args:
        source: What the engine wrote, `.json.gz`.
        target: Appears when it is complete.
        events: Makes the events for the profile's axis.

    Raises:
        MergeError: `source` is not what it should be.
        OSError: a file cannot be read or written; no target is left.
    """
    fresh = target.with_name(f".{target.name}.new")
    try:
        with gzip.open(source, "rb") as reader, gzip.open(fresh, "wb", GZIP_LEVEL) as writer:
            head = reader.read(MAX_HEAD_BYTES)
            axis, at = _axis(head)
            writer.write(head[:at])
            for event in events(axis):
                writer.write(b"\n" + json.dumps(event, separators=(",", ":")).encode() + b",")
            writer.write(head[at:])
            shutil.copyfileobj(reader, writer, CHUNK_BYTES)
        fresh.replace(target)
    except (EOFError, gzip.BadGzipFile) as error:
        raise MergeError(f"{source.name} is damaged: {error}") from error
    finally:
        fresh.unlink(missing_ok=True)


def _axis(head: bytes) -> tuple[Axis, int]:
    """Return the axis, and where the first event begins."""
    base, offset, events = _BASE.search(head), _OFFSET.search(head), _EVENTS.search(head)
    if base is None or offset is None or events is None:
        raise MergeError("this is no torch profile of an engine")
    return Axis(int(base[1]), int(offset[1])), events.end()
