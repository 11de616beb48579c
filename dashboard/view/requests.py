"""The request tables, their colours, and the filter language."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from appliance.supervisor.admin.schemas import RequestRow
from dashboard.store.state import LIVE_STATES, State
from dashboard.view.lines import (
    BAD,
    DIM,
    GOOD,
    INFO,
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
)
from dashboard.view.text import NOTHING, age, clean, clock, count, milliseconds, rate, short_id

LONG_WAIT_S: Final = 10.0

LOOKS: Final[dict[str, tuple[str, str, str]]] = {
    "held": ("◌", "HELD", WARN),
    "queued": ("◌", "QUEUED", WARN),
    "prefill": ("◔", "PREFILL", INFO),
    "decode": ("▶", "DECODE", GOOD),
    "finished": ("✓", "DONE", DIM),
    "aborted": ("■", "ABORTED", WARN),
    "failed": ("✗", "FAILED", BAD),
    "rejected": ("⊘", "REFUSED", BAD),
}
"""Glyph, word and tone of a request's state."""

_COLUMNS: Final = (
    Column("REQUEST", 12),
    Column("KEY", 10, rank=2),
    Column("ENG", 3),
    Column("STATE", 9),
    Column("RECEIVED", 8, rank=7),
    Column("TIME", 6, right=True),
    Column("IN", 4, right=True),
    Column("OUT", 4, right=True),
    Column("MAX", 5, right=True, rank=6),
    Column("QUEUE", 6, right=True, rank=1),
    Column("TTFT", 6, right=True),
    Column("TOK/S", 5, right=True),
    Column("STATUS", 6, right=True, rank=5),
    Column("DETAIL", 20, rank=4),
    Column("MODEL", 12),
)


def requests_header(width: int) -> Line:
    """Titles of the request table."""
    return line(" ", *header(pick(_COLUMNS, width)))


def request_rows(
    state: State, requests: Iterable[RequestRow], now_s: float, width: int
) -> list[Row]:
    """One row a request."""
    columns = pick(_COLUMNS, width)
    server_now = state.server_now(now_s)
    rows: list[Row] = []
    for request in requests:
        values = _values(request, server_now)
        rows.append(Row(request.id, cells(columns, [values[column.title] for column in columns])))
    return rows


def is_live(request: RequestRow) -> bool:
    """Whether it can still be aborted."""
    return request.state in LIVE_STATES


def outcome(request: RequestRow) -> Piece:
    """Glyph and word of the request's state."""
    glyph, word, tone = LOOKS[request.state]
    return Piece(f"{glyph} {word}", tone)


def age_s(request: RequestRow, server_now: datetime) -> float:
    """How old a live request is now, or how long an ended one took."""
    if not is_live(request):
        return request.age_s
    return max(request.age_s, (server_now - request.received_at).total_seconds())


def _values(request: RequestRow, server_now: datetime) -> dict[str, Piece]:
    state = outcome(request)
    ended = PLAIN if is_live(request) else DIM
    return {
        "REQUEST": Piece(short_id(request.id), ended),
        "KEY": Piece(clean(request.key_id or NOTHING), ended),
        "ENG": Piece(clean(request.engine or NOTHING), ended),
        "STATE": state,
        "RECEIVED": Piece(clock(request.received_at), DIM),
        "TIME": _age(request, age_s(request, server_now)),
        "IN": Piece(count(request.prompt_tokens), ended),
        "OUT": Piece(count(request.completion_tokens), ended),
        "MAX": Piece(count(request.max_tokens) if request.max_tokens else NOTHING, DIM),
        "QUEUE": Piece(milliseconds(request.queue_ms), ended),
        "TTFT": Piece(milliseconds(request.ttft_ms), ended),
        "TOK/S": Piece(rate(request.tokens_per_s), ended),
        "STATUS": Piece(str(request.status or NOTHING), ended),
        "MODEL": Piece(clean(request.model or NOTHING), ended),
        "DETAIL": _detail(request),
    }


def _age(request: RequestRow, seconds: float) -> Piece:
    late = request.state in ("held", "queued") and seconds > LONG_WAIT_S
    if late:
        return Piece(f"{age(seconds)}▲", WARN)
    if is_live(request):
        return Piece(age(seconds))
    return Piece(milliseconds(seconds * 1000), DIM)


def _detail(request: RequestRow) -> Piece:
    if request.error_code:
        return Piece(clean(request.error_code), BAD)
    preempted = f"  {request.preemptions} preempted" if request.preemptions else ""
    return Piece(f"{clean(request.route)}{preempted}", WARN if preempted else DIM)


def matches(request: RequestRow, query: str) -> bool:
    """Whether the request fits every term of `query`.

    A term is a part of any shown field (`smol`), a field and its part (`engine=e0`), or either
    with `!` in front to exclude. Case does not matter.
    """
    fields = _fields(request)
    return all(_term(fields, term) for term in query.lower().split())


def _term(fields: dict[str, str], term: str) -> bool:
    wanted = not term.startswith("!")
    term = term.removeprefix("!")
    name, equals, value = term.partition("=")
    if not term:
        return True
    if equals and name in fields:
        return (value in fields[name]) == wanted
    return any(term in text for text in fields.values()) == wanted


def _fields(request: RequestRow) -> dict[str, str]:
    values = {
        "id": request.id,
        "state": f"{request.state} {LOOKS[request.state][1]}",
        "engine": request.engine,
        "model": request.model,
        "key": request.key_id,
        "gateway": request.gateway,
        "route": request.route,
        "status": str(request.status) if request.status else None,
        "code": request.error_code,
        "trace": request.trace_id,
    }
    return {name: clean(value or "").lower() for name, value in values.items()}


def filtered(requests: Sequence[RequestRow], query: str) -> list[RequestRow]:
    """The requests that fit `query`, in the same order."""
    return [request for request in requests if matches(request, query)]
