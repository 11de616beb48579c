"""Events, log lines and audit entries as rows of one kind, and the filter over them."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from appliance.supervisor.admin.schemas import AuditEntry, JournalEvent, LogLine
from dashboard.client.insight import LogQuery
from dashboard.view.lines import BAD, DIM, PLAIN, WARN, Line, Piece, Row, fit, line, wrapped
from dashboard.view.page import Page
from dashboard.view.text import clean, clock

LEVELS: Final = ("debug", "info", "warning", "error")
_LOOKS: Final = {
    "debug": ("DBUG", DIM),
    "info": ("INFO", DIM),
    "warning": ("WARN", WARN),
    "error": ("ERR ", BAD),
}
_SHORT: Final = {"warn": "warning", "err": "error"}
_SOURCE_WIDTH: Final = 10
_TEXT_LIMIT: Final = 2000
_REFUSED: Final = 400
_REQUEST: Final = "req-"
_PREFIX: Final = "/admin/v1"
_PARAMETER: Final = re.compile(r"\{\w+\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row, wherever it comes from; texts are cleaned."""

    key: str
    at: datetime
    level: str
    source: str
    """Process, subject or actor."""
    kind: str
    """Kind of an event, logger of a line, method and route of a call."""
    text: str
    request_id: str | None = None
    facts: Sequence[tuple[str, str]] = field(default_factory=tuple)
    """What the row has no room for."""


def entry_of_event(event: JournalEvent) -> Entry:
    """An entry of the journal."""
    subject = clean(event.subject)
    return Entry(
        key=f"event:{event.id}",
        at=event.at,
        level=event.level,
        source=subject,
        kind=clean(event.kind),
        text=clean(event.text),
        request_id=subject if subject.startswith(_REQUEST) else None,
        facts=(("subject", subject),),
    )


def entry_of_line(row: LogLine) -> Entry:
    """A line that a process wrote."""
    facts = (
        ("process", row.process),
        ("epoch", "" if row.epoch is None else str(row.epoch)),
        ("logger", row.logger or ""),
        ("request", row.request_id or ""),
        ("trace", row.trace_id or ""),
    )
    return Entry(
        key=f"line:{row.id}",
        at=row.at,
        level=row.level,
        source=clean(row.process),
        kind=clean(row.logger or "").rpartition(".")[2],
        text=clean(row.text, _TEXT_LIMIT),
        request_id=row.request_id,
        facts=_present(facts),
    )


def entry_of_audit(row: AuditEntry) -> Entry:
    """A call that changed something, or was refused."""
    refused = row.status >= _REFUSED
    facts = (
        ("scope", row.scope or ""),
        ("route", f"{row.method} {row.route}"),
        ("body", f"sha256 {row.body_sha256}" if row.body_sha256 else ""),
        ("operation", row.operation or ""),
        ("from", row.source or "the unix socket"),
        ("trace", row.trace_id or ""),
        ("hash", row.hash),
        ("after", row.previous),
    )
    return Entry(
        key=f"audit:{row.seq}",
        at=row.at,
        level="warning" if refused else "info",
        source=clean(row.actor),
        kind=f"#{row.seq}",
        text=f"{row.status} {clean(row.method)} {_path(row)}",
        facts=_present(facts),
    )


def _path(row: AuditEntry) -> str:
    """The route with its target put in, without what all routes begin with."""
    route, target = clean(row.route).removeprefix(_PREFIX), clean(row.target or "")
    filled = _PARAMETER.sub(lambda _: target, route, count=1) if target else route
    return filled if not target or target in filled else f"{filled} {target}"


def _present(facts: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, clean(value)) for name, value in facts if value)


def journal_rows(entries: Iterable[Entry], width: int) -> list[Row]:
    """One line an entry; what does not fit is cut, the panel below shows all."""
    return [Row(entry.key, _line(entry, width)) for entry in entries]


def _line(entry: Entry, width: int) -> Line:
    word, tone = _LOOKS[entry.level]
    lead = f" {clock(entry.at)} "
    kind = f"{entry.kind} " if entry.kind else ""
    source = f"{fit(entry.source, _SOURCE_WIDTH)} "
    text = entry.text
    room = width - len(lead) - len(word) - 1 - len(source) - len(kind) - 1
    loud = tone if entry.level in ("warning", "error") else PLAIN
    return line(
        Piece(lead, DIM),
        Piece(f"{word} ", tone),
        Piece(source),
        Piece(kind, DIM),
        Piece(fit(text, max(0, room)), loud),
    )


def entry_lines(entry: Entry | None, width: int) -> list[Line]:
    """The whole entry."""
    if entry is None:
        return []
    facts = "  ".join(f"{name} {value}" for name, value in entry.facts)
    return [*wrapped(entry.text, width), *(wrapped(facts, width, tone=DIM) if facts else [])]


def entry_page(entry: Entry) -> Page:
    """The whole entry on a page of its own."""
    facts = [
        ("at", entry.at.astimezone().isoformat(timespec="milliseconds")),
        ("level", entry.level),
        ("kind", entry.kind),
        *entry.facts,
    ]
    lines = [line(Piece(f" {fit(name, 12)}", DIM), value) for name, value in facts if value]
    return Page(entry.source or entry.kind, [*wrapped(entry.text, 100), (), *lines])


def fits(entry: Entry, query: str) -> bool:
    """Whether the entry fits every term of `query`.

    A term is a word of the row, `level=warning` (that level or worse), `process=e0`, `kind=engine`,
    `request=req-1`, or any of these with `!` in front. Case does not matter.
    """
    return all(_term(entry, term) for term in query.lower().split())


def _term(entry: Entry, term: str) -> bool:
    wanted = not term.startswith("!")
    term = term.removeprefix("!")
    name, equals, value = term.partition("=")
    if not term or (equals and not value):
        return True
    if equals and name == "level":
        return (LEVELS.index(entry.level) >= _rank(value)) == wanted
    fields = {
        "process": entry.source,
        "subject": entry.source,
        "actor": entry.source,
        "kind": entry.kind,
        "logger": entry.kind,
        "request": entry.request_id or "",
    }
    if equals and name in fields:
        return (value in fields[name].lower()) == wanted
    text = f"{entry.source} {entry.kind} {entry.text} {entry.request_id or ''}"
    return (term in text.lower()) == wanted


def _rank(level: str) -> int:
    level = _SHORT.get(level, level)
    return LEVELS.index(level) if level in LEVELS else 0


def log_query(query: str, processes: Collection[str] = (), after_id: int | None = None) -> LogQuery:
    """What the server can sort out of `query`, so that a rare line is found among many.

    It takes whole names of processes and looks for words in texts only; what is part of a name
    in `processes` is left to `fits`.
    """
    process = level = contains = None
    for term in query.lower().split():
        name, equals, value = term.partition("=")
        if name == "process" and value in processes:
            process = value
        elif name == "level" and value in (*LEVELS, *_SHORT):
            level = _SHORT.get(value, value)
        elif not equals and contains is None and _is_text(term, processes):
            contains = term
    return LogQuery(process=process, min_level=level, after_id=after_id, contains=contains)


def _is_text(term: str, processes: Collection[str]) -> bool:
    return not term.startswith("!") and not any(term in name for name in processes)
