"""The log of the whole appliance: what every process wrote, shown, kept and found again.

Lines go three ways: to the supervisor's own stderr (text for people or JSON), into a ring in memory
that the admin API reads, and into the log file. Writing is done by threads: a terminal or a disk
that stands still costs lines, counted, never time of the event loop.
"""

import asyncio
import contextlib
import itertools
import logging
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from appliance.supervisor.admin.schemas import LogLine
from appliance.supervisor.line_pump import LinePump
from appliance.supervisor.log_capture import Fields, LineCapture
from appliance.supervisor.log_file import LogFile, all_lines, last_lines
from engine.clock import now_ns
from engine.log_lines import (
    LEVELS,
    Format,
    LineFormatter,
    OurHandler,
    install,
    json_line,
    redact,
    text_line,
)
from engine.redaction import Redactor
from engine.shared_ticks import until_tick

RING_LINES = 5000
REMEMBERED_LINES = 1000
"""Of the runs before, read from the file at the start."""
TICK_S = 0.1
CLOSE_S = 1.0

OnLines = Callable[[str, str, int], None]
"""Called with (process, level, number of lines)."""


class LogBook:
    """Implements `appliance.supervisor.admin.ports.LogBook`.

    Args:
        directory: Of the log file.
        format: Of the lines on stderr.
        stream: Instead of stderr.
        ring_lines: How many lines the API can find.
        redact_line: Takes secrets out of what children write.
    """

    def __init__(
        self,
        directory: Path,
        format: Format = "text",  # noqa: A002 - the setting's name
        *,
        stream: TextIO | None = None,
        ring_lines: int = RING_LINES,
        redact_line: Redactor = redact,
    ) -> None:
        self.on_lines: OnLines | None = None
        """Counts lines; called on the event loop."""
        self.on_lost: Callable[[int], None] | None = None
        """Counts lines that reached neither file nor terminal; called on the event loop."""
        self._render = text_line if format == "text" else json_line
        self._stream = stream
        self._ring: deque[LogLine] = deque(maxlen=ring_lines)
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._ids = itertools.count(self._remember(directory) + 1)
        self._file = LogFile(directory)
        self._to_file = LinePump("log-file", self._file.write)
        self._to_terminal = LinePump("log-terminal", self._print)
        self._capture = LineCapture(self.add, redact_line, lambda: now_ns() / 1e9)

    # ------------------------------------------------------------ in

    def take(self, process: str, line: str) -> None:
        """Take a line that a child wrote; the launcher's `on_line`."""
        self._capture.take(process, line)

    def started(self, process: str, epoch: int) -> None:
        """A child starts; the launcher's `on_start`."""
        self._capture.started(process, epoch)

    def handle_own(self, process: str, epoch: int | None, level: str) -> None:
        """Let this process's own log go into the book, instead of straight to stderr."""
        install(_Handler(self, LineFormatter(process, epoch, "json")), level)

    def add(self, fields: Fields) -> None:
        """Enter a line, from any thread."""
        with self._lock:
            number = next(self._ids)
            self._ring.append(_line(number, fields))
            self._counts[fields["process"], fields["level"]] += 1
            self._to_file.put(json_line({"at": fields["at"], "id": number} | fields))
            self._to_terminal.put(self._render(fields))

    # ------------------------------------------------------------ out

    def lines(
        self,
        *,
        process: str | None,
        min_level: str | None,
        after_id: int | None,
        limit: int,
        contains: str | None = None,
    ) -> list[LogLine]:
        """The newest lines that fit, oldest first; after an id, the first ones that follow it."""
        with self._lock:
            kept = list(self._ring)
        if after_id is not None:
            later = (line for line in kept if line.id > after_id)
            return list(itertools.islice(_fitting(later, process, min_level, contains), limit))
        newest = _fitting(reversed(kept), process, min_level, contains)
        return list(itertools.islice(newest, limit))[::-1]

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """End bursts and hand the counts over, until cancelled."""
        while True:
            await asyncio.sleep(until_tick(TICK_S))
            self.tick()

    def tick(self) -> None:
        """Do once what `run` does for ever."""
        self._capture.flush()
        with self._lock:
            counts, self._counts = self._counts, Counter()
        lost = self._to_file.take_lost() + self._to_terminal.take_lost()
        if self.on_lines is not None:
            for (process, level), count in counts.items():
                self.on_lines(process, level, count)
        if self.on_lost is not None and lost:
            self.on_lost(lost)

    def close(self) -> None:
        """Write what is left, for a bounded time."""
        self._capture.flush(all_of_them=True)
        self._to_terminal.close(CLOSE_S)
        self._to_file.close(CLOSE_S)
        self._file.close()

    def _print(self, lines: Sequence[str]) -> int:
        """Show lines; nobody may read them any more."""
        stream = self._stream or sys.stderr
        with contextlib.suppress(OSError, ValueError):
            stream.write("".join(f"{line}\n" for line in lines))
            stream.flush()
        return 0

    def _remember(self, directory: Path) -> int:
        """Take up the end of the log of earlier runs; return the last id."""
        last_id = 0
        for fields in last_lines(directory, REMEMBERED_LINES):
            line = _line_of(fields)
            if line is not None and line.id > last_id:
                self._ring.append(line)
                last_id = line.id
        return last_id


class _Handler(OurHandler):
    """Enters this process's records into the book."""

    def __init__(self, book: LogBook, formatter: LineFormatter) -> None:
        super().__init__()
        self._book = book
        self._fields = formatter.fields

    def emit(self, record: logging.LogRecord) -> None:
        """Enter a record."""
        try:
            self._book.add(self._fields(record))
        except Exception:  # noqa: BLE001 - as every logging handler: a log line stops no work
            self.handleError(record)


def kept_lines(
    directory: Path,
    *,
    process: str | None,
    min_level: str | None,
    limit: int,
    contains: str | None = None,
) -> list[LogLine]:
    """Find lines as `LogBook.lines` does, in the files of an appliance that need not run.

    Raises:
        OSError: there is no log file, or it cannot be read.
    """
    lines = (line for fields in all_lines(directory) if (line := _line_of(fields)) is not None)
    return list(deque(_fitting(lines, process, min_level, contains), maxlen=limit))


def _fitting(
    lines: Iterable[LogLine], process: str | None, min_level: str | None, contains: str | None
) -> Iterator[LogLine]:
    wanted = _levels_from(min_level)
    return (
        line
        for line in lines
        if process in (None, line.process)
        and line.level in wanted
        and (contains is None or _contains(line, contains))
    )


def _line_of(fields: dict[str, Any]) -> LogLine | None:
    try:
        return _line(int(fields.get("id", 0)), fields)
    except (TypeError, ValueError):  # pydantic's errors are ValueErrors
        return None


def _line(number: int, fields: dict[str, Any]) -> LogLine:
    known = {name: value for name, value in fields.items() if name in LogLine.model_fields}
    return LogLine.model_validate(known | {"id": number})


def _levels_from(least: str | None) -> tuple[str, ...]:
    return LEVELS if least is None else LEVELS[LEVELS.index(least) :]


def _contains(line: LogLine, part: str) -> bool:
    part = part.lower()
    texts = (line.text, line.exception, line.logger, line.request_id, line.trace_id)
    return any(part in text.lower() for text in texts if text is not None)
