"""The journal and the operations, for screens with room for them."""

from typing import Final

from appliance.supervisor.admin.schemas import JournalEvent, Operation
from dashboard.store.state import State
from dashboard.view.lines import BAD, DIM, GOOD, PLAIN, WARN, Line, Piece, fit, line
from dashboard.view.operations import LOOKS
from dashboard.view.text import age, clean, clock, meter

LEVELS: Final = {"info": ("INFO", DIM), "warning": ("WARN", WARN), "error": ("ERR ", BAD)}
_BAR: Final = 8


def event_line(event: JournalEvent) -> Line:
    """One entry of the journal."""
    word, tone = LEVELS[event.level]
    text, subject = clean(event.text), clean(event.subject)
    lead = "" if text.startswith(subject) else f"{subject} "
    return line(
        Piece(f" {clock(event.at)} ", DIM),
        Piece(f"{word} ", tone),
        Piece(f"{clean(event.kind)} ", DIM),
        f"{lead}{text}",
    )


def event_lines(state: State, height: int) -> list[Line]:
    """The newest entries, newest last."""
    return [event_line(event) for event in state.events[-height:]] if height > 0 else []


def operation_lines(state: State, now_s: float, width: int, height: int) -> list[Line]:
    """The gateways, then the newest operations."""
    gateways = [
        line(
            Piece(
                f" {'●' if row.state == 'ready' else '◐'} ", GOOD if row.state == "ready" else WARN
            ),
            f"{fit(clean(row.name), 12)} {row.state}",
            Piece(f"  live {row.live_requests}{_restarts(row.restarts)}", DIM),
        )
        for row in state.gateways.values()
    ]
    newest = sorted(state.operations.values(), key=lambda row: row.created_at, reverse=True)
    room = max(0, height - len(gateways))
    return [*gateways, *(_operation(state, row, now_s, width) for row in newest[:room])]


def _restarts(number: int) -> str:
    return f"  ↻{number}" if number else ""


def _operation(state: State, row: Operation, now_s: float, width: int) -> Line:
    glyph, tone = LOOKS[row.state]
    until = row.ended_at or state.server_now(now_s)
    took = age((until - row.created_at).total_seconds())
    progress = ""
    if row.progress and row.ended_at is None:
        ratio = row.progress.done / row.progress.total if row.progress.total else 0.0
        progress = f" {ratio * 100:.0f}% {meter(ratio, _BAR)}"
    detail = clean(row.error or row.phase or "")
    text = f"{row.kind} {clean(row.target)}{progress} {took} {detail}"
    return line(Piece(f" {glyph} ", tone), Piece(fit(text, max(0, width - 3)), PLAIN))
