"""Writes the flight recorder: what each step is about to compute, before it does.

The file is a shared mapping, so the kernel keeps what was written even when the process is killed.
It is allocated in full beforehand, for a hole in a mapping becomes SIGBUS on a full disk.
"""

import logging
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from engine.clock import now_ns
from engine.config import EngineConfig
from engine.core.batch import ScheduledRequest
from engine.wire.flight import (
    BUILT,
    DONE,
    END_OFFSET,
    EVENT,
    EVENT_BYTES,
    EVENT_CAPACITY,
    EVENT_TEXT_OFFSET,
    EVENTS_OFFSET,
    FILE_BYTES,
    FORWARD,
    HEADER,
    HEADER_BYTES,
    IDS_BYTES,
    IDS_OFFSET,
    MAGIC,
    MAX_KIND_BYTES,
    MAX_TEXT_BYTES,
    PLANNED,
    SAMPLED,
    STAGE_OFFSET,
    STAGE_TIME_OFFSET,
    STEP,
    STEP_BYTES,
    STEP_CAPACITY,
    STEPS_OFFSET,
    VERSION,
    pack_id,
)

__all__ = ["BUILT", "FORWARD", "SAMPLED", "FlightRecorder", "open_flight_recorder"]

logger = logging.getLogger(__name__)

_WORD = struct.Struct("<Q")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class PlannedStep(Protocol):
    """What the recorder tells of a `Plan`."""

    batch: list[ScheduledRequest]
    prefill_tokens: int
    decode_tokens: int
    preempted: int


class FlightRecorder:
    """The flight recorder of one engine; without a mapping every call does nothing.

    Steps belong to the loop's thread; any thread may tell of events.

    Args:
        mapping: `FILE_BYTES` long, with a header; None: nothing is recorded.
    """

    def __init__(self, mapping: mmap.mmap | None = None) -> None:
        self._map = mapping
        self._step_sequence = 0
        self._step_at = 0
        """Where the record of the step that is being computed begins; 0: there is none."""
        self._ids: dict[str, bytes] = {}
        """Of the last batch: most of the next one is the same."""
        self._event_sequence = 0
        self._last_event: tuple[str, str] | None = None
        self._times = 0
        self._event_lock = threading.Lock()

    @property
    def enabled(self) -> bool:
        """Whether anything is recorded."""
        return self._map is not None

    def begin_step(
        self, step: int, at_ns: int, plan: PlannedStep, waiting: int, used_blocks: int
    ) -> None:
        """Write down a step that began at `at_ns` and is about to be computed."""
        mapping = self._map
        if mapping is None:
            return
        at = STEPS_OFFSET + self._step_sequence % STEP_CAPACITY * STEP_BYTES
        self._step_sequence += 1
        self._step_at = at
        _WORD.pack_into(mapping, at, 0)
        batch = plan.batch
        area, held = self._pack_ids(batch)
        STEP.pack_into(
            mapping, at, 0, step, at_ns, now_ns(), 0, 0, 0, 0,
            len(batch), plan.prefill_tokens, plan.decode_tokens, used_blocks, waiting,
            plan.preempted, held, len(area), PLANNED,
        )  # fmt: skip
        mapping[at + IDS_OFFSET : at + IDS_OFFSET + len(area)] = area
        _WORD.pack_into(mapping, at, self._step_sequence)

    def stage(self, stage: int, at_ns: int) -> None:
        """The step has come to `BUILT`, `FORWARD` or `SAMPLED`; outside of steps: nothing."""
        at = self._step_at
        if at and self._map is not None:
            _WORD.pack_into(self._map, at + STAGE_TIME_OFFSET + 8 * stage, at_ns)
            self._map[at + STAGE_OFFSET] = stage

    def end_step(self, at_ns: int) -> None:
        """The step is over and its outputs are on their way."""
        self.stage(DONE, at_ns)
        self._step_at = 0

    def event(self, kind: str, text: str, at_ns: int | None = None) -> None:
        """Write down something of note; the same again counts up instead of taking a place."""
        mapping = self._map
        if mapping is None:
            return
        with self._event_lock:
            if (kind, text) == self._last_event:
                self._times += 1
            else:
                self._event_sequence += 1
                self._last_event, self._times = (kind, text), 1
            slot = (self._event_sequence - 1) % EVENT_CAPACITY
            self._write_event(mapping, EVENTS_OFFSET + slot * EVENT_BYTES, at_ns or now_ns())

    def close(self) -> None:
        """The engine ends in order."""
        if self._map is not None:
            _WORD.pack_into(self._map, END_OFFSET, now_ns())
            self._map.close()
            self._map = None

    def _pack_ids(self, batch: Sequence[ScheduledRequest]) -> tuple[bytes, int]:
        """Return the ids' area and how many of them it holds."""
        known = self._ids
        ids = {
            share.request_id: known.get(share.request_id) or pack_id(share.request_id)
            for share in batch
        }
        self._ids = ids
        area = b"".join(ids.values())
        if len(area) <= IDS_BYTES:
            return area, len(ids)
        return _first_that_fit(ids.values())

    def _write_event(self, mapping: mmap.mmap, at: int, at_ns: int) -> None:
        assert self._last_event is not None
        kind = self._last_event[0].encode()[:MAX_KIND_BYTES]
        text = self._last_event[1].encode(errors="replace")[:MAX_TEXT_BYTES]
        _WORD.pack_into(mapping, at, 0)
        EVENT.pack_into(mapping, at, 0, at_ns, self._times, len(kind), len(text))
        start = at + EVENT_TEXT_OFFSET
        mapping[start : start + len(kind) + len(text)] = kind + text
        _WORD.pack_into(mapping, at, self._event_sequence)


def open_flight_recorder(config: EngineConfig) -> FlightRecorder:
    """Make the recorder of an engine; one that records nothing where there can be none."""
    if config.flight_path is None:
        return FlightRecorder()
    try:
        mapping = _map_file(Path(config.flight_path))
    except (OSError, ValueError) as error:
        logger.warning("there will be no flight recording: %s", error)
        return FlightRecorder()
    HEADER.pack_into(
        mapping, 0, MAGIC, VERSION, HEADER_BYTES, STEP_CAPACITY, STEP_BYTES, EVENT_CAPACITY,
        EVENT_BYTES, config.epoch, os.getpid(), now_ns(), time.time_ns() - now_ns(), 0, _boot_id(),
        config.engine_id.encode(),
    )  # fmt: skip
    return FlightRecorder(mapping)


def _map_file(path: Path) -> mmap.mmap:
    """Make and map the file; a file that could not be allocated is removed. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.posix_fallocate(fd, 0, FILE_BYTES)
        return mmap.mmap(fd, FILE_BYTES)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def _first_that_fit(ids: Iterable[bytes]) -> tuple[bytes, int]:
    area = b""
    held = 0
    for packed in ids:
        if len(area) + len(packed) > IDS_BYTES:
            break
        area += packed
        held += 1
    return area, held


def _boot_id() -> bytes:
    try:
        return _BOOT_ID.read_bytes().strip()[:36]
    except OSError:
        return b""
