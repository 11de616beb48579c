"""What happened at a time: reading a time as people write it, and the answer as rows."""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from appliance.supervisor.admin.schemas import JournalEvent, Moment, MomentRow
from dashboard.view.events import event_line
from dashboard.view.lines import (
    BAD,
    BOLD,
    DIM,
    PLAIN,
    WARN,
    Column,
    Line,
    Piece,
    Row,
    cells,
    header,
    line,
    pick,
    wrapped,
)
from dashboard.view.text import NOTHING, clean, clock, count, milliseconds, short_id

WINDOW_S: Final = 60.0
_HALF_MINUTE: Final = timedelta(seconds=30)
_FAR: Final = 2.0
_CLOCK: Final = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_ISO_MINUTE: Final = re.compile(r"\d{4}-\d{2}-\d{2}[t ]\d{2}:\d{2}")
_AGO: Final = re.compile(r"-?(\d+)\s*([smhd])(?:\s+ago)?")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_EVENT: Final = TypeAdapter(JournalEvent)
_OUTCOMES: Final = {"failed": BAD, "rejected": BAD, "aborted": WARN}
_COLUMNS: Final = (
    Column("REQUEST", 12),
    Column("OUTCOME", 9),
    Column("TIME", 7, right=True),
    Column("TTFT", 7, right=True),
    Column("MODEL", 12, rank=1),
    Column("WHY", 20),
)


@dataclass(frozen=True, slots=True)
class AskedMoment:
    """The time that is asked about, and how much around it."""

    at: datetime
    window_s: float = WINDOW_S

    @property
    def told(self) -> str:
        """`14:22:00 to 14:23:00`."""
        half = timedelta(seconds=self.window_s / 2)
        return f"{clock(self.at - half)} to {clock(self.at + half)}"


def read_time(text: str, now: datetime) -> datetime | None:
    """`14:22`, `14:22:31`, `5m`, `-2h`, ISO 8601; None if it is no time.

    A clock time is the last one before `now` on the reader's wall clock. Without seconds it is
    the middle of that minute, so that a window of a minute is the minute that was named.
    """
    text = text.strip().lower()
    if found := _AGO.fullmatch(text):
        return now - timedelta(seconds=int(found[1]) * _UNITS[found[2]])
    if found := _CLOCK.fullmatch(text):
        at = _clock_time(now, [int(part or 0) for part in found.groups()])
        return at + _HALF_MINUTE if at and found[3] is None else at
    try:
        at = datetime.fromisoformat(text.upper())
    except ValueError:
        return None
    at = at.astimezone()
    return at + _HALF_MINUTE if _ISO_MINUTE.fullmatch(text) else at


def _clock_time(now: datetime, parts: list[int]) -> datetime | None:
    hour, minute, second = parts
    local = now.astimezone()
    try:
        at = local.replace(hour=hour, minute=minute, second=second, microsecond=0)
    except ValueError:
        return None
    return at if at <= local else at - timedelta(days=1)


def moment_rows(moment: Moment, width: int) -> list[Row]:
    """Sentences, figures, engines, requests (their key is their id) and events."""
    rows = [Row("", text) for sentence in moment.summary for text in _sentence(sentence, width)]
    rows += [Row("", text) for text in (*_figures(moment), *_engines(moment, width))]
    if moment.slowest:
        columns = pick(_COLUMNS, width)
        rows.append(Row("", ()))
        rows.append(Row("", line(" ", *header(columns))))
        rows += [_request(row, columns) for row in moment.slowest]
    if moment.events:
        rows += [Row("", ()), Row("", line(Piece(" events", DIM)))]
        rows += [Row("", _event(event)) for event in moment.events]
    return rows


def span(moment: Moment) -> str:
    """For the frame: from when to when."""
    return f"{clock(moment.since)} to {clock(moment.until)}"


def _sentence(text: str, width: int) -> list[Line]:
    return wrapped(f"· {clean(text)}", width, indent="   ", tone=BOLD)


def _figures(moment: Moment) -> list[Line]:
    outcomes = ", ".join(f"{number} {clean(name)}" for name, number in moment.by_outcome.items())
    p50, usual = moment.ttft_p50_ms, moment.hour_ttft_p50_ms
    slow = p50 is not None and usual is not None and p50 > _FAR * usual
    return [
        (),
        line(Piece(" requests  ", DIM), f"{moment.requests}", f"  {outcomes}" if outcomes else ""),
        line(
            Piece(" TTFT      ", DIM),
            Piece(f"p50 {milliseconds(p50)}{' ▲' if slow else ''}", WARN if slow else PLAIN),
            f"  p95 {milliseconds(moment.ttft_p95_ms)}",
            Piece(f"  this hour {milliseconds(usual)}", DIM),
        ),
    ]


def _engines(moment: Moment, width: int) -> list[Line]:
    lines: list[Line] = []
    for name, figures in moment.engines.items():
        facts = [_figure(clean(key), value) for key, value in figures.items()]
        lead = f" {clean(name):<10}"
        lines += wrapped(" · ".join(facts), width, first=lead, indent=" " * 11)
    return lines


def _figure(name: str, value: float) -> str:
    words = name.replace("_", " ")
    if name.endswith("_share"):
        return f"{words.removesuffix(' share')} {value * 100:.0f}%"
    if name.endswith("_ms"):
        return f"{words.removesuffix(' ms')} {milliseconds(value)}"
    amount = count(value) if value >= _WHOLE or value == int(value) else f"{value:.1f}"
    return f"{words} {amount}"


_WHOLE: Final = 100


def _request(row: MomentRow, columns: tuple[Column, ...]) -> Row:
    values = {
        "REQUEST": Piece(short_id(row.request_id)),
        "OUTCOME": Piece(clean(row.outcome), _OUTCOMES.get(row.outcome, DIM)),
        "TIME": Piece(milliseconds(row.duration_ms)),
        "TTFT": Piece(milliseconds(row.ttft_ms)),
        "MODEL": Piece(clean(row.model or NOTHING), DIM),
        "WHY": Piece(clean(row.headline)),
    }
    text = cells(columns, [values[column.title] for column in columns])
    return Row(row.request_id, line(" ", *text))


def _event(event: dict[str, Any]) -> Line:
    try:
        return event_line(_EVENT.validate_python(event))
    except ValidationError:
        return line(f" {clean(str(event.get('text', event)))}")
