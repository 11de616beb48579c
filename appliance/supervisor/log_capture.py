"""What children write, as log lines: JSON is taken at its word, everything else is attributed.

A C++ library's complaint is a line of its own; the lines of a traceback belong together, and stay
together as one entry.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from engine.log_lines import (
    LEVELS,
    MAX_EXCEPTION_CHARS,
    MAX_FIELD_CHARS,
    MAX_TEXT_CHARS,
    escape,
    parse_line,
    shorten,
)
from engine.redaction import Redactor

Fields = dict[str, Any]

BURST_S = 0.1
"""Lines of a traceback come within it."""
MAX_BURST_LINES = 400
MAX_LINES_PER_S = 2000
"""Of one process; what it writes beyond that is counted in one line, and goes nowhere."""

_OPENS = re.compile(
    r"Traceback \(most recent|Fatal Python error|Exception in thread|Exception ignored in"
    r"|Current thread 0x|Thread 0x|thread '.*' panicked|terminate called|  File \""
)
"""First lines of what goes on over several."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_IS_ERROR = re.compile(r"(?i)\b(error|fatal|panic\w*|abort\w*|exception|segmentation|terminate)\b")
_LINE_TEXTS = {"logger": MAX_FIELD_CHARS, "engine": MAX_FIELD_CHARS}
_IDS = {"trace_id": re.compile(r"[0-9a-f]{32}"), "request_id": re.compile(r"req-[0-9a-f-]{24,64}")}


@dataclass(slots=True)
class _Second:
    """How much a process wrote in the second that goes on."""

    begun_s: float
    lines: int = 0


@dataclass(slots=True)
class _Burst:
    """Lines that belong together, until something else or nothing comes."""

    lines: list[str] = field(default_factory=list)
    last_s: float = 0.0


class LineCapture:
    """Turns what children write into the fields of log lines.

    Args:
        give: Takes each finished line's fields; see `engine.log_lines`.
        redact: Takes secrets out.
        now_s: A monotonic clock.
    """

    def __init__(
        self, give: Callable[[Fields], None], redact: Redactor, now_s: Callable[[], float]
    ) -> None:
        self._give = give
        self._redact = redact
        self._now_s = now_s
        self._epochs: dict[str, int] = {}
        self._bursts: dict[str, _Burst] = {}
        self._seconds: dict[str, _Second] = {}

    def started(self, process: str, epoch: int) -> None:
        """A process starts: what it writes from now on is of this epoch."""
        self._end_burst(process)
        self._epochs[process] = epoch

    def take(self, process: str, line: str) -> None:
        """Take one line that a process wrote."""
        if self._is_too_much(process):
            return
        found = parse_line(line)
        if found is not None:
            self._end_burst(process)
            self._give(self._checked(process, found))
            return
        line = _COLOUR.sub("", line)
        burst = self._bursts.get(process)
        if burst is None and not _OPENS.match(line):
            if line.strip():
                level = "error" if _IS_ERROR.search(line) else "warning"
                self._give(self._raw(process, level, line))
            return
        burst = self._bursts.setdefault(process, _Burst())
        burst.lines.append(line[:MAX_TEXT_CHARS])
        burst.last_s = self._now_s()
        if len(burst.lines) >= MAX_BURST_LINES:
            self._end_burst(process)

    def flush(self, *, all_of_them: bool = False) -> None:
        """End the bursts after which nothing has come for a while."""
        now_s = self._now_s()
        for process, second in list(self._seconds.items()):
            if all_of_them or now_s - second.begun_s >= 1:
                del self._seconds[process]
                self._tell_dropped(process, second)
        for process, burst in list(self._bursts.items()):
            if all_of_them or now_s - burst.last_s >= BURST_S:
                self._end_burst(process)

    def _is_too_much(self, process: str) -> bool:
        now_s = self._now_s()
        second = self._seconds.get(process)
        if second is None or now_s - second.begun_s >= 1:
            if second is not None:
                self._tell_dropped(process, second)
            second = self._seconds[process] = _Second(now_s)
        second.lines += 1
        return second.lines > MAX_LINES_PER_S

    def _tell_dropped(self, process: str, second: _Second) -> None:
        dropped = second.lines - MAX_LINES_PER_S
        if dropped > 0:
            self._give(self._raw(process, "warning", f"{dropped} lines in a second were dropped"))

    def _end_burst(self, process: str) -> None:
        burst = self._bursts.pop(process, None)
        if burst is None:
            return
        fields = self._raw(process, "error", _gist(burst.lines))
        whole = escape(self._redact("\n".join(burst.lines)), keeps_lines=True)
        self._give(fields | {"exception": shorten(whole, MAX_EXCEPTION_CHARS)})

    def _raw(self, process: str, level: str, line: str) -> Fields:
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields: Fields = {"at": at, "level": level, "process": process}
        if process in self._epochs:
            fields["epoch"] = self._epochs[process]
        return fields | {"text": self._clean(line, MAX_TEXT_CHARS)}

    def _checked(self, process: str, found: Mapping[str, Any]) -> Fields:
        """Return a line that a child made, as far as it can be believed."""
        level = found["level"] if found["level"] in LEVELS else "warning"
        fields = self._raw(process, level, found["text"])
        if _is_moment(found["at"]):
            fields["at"] = found["at"]
        if isinstance(found.get("epoch"), int):
            fields["epoch"] = found["epoch"]
        for name, limit in _LINE_TEXTS.items():
            if isinstance(found.get(name), str):
                fields[name] = self._clean(found[name], limit)
        for name, shape in _IDS.items():
            if shape.fullmatch(str(found.get(name))):
                fields[name] = found[name]
        if isinstance(found.get("exception"), str):
            text = escape(self._redact(found["exception"]), keeps_lines=True)
            fields["exception"] = shorten(text, MAX_EXCEPTION_CHARS)
        return fields

    def _clean(self, text: str, limit: int) -> str:
        return escape(self._redact(text[: 2 * limit]))[:limit]


def _gist(lines: Sequence[str]) -> str:
    """Return the line that says it: a traceback's last one, of a dump of threads the first."""
    said = [line for line in lines if line.strip()]
    has_traceback = any(line.lstrip().startswith("Traceback (most recent") for line in lines)
    return said[-1] if has_traceback else said[0]


def _is_moment(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
