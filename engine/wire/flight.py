"""The flight recorder's file: its layout, and a reader that trusts nothing in it.

One file per engine and epoch, little-endian: a header of 4,096 bytes, a ring of steps, a ring of
events. The engine writes it through a shared mapping, so what was written is there after a
SIGKILL. A record's sequence number is zeroed before the record changes and written last: a record
whose number does not belong into its slot was being written, and is left out.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.log_lines import escape

MAGIC: Final = b"QDFLIGHT"
VERSION: Final = 1

HEADER: Final = struct.Struct("<8sIIIIIIQQQqQ36s32s")
"""magic, version, header size, step capacity, step size, event capacity, event size, epoch, pid,
start (clock reading), Unix time minus clock reading, end (clock reading; 0: it did not end well),
boot id, engine id."""
HEADER_BYTES: Final = 4096
END_OFFSET: Final = 64
"""Of the header's `end`."""

STEP_CAPACITY: Final = 4096
STEP: Final = struct.Struct("<QQQQQQQQIIIIIIHHB")
"""sequence, step, start, planned, built, forwarded, sampled, end, requests, prefill tokens, decode
tokens, used blocks, waiting, preempted, ids held, bytes of ids, stage."""
STEP_BYTES: Final = 1152
STAGE_OFFSET: Final = 92
STAGE_TIME_OFFSET: Final = 24
"""Of `planned`; the time of stage n stands 8 n bytes behind it."""
IDS_OFFSET: Final = 96
IDS_BYTES: Final = STEP_BYTES - IDS_OFFSET
"""At least 64 ids of the gateways' form, with suffixes such as `-0` or `-r1`."""

EVENT_CAPACITY: Final = 1024
EVENT: Final = struct.Struct("<QQIBB")
"""sequence, at (clock reading), times, bytes of the kind, bytes of the text."""
EVENT_BYTES: Final = 256
EVENT_TEXT_OFFSET: Final = 24
MAX_KIND_BYTES: Final = 31
MAX_TEXT_BYTES: Final = EVENT_BYTES - EVENT_TEXT_OFFSET - MAX_KIND_BYTES - 1

STEPS_OFFSET: Final = HEADER_BYTES
EVENTS_OFFSET: Final = STEPS_OFFSET + STEP_CAPACITY * STEP_BYTES
FILE_BYTES: Final = EVENTS_OFFSET + EVENT_CAPACITY * EVENT_BYTES

PLANNED, BUILT, FORWARD, SAMPLED, DONE = range(5)
STAGES: Final = ("planned", "built", "forward", "sampled", "done")
"""How far a step came: `built` means that the forward pass had begun, `forward` that it was over
(on a GPU: that its kernels were queued), `sampled` that the tokens were chosen."""

_SEQUENCE = struct.Struct("<Q")
_ID_DIGITS = 24
_ID_PREFIX = "req-"
_PACKED = 0x80
"""Bit of an id's first byte: 12 bytes and a suffix of as many characters as the other bits say;
else so many bytes of UTF-8."""
_MAX_PLAIN_BYTES = 100
_PACKED_BYTES = _ID_DIGITS // 2


class FlightError(Exception):
    """There is no flight recording in this file that can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightHeader:
    """Whose recording it is."""

    engine_id: str
    epoch: int
    pid: int
    boot_id: str
    started_ns: int
    unix_offset_ns: int
    """Unix time minus clock reading, at the start."""
    ended_ns: int | None
    """The engine ended in order; None: it runs, or was cut short."""

    def unix_ns(self, reading_ns: int) -> int:
        """Return a clock reading of the recording as Unix time."""
        return reading_ns + self.unix_offset_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """One step; times are clock readings, None where it did not come so far."""

    step: int
    stage: str
    start_ns: int
    planned_ns: int
    built_ns: int | None
    forwarded_ns: int | None
    sampled_ns: int | None
    end_ns: int | None
    requests: int
    prefill_tokens: int
    decode_tokens: int
    used_blocks: int
    waiting: int
    preempted: int
    request_ids: tuple[str, ...]
    """The first of the batch; `requests` says how many there were."""

    @property
    def finished(self) -> bool:
        """Whether it was done and its outputs were handed over."""
        return self.stage == STAGES[DONE]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvent:
    """Something of note beside the steps."""

    at_ns: int
    kind: str
    text: str
    times: int
    """The same happened so often in a row; `at_ns` is the last time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """What a recording holds, newest first."""

    header: FlightHeader
    steps: tuple[RecordedStep, ...]
    events: tuple[RecordedEvent, ...]


def pack_id(request_id: str) -> bytes:
    """Return a request id as it stands in a step's record."""
    end = len(_ID_PREFIX) + _ID_DIGITS
    digits, suffix = request_id[len(_ID_PREFIX) : end], request_id[end:]
    if request_id.startswith(_ID_PREFIX) and len(suffix) < _PACKED and suffix.isascii():
        try:
            packed = bytes.fromhex(digits)
        except ValueError:
            packed = b""
        if len(packed) == _PACKED_BYTES and packed.hex() == digits:
            return bytes((_PACKED | len(suffix),)) + packed + suffix.encode()
    plain = request_id.encode(errors="replace")[:_MAX_PLAIN_BYTES]
    return bytes((len(plain),)) + plain


def unpack_ids(area: bytes, count: int) -> tuple[str, ...]:
    """Return the first `count` ids of an area; fewer if it ends before."""
    found: list[str] = []
    at = 0
    while len(found) < count and at < len(area):
        kind = area[at]
        if kind & _PACKED:
            text_at = at + 1 + _PACKED_BYTES
            at_end = text_at + (kind & ~_PACKED)
            digits = area[at + 1 : text_at].hex()
            text = f"{_ID_PREFIX}{digits}{_text(area[text_at:at_end])}"
        else:
            at_end = at + 1 + kind
            text = _text(area[at + 1 : at_end])
        found.append(text)
        at = at_end
    return tuple(found)


def read_flight(path: Path, steps: int = STEP_CAPACITY, events: int = EVENT_CAPACITY) -> Flight:
    """Read the newest steps and events; the engine may be writing meanwhile.

    Raises:
        FlightError: no such file, another version, or no recording at all.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != FILE_BYTES:
                raise FlightError(f"{path} is no flight recording")
            with mmap.mmap(file.fileno(), FILE_BYTES, access=mmap.ACCESS_READ) as content:
                return Flight(
                    header=_header(content, path),
                    steps=tuple(_steps(content, steps)),
                    events=tuple(_events(content, events)),
                )
    except OSError as error:
        raise FlightError(f"cannot read {path}: {error.strerror}") from error


def _header(content: mmap.mmap, path: Path) -> FlightHeader:
    if content[: len(MAGIC)] != MAGIC:
        raise FlightError(f"{path} is no flight recording")
    values = HEADER.unpack_from(content)
    _, version, *sizes, epoch, pid, started, offset, ended, boot_id, engine_id = values
    expected = [HEADER_BYTES, STEP_CAPACITY, STEP_BYTES, EVENT_CAPACITY, EVENT_BYTES]
    if version != VERSION or sizes != expected:
        raise FlightError(f"{path} has the layout {version}, this program reads {VERSION}")
    return FlightHeader(
        engine_id=_text(engine_id),
        epoch=epoch,
        pid=pid,
        boot_id=_text(boot_id),
        started_ns=started,
        unix_offset_ns=offset,
        ended_ns=ended or None,
    )


def _steps(content: mmap.mmap, limit: int) -> Iterator[RecordedStep]:
    ring = _Ring(STEPS_OFFSET, STEP_BYTES, STEP_CAPACITY)
    for record in _newest(content, ring, limit):
        values = STEP.unpack_from(record)
        _, step, start, planned, built, forwarded, sampled, end, *counts, held, _, stage = values
        requests, prefill, decode, blocks, waiting, preempted = counts
        yield RecordedStep(
            step=step,
            stage=STAGES[min(stage, DONE)],
            start_ns=start,
            planned_ns=planned,
            built_ns=built or None,
            forwarded_ns=forwarded or None,
            sampled_ns=sampled or None,
            end_ns=end or None,
            requests=requests,
            prefill_tokens=prefill,
            decode_tokens=decode,
            used_blocks=blocks,
            waiting=waiting,
            preempted=preempted,
            request_ids=unpack_ids(record[IDS_OFFSET:], held),
        )


def _events(content: mmap.mmap, limit: int) -> Iterator[RecordedEvent]:
    ring = _Ring(EVENTS_OFFSET, EVENT_BYTES, EVENT_CAPACITY)
    for record in _newest(content, ring, limit):
        _, at, times, kind_bytes, text_bytes = EVENT.unpack_from(record)
        middle = EVENT_TEXT_OFFSET + min(kind_bytes, MAX_KIND_BYTES)
        yield RecordedEvent(
            at_ns=at,
            kind=_text(record[EVENT_TEXT_OFFSET:middle]),
            text=_text(record[middle : middle + text_bytes]),
            times=times,
        )


@dataclass(frozen=True, slots=True)
class _Ring:
    start: int
    size: int
    capacity: int


def _newest(content: mmap.mmap, ring: _Ring, limit: int) -> Iterator[bytes]:
    """Yield copies of the whole records, newest first."""
    found: list[tuple[int, int]] = []
    for slot in range(ring.capacity):
        offset = ring.start + slot * ring.size
        (sequence,) = _SEQUENCE.unpack_from(content, offset)
        if sequence and (sequence - 1) % ring.capacity == slot:
            found.append((sequence, offset))
    found.sort(reverse=True)
    for sequence, offset in found[: max(0, limit)]:
        record = content[offset : offset + ring.size]
        is_kept = sequence > found[0][0] - ring.capacity
        if is_kept and _SEQUENCE.unpack_from(content, offset)[0] == sequence:  # still
            yield record


def _text(field: bytes) -> str:
    """Return a text that drives no terminal, whatever the bytes are."""
    return escape(field.rstrip(b"\0").decode(errors="replace"))
