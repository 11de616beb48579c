"""One log line per event, for every process: JSON for programs, text for people.

Standard library only.

A child of the supervisor writes JSON lines to stderr, so that the supervisor can tell their level,
logger and request; it is the supervisor that prints for people and keeps the log file. An event is
one line, whatever somebody put into it: control characters are escaped. Secrets are taken out here,
see `engine.redaction`.
"""

import json
import logging
import re
import sys
import unicodedata
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, cast

from engine.exception_text import exception_text
from engine.redaction import Redactor

Format = Literal["text", "json"]

MAX_TEXT_CHARS = 4096
MAX_EXCEPTION_CHARS = 16_384
MAX_FIELD_CHARS = 200
MAX_LINE_BYTES = 128 << 10
"""Longest line that this module writes: a character takes at most four bytes and a field."""
LEVELS = ("debug", "info", "warning", "error")
"""From the least to the most urgent; `critical` counts as `error`."""

_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_REQUEST_ID = re.compile(r"\breq-[0-9a-f]{24}")
_HANDLES_REQUESTS = (
    "uvicorn",
    "asyncio",
    "engine.core.structured",
    "engine.core.intake",
    "engine.core.logit_rules",
)
"""Loggers whose exceptions may have a client's input in their message, wherever they log."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Which request the code that runs now works on."""

    request_id: str
    trace_id: str | None = None
    withholds: bool = True


_SUBJECT: ContextVar[Subject | None] = ContextVar("log_subject", default=None)

redact = Redactor()
"""Of this process. Teach it the secrets that the process knows by `redact.learn`."""


@contextmanager
def about(
    request_id: str, trace_id: str | None = None, *, withholds: bool = True
) -> Generator[None]:
    """Give every log line of this context, and of the tasks that it starts, the request's ids.

    Args:
        request_id: Of the request that is worked on.
        trace_id: Of its trace.
        withholds: Leave out the messages of exceptions that are logged: they may quote the request.
    """
    token = _SUBJECT.set(Subject(request_id, trace_id, withholds))
    try:
        yield
    finally:
        _SUBJECT.reset(token)


def configure_logging(
    process: str,
    epoch: int | None,
    level: str = "info",
    format: Format = "text",  # noqa: A002 - the setting's name
) -> None:
    """Let this process log to stderr, through this module alone; may be called again.

    Args:
        process: `e0`, `gateway-0`, `supervisor`.
        epoch: Which start of it; None: it has none.
        level: A name of `LEVELS`.
        format: Of the lines.
    """
    handler = _StderrHandler()
    handler.setFormatter(LineFormatter(process, epoch, format))
    install(handler, level)


class OurHandler(logging.Handler):
    """Base of the handlers that `install` replaces; there is one at a time."""


def install(handler: OurHandler, level: str) -> None:
    """Let this process log through `handler`, third parties' loggers too."""
    root = logging.getLogger()
    others = [each for each in root.handlers if not isinstance(each, OurHandler)]
    root.handlers[:] = [*others, handler]
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)
    for name in list(logging.root.manager.loggerDict):
        logger = logging.getLogger(name)
        logger.handlers[:] = []
        logger.propagate = True


class _StderrHandler(OurHandler):
    """Writes lines to what stderr is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record's line."""
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # nobody reads it any more
            return
        except Exception:  # noqa: BLE001 - as every logging handler: a log line stops no work
            self.handleError(record)


class LineFormatter(logging.Formatter):
    """Turns a record into one line; see `configure_logging`."""

    def __init__(self, process: str, epoch: int | None, format: Format) -> None:  # noqa: A002
        super().__init__()
        self._process = process
        self._epoch = epoch
        self._format: Format = format

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        fields = self.fields(record)
        return text_line(fields) if self._format == "text" else json_line(fields)

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the parts of the line."""
        subject = _SUBJECT.get()
        text = escape(redact(record.getMessage()[: 2 * MAX_TEXT_CHARS]))[:MAX_TEXT_CHARS]
        fields: dict[str, Any] = {
            "at": _moment(record.created),
            "level": level_name(record.levelno),
            "logger": escape(record.name)[:MAX_FIELD_CHARS],
            "process": self._process,
            "epoch": self._epoch,
            "text": text,
            "trace_id": subject.trace_id if subject else None,
            "request_id": subject.request_id if subject else _named_request(text),
            "engine": _extra(record, "engine"),
            "exception": self._exception(record, subject),
        }
        return {name: value for name, value in fields.items() if value is not None}

    def _exception(self, record: logging.LogRecord, subject: Subject | None) -> str | None:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return None
        withholds = record.name.startswith(_HANDLES_REQUESTS)
        withholds = withholds or (subject is not None and subject.withholds)
        text = escape(redact(exception_text(error, withholds=withholds)), keeps_lines=True)
        return shorten(text, MAX_EXCEPTION_CHARS)


def level_name(number: int) -> str:
    """Return the name of a level of `logging`, a member of `LEVELS`."""
    for name in ("error", "warning", "info"):
        if number >= getattr(logging, name.upper()):
            return name
    return "debug"


def escape(text: str, *, keeps_lines: bool = False) -> str:
    r"""Write what could forge a line, drive a terminal or hide as `\n`, `\x1b`, `\u202e`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character if (keeps_lines and character == "\n") else _escaped(character)
        for character in text
    )


def shorten(text: str, limit: int) -> str:
    """Cut the middle out: the beginning says what failed, the end why."""
    if len(text) <= limit:
        return text
    head = limit // 4
    mark = f"\n... {len(text) - limit} characters ...\n"
    return text[:head] + mark + text[len(text) - (limit - head - len(mark)) :]


def json_line(fields: Mapping[str, Any]) -> str:
    """Return the fields as one line of JSON."""
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def text_line(fields: Mapping[str, Any]) -> str:
    """Return the fields as a line for people; a traceback's lines follow, each after a `  |`."""
    where = f"{fields['process']} {fields['logger']}" if "logger" in fields else fields["process"]
    line = f"{fields['at']} {fields['level']:<7} {where}: {fields['text']}"
    request_id = fields.get("request_id")
    if request_id and request_id not in fields["text"]:
        line += f" [{request_id}]"
    exception = fields.get("exception")
    if exception:
        line += "".join(f"\n  | {each}" for each in exception.split("\n"))
    return line


def parse_line(line: str) -> dict[str, Any] | None:
    """Return the fields of a line that this module wrote as JSON, None for any other line."""
    if not line.startswith('{"at":'):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    fields = cast("dict[str, Any]", found)
    texts = (fields.get(name) for name in ("at", "level", "text", "process"))
    return fields if all(isinstance(value, str) for value in texts) else None


def plain_text(line: str) -> str:
    """Return what a line of a child says, whether it is JSON or not; one line."""
    fields = parse_line(line)
    if fields is None:
        return line
    last = str(fields.get("exception") or "").rstrip().rpartition("\n")[2]
    return f"{fields['text']}: {last}" if last else str(fields["text"])


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN_CATEGORIES:
        return character
    return character.encode("unicode_escape").decode("ascii")


def _moment(unix_s: float) -> str:
    moment = datetime.fromtimestamp(unix_s, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _named_request(text: str) -> str | None:
    """Return the request that a line names, if it names exactly one."""
    named = set(_REQUEST_ID.findall(text))
    return named.pop() if len(named) == 1 else None


def _extra(record: logging.LogRecord, name: str) -> str | None:
    value = record.__dict__.get(name)
    return None if value is None else escape(str(value))[:MAX_FIELD_CHARS]
